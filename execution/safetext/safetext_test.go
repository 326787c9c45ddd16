package safetext

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestMaskKeys(t *testing.T) {
	body := "38QcCChyabcdefghijklmnopqrstuvwxyz0123456789ABCDEF"
	for text, want := range map[string]string{
		"sk-iop_" + body:                     "sk-iop_" + strings.Repeat("*", len(body)),
		"/K/SK-IOP_" + body + "/api":         "/K/SK-IOP_" + strings.Repeat("*", len(body)) + "/api",
		"adm-iop_" + body + " njt-iop_short": "adm-iop_" + strings.Repeat("*", len(body)) + " njt-iop_short",
		"Bearer sk-proj-0123456789abcdef":    "Bearer sk-" + strings.Repeat("*", 21),
		"hf_0123456789abcdefX":               "hf_" + strings.Repeat("*", 17),
		"sk-iop_38QcCChy":                    "sk-iop_38QcCChy", // the public id
		"disk-0123456789abcdefghij":          "disk-0123456789abcdefghij",
		"a-model_with-many_parts-and-more":   "a-model_with-many_parts-and-more",
		"sk-":                                "sk-",
		"":                                   "",
	} {
		if got := MaskKeys(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func TestEscape(t *testing.T) {
	for text, want := range map[string]string{
		"plain é 語":      "plain é 語",
		"a\x1b[31mb\x7f": `a\u001b[31mb\u007f`,
		"a\u202eb\u2066": `a\u202eb\u2066`,
		"\u0085\u009b":   `\u0085\u009b`,
		"\ufeff\u2028\n": `\ufeff\u2028\u000a`,
		"bad\xff":        `bad\ufffd`,
		"\U000e0001":     `\udb40\udc01`,
	} {
		if got := Escape(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

// FuzzAppendLine: a line has no character left that must not be repeated, and a JSON line is the same JSON but for keys.
func FuzzAppendLine(f *testing.F) {
	f.Add("a\u202e\x7f\u0085 sk-iop_0123456789abcdefghij \U000e0001\n\t\\")
	f.Add("\xff\xfe\x00")
	f.Fuzz(func(t *testing.T, text string) {
		line := string(AppendLine(nil, []byte(text)))
		for _, r := range line {
			if Unfit(r) && r != '\n' && r != '\t' || r == utf8.RuneError && !strings.ContainsRune(text, r) {
				t.Fatalf("%q becomes %q", text, line)
			}
		}
		encoded, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		var back, want string
		if err := json.Unmarshal(AppendLine(nil, encoded), &back); err != nil {
			t.Fatalf("%q: %v", encoded, err)
		}
		if _ = json.Unmarshal(encoded, &want); !strings.Contains(back, "*") && back != want {
			t.Fatalf("%q becomes %q", want, back)
		}
	})
}

func BenchmarkAppendLine(b *testing.B) {
	line := []byte(strings.Repeat(`"op":"chat.completions","model":"llama-3.1-8b","route_name":"r","request_id":"req_3bc92b",`, 7))
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = AppendLine(dst[:0], line)
	}
}
