package gateway_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"iop/execution"
	"iop/state"
	"iop/tunnel"
)

// liar is a provider that answers well and reports these counts.
func liar(usage execution.Usage) handler {
	usage.Known = true
	return func(_ context.Context, run *tunnel.NodeRun) {
		_ = run.Head(head(200, "application/json"))
		_ = run.Write([]byte(`{}`), false)
		run.End(execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone, Usage: usage})
	}
}

// TestAbsurdUsage: one Node that reports what can't be neither uses up a key's budget, nor shapes what runs are estimated
// at: not its own, and not those of honest Nodes of the same route.
func TestAbsurdUsage(t *testing.T) {
	const most = 1 << 20
	for name, usage := range map[string]execution.Usage{
		"output":               {Input: 3, Output: 1e15},
		"input":                {Input: 1e15, Output: 3},
		"both":                 {Input: math.MaxInt64, Output: math.MaxInt64, Cached: math.MaxInt64, Reasoning: math.MaxInt64},
		"negative":             {Input: math.MinInt64, Output: -1, Cached: -5, Reasoning: math.MinInt64},
		"a sum that overflows": {Input: 1 << 62, Output: 1 << 62},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, nil)
			e.addNode("liar", 4, liar(usage), "m", "lied")
			e.addNode("honest", 4, uses(30, 20), "m")
			e.as(e.newKey(state.KeySpec{MonthlyTokens: 10 * most}), func() {
				for range 3 {
					if status, _, body := e.post(chat, `{"model":"lied","messages":[]}`); status != 200 {
						t.Fatalf("%d %s", status, body)
					}
				}
				for range 10 {
					if status, _, body := e.post(chat, `{"model":"m","messages":[]}`); status != 200 {
						t.Fatalf("a run of the shared route after the lie: %d %s", status, body)
					}
				}
			})
			e.idle()
			lies := 0
			for _, r := range e.records() {
				u := r.Usage
				if u.Input < 0 || u.Output < 0 || u.Input+u.Output > most || u.Cached > u.Input || u.Reasoning > u.Output {
					t.Errorf("a run at %s is booked as %+v", r.Node, u)
				}
				if r.Node == "liar" {
					lies++
					if !u.Estimated {
						t.Errorf("%+v is not marked as an estimate", u)
					}
				} else if u != (execution.Usage{Input: 30, Output: 20, Known: true}) {
					t.Errorf("an honest run is booked as %+v", u)
				}
			}
			if got := e.metric("iop_usage_implausible_total"); got != int64(lies) || lies < 3 {
				t.Errorf("%d lies counted, want %d", got, lies)
			}
		})
	}
}

// TestInputFromElsewhere: documents behind addresses are booked as what the provider read, not as what their addresses could be.
func TestInputFromElsewhere(t *testing.T) {
	const read = 900_000
	for name, test := range map[string]struct {
		body string
		want int64
	}{
		"a tool of the provider's": {`{"type":"tool_addition","tool":{"type":"tool_definition","definition":{"type":"code_execution_20250825"}}}`, read},
		"an address":               {`{"type":"document","source":{"type":"url","url":"https://example.org/a.pdf"}}`, read},
		"escaped":                  {`{"type":"document","source":{"type":"url","url":"https:\/\/example.org\/a.pdf"}}`, read},
		"escaped as numbers":       {`{"type":"document","source":{"type":"url","url":"https\u003a//example.org/a.pdf"}}`, read},
		"half escaped":             {`{"type":"input_audio","input_audio":{"data":"https:\//example.org/a.mp3"}}`, read},
		"its other half":           {`{"type":"input_audio","input_audio":{"data":"https:/\/example.org/a.mp3"}}`, read},
		"as fetch takes it":        {`{"type":"image_url","image_url":{"url":"https:example.org/a.png"}}`, read},
		"Mistral's document":       {`{"type":"document_url","document_url":"data:application/pdf;base64,JVBERi0="}`, read},
		"a film":                   {`{"type":"input_video","video":["data:video/mp4;base64,AAAA"]}`, read},
		"a file":                   {`{"type":"document","source":{"type":"file","file_id":"file_1"}}`, read},
		"a document":               {`{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"JVBERi0="}}`, read},
		"OpenAI's document":        {`{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,JVBERi0="}}`, read},
		"an image":                 {`{"type": "image","source":{"type":"base64","media_type":"image/webp","data":"UklGRgAA"}}`, read},
		"vLLM's embeddings":        {`{"type":"image_embeds","image_embeds":"AAAA"}`, read},
		"nothing but a text":       {`{"type":"text","text":"hi"}`, 0},
		"an address in Ollama":     {`{"type":"text","text":"https://example.org"}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, nil)
			path := "/v1/messages"
			if strings.HasSuffix(name, "Ollama") {
				path = "/api/chat"
			}
			e.addProvider("n1", runsOn("anthropic", "messages", "ollama.chat"), uses(read, 3), "m")
			body := `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[` + test.body + `]}]}`
			if status, _, answer := e.post(path, body); status != 200 {
				t.Fatalf("%d %s", status, answer)
			}
			e.idle()
			want := test.want
			if want == 0 {
				want = 1<<16 + 8*int64(len(body)) // what the request's own bytes can be
			}
			if got := e.records()[0].Usage.Input; got != want {
				t.Errorf("booked are %d of %d, want %d", got, read, want)
			}
		})
	}
}

// TestInputOfTools: what a provider's own tools and searches read is booked, by whatever name they are asked for.
func TestInputOfTools(t *testing.T) {
	const read = 900_000
	for _, member := range []string{
		`"tools":[{"type":"code_execution_20250825","name":"x"}]`, `"tools":[{"type":"file_search"}]`, `"tools":[{"type":"mcp"}]`, `"tools":[{"google_search":{}}]`,
		`"search_parameters":{"mode":"auto"}`, `"enable_search":true`, `"mcp_servers":[{}]`, `"not_known_yet":1`,
		``, `"tools":[{"type":"function","function":{"name":"f"}}],"temperature":1`,
	} {
		e := newEdge(t, nil)
		e.addNode("n1", 1, uses(read, 3), "m")
		body := strings.TrimSuffix(`{"model":"m","messages":[],`+member, ",") + "}"
		if status, _, answer := e.post(chat, body); status != 200 {
			t.Fatalf("%s: %d %s", member, status, answer)
		}
		e.idle()
		want := int64(read)
		if member == "" || strings.Contains(member, "temperature") {
			want = 1<<16 + 8*int64(len(body))
		}
		if got := e.records()[0].Usage.Input; got != want {
			t.Errorf("%s: booked are %d of %d, want %d", member, got, read, want)
		}
	}
}

// TestInputOfMediaLists: what is read of each image of a list to embed or to rank is booked; of text as much as it can be.
func TestInputOfMediaLists(t *testing.T) {
	const images, each = 200, 16_000
	image := `{"content":[{"type":"image_url","image_url":{"url":"https://a.de/1"}}]}`
	list := func(element string) string { return "[" + element + strings.Repeat(","+element, images-1) + "]" }
	for _, test := range []struct {
		path, body string
		all        bool
	}{
		{"/v1/rerank", `{"model":"m","query":"x","documents":` + list(image) + `}`, true},
		{"/v1/rerank", `{"model":"m","query":` + image + `,"documents":` + list(`"x"`) + `}`, true},
		{"/v1/embeddings", `{"model":"m","input":` + list(`{"image":"https://a.de/12345678901234567890"}`) + `}`, true},
		{"/v1/embeddings", `{"model":"m","messages":` + list(image) + `}`, true},
		{"/v1/rerank", `{"model":"m","query":"x","documents":` + list(`"x"`) + `}`, false},
		{"/v1/embeddings", `{"model":"m","input":` + list(`"x"`) + `}`, false},
	} {
		e := newEdge(t, nil)
		e.addProvider("n1", runsOn("vllm", "rerank", "embeddings"), uses(images*each, 0), "m")
		if status, _, answer := e.post(test.path, test.body); status != 200 {
			t.Fatalf("%s: %d %s", test.path, status, answer)
		}
		e.idle()
		if got := e.records()[0].Usage.Input; (got == images*each) != test.all {
			t.Errorf("%s %.100s: booked are %d tokens of %d", test.path, test.body, got, images*each)
		}
	}
}

// TestInputOfTemplates: what Ollama makes of a client's own template is booked, and an empty template is none.
func TestInputOfTemplates(t *testing.T) {
	const read = 900_000
	for template, more := range map[string]bool{`"{{ printf \"%01000000d\" 1 }}"`: true, `""`: false, `null`: false} {
		e := newEdge(t, nil)
		e.addProvider("n1", runsOn("ollama", "ollama.generate"), uses(read, 3), "m")
		body := `{"model":"m","prompt":"x","stream":false,"template":` + template + `}`
		if status, _, answer := e.post("/api/generate", body); status != 200 {
			t.Fatalf("%s: %d %s", template, status, answer)
		}
		e.idle()
		want := int64(read)
		if !more {
			want = 1<<16 + 8*int64(len(body))
		}
		if got := e.records()[0].Usage.Input; got != want {
			t.Errorf("%s: booked are %d of %d, want %d", template, got, read, want)
		}
	}
}

// TestLiarsEstimates: a Node that reports long answers, each possible, does not decide what a route's runs are estimated at
// while honest Nodes serve it, however many of its runs it gets.
func TestLiarsEstimates(t *testing.T) {
	e, _ := withRoutes(t, "routes:\n  - model: m\n    groups:\n      - targets: [{node: honest, model: x}, {node: liar, model: x}, {node: other, model: x}]\n  - model: lied\n    aliases: [l]\n    groups:\n      - targets: [{node: liar, model: x}]\n")
	e.addNode("liar", 4, uses(3, 8000), "x")
	for i := range 3 {
		e.addNode([]string{"honest", "other", "more"}[i], 1, uses(3, 20), "x")
	}
	for range 40 {
		if status, _, body := e.post(chat, `{"model":"m","messages":[]}`); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
	}
	e.idle()
	runs := map[execution.NodeID]int{}
	for _, r := range e.records() {
		runs[r.Node]++
	}
	if runs["liar"] == 0 || runs["honest"] == 0 || runs["other"] == 0 {
		t.Fatalf("runs by Node: %v, this shows nothing", runs)
	}
	// What is held of the month's budget before the run is the estimate: 1 + 20.
	for tokens, want := range map[int64]int{20: 429, 21: 200} {
		e.as(e.newKey(state.KeySpec{Name: fmt.Sprint(tokens), MonthlyTokens: tokens}), func() {
			if status, _, body := e.post(chat, `{"model":"m","messages":[]}`); status != want {
				t.Errorf("with a budget of %d: %d %s", tokens, status, body)
			}
		})
	}
}

// TestInputOfReranking: a provider reads each document with the query, and that is booked, whether or not it says so.
func TestInputOfReranking(t *testing.T) {
	body := `{"model":"m","query":"` + strings.Repeat("word ", 1000) + `","documents":["a"` + strings.Repeat(`,"a"`, 499) + `]}`
	const read = 500 * 1250 // tokens
	for path, provider := range map[string]handler{
		"/v1/rerank": uses(read, 0), "/rerank": answerJSON(200, `[{"index":0,"score":0.5}]`), "/v2/rerank": uses(100*read, 0),
	} {
		e := newEdge(t, nil)
		e.addProvider("n1", runsOn("vllm", "rerank", "rerank.root", "rerank.v2"), provider, "m")
		if status, _, answer := e.post(path, body); status != 200 {
			t.Fatalf("%s: %d %s", path, status, answer)
		}
		e.idle()
		most := int64(read * 11 / 10)
		if path == "/v2/rerank" { // a lie
			most *= 4 * 8
		}
		if got := e.records()[0].Usage.Input; got < read*9/10 || got > most {
			t.Errorf("%s: booked are %d tokens of about %d", path, got, read)
		}
	}
}
