package sim

import (
	"encoding/json"
	"strings"
	"testing"
)

// contentOf joins the text of a streamed chat answer.
func contentOf(t *testing.T, body string) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.SplitSeq(body, "\n") {
		data, ok := strings.CutPrefix(line, "data: {")
		if !ok {
			continue
		}
		var chunk struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
		}
		if err := json.Unmarshal([]byte("{"+data), &chunk); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		for _, c := range chunk.Choices {
			b.WriteString(c.Delta.Content)
		}
	}
	return b.String()
}

func TestExampleOfSchema(t *testing.T) {
	for schema, want := range map[string]string{
		``:                                       `{}`,
		`{`:                                      `{}`,
		`true`:                                   `null`,
		`{"type":"object"}`:                      `{}`,
		`{"type":"string","maxLength":2}`:        `"te"`,
		`{"type":"string","minLength":6}`:        `"textxx"`,
		`{"type":"string","format":"date-time"}`: `"2025-01-01T00:00:00Z"`,
		`{"type":["null","integer"],"minimum":5}`:                                           `5`,
		`{"type":"integer","exclusiveMinimum":5}`:                                           `6`,
		`{"type":"number","maximum":-2}`:                                                    `-2`,
		`{"type":"integer","multipleOf":7,"minimum":8}`:                                     `14`,
		`{"enum":["b","a"]}`:                                                                `"b"`,
		`{"const":{"x":1}}`:                                                                 `{"x":1}`,
		`{"type":"array","items":{"type":"boolean"},"minItems":3}`:                          `[true,true,true]`,
		`{"type":"array","items":{"type":"boolean"},"maxItems":0}`:                          `[]`,
		`{"anyOf":[{"type":"object"},{"type":"string"}]}`:                                   `"text"`,
		`{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}],"$defs":{"n":{"type":"object"}}}`:  `null`,
		`{"allOf":[{"properties":{"a":{"type":"null"}}},{"properties":{"b":{"const":1}}}]}`: `{"a":null,"b":1}`,
		`{"properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"type":"integer"}}}`:        `{"a":1}`,
		`{"type":"object","required":["free"]}`:                                             `{"free":"any"}`,
		`{"$ref":"#"}`:                                                                      `null`,
	} {
		if got := exampleOf(json.RawMessage(schema)); got != want {
			t.Errorf("%s: %s, want %s", schema, got, want)
		}
	}
}

func TestExampleOfRecursiveSchema(t *testing.T) {
	const tree = `{"type":"object","required":["value"],"properties":{"value":{"type":"integer"},"children":{"type":"array","items":{"$ref":"#"}}}}`
	if got := exampleOf(json.RawMessage(tree)); !json.Valid([]byte(got)) || len(got) > 4096 {
		t.Errorf("%d bytes: %s", len(got), got)
	}
}

func FuzzExampleOf(f *testing.F) {
	f.Add(`{"type":"object","properties":{"a":{"anyOf":[{"$ref":"#"},{"type":"null"}]}}}`)
	f.Add(`{"allOf":[{"$ref":"#/allOf/0"}]}`)
	f.Add(`{"type":"array","minItems":1e300,"items":{"type":"string","maxLength":-1,"minLength":1e300}}`)
	f.Add(`{"type":"number","multipleOf":1e-300,"minimum":1e300}`)
	f.Fuzz(func(t *testing.T, schema string) {
		if got := exampleOf(json.RawMessage(schema)); !json.Valid([]byte(got)) {
			t.Errorf("%q gives %q", schema, got)
		}
	})
}

func TestPiecesAreWholeCharacters(t *testing.T) {
	for _, style := range []string{"", "cjk", "emoji", "mix"} {
		s := script{echo: strings.Fields("naïve 世界"), total: 40, style: style, chunk: 10}
		for i := range s.total {
			if p := string(s.appendPiece(nil, i)); strings.ToValidUTF8(p, "?") != p || len(p) < 10 {
				t.Errorf("%s %d: %q", style, i, p)
			}
		}
	}
	fixed := script{fixed: "世界世界世界", total: 3}
	if got := fixed.whole(); got != fixed.fixed {
		t.Errorf("%q", got)
	}
}
