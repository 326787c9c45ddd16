package nodeagent

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"iop/openai"
	"iop/sim"
	"iop/tunnel"
)

// detailsOf is what the Edge is told of a model's file.
func detailsOf(p *provider, model string) *tunnel.ModelDetails {
	_, models := p.describe()
	for _, m := range models {
		if m.ID == model {
			return m.Details
		}
	}
	return nil
}

// TestDetailsOfAnEngine: an Ollama's files are told at the first look, and other engines say nothing of theirs.
func TestDetailsOfAnEngine(t *testing.T) {
	p, _ := looked(t, ProviderSpec{ID: "p", URL: engineServer(t, sim.Ollama, 1).URL, Capacity: 1})
	d := detailsOf(p, "sim-small")
	if d == nil || d.Size != 4912898304 || len(d.Digest) != 64 || d.Modified == 0 || d.Family != "sim" || d.ParameterSize != "8B" || d.Quantization != "Q4_K_M" {
		t.Errorf("of an Ollama's model is told %+v", d)
	}
	p, _ = looked(t, ProviderSpec{ID: "p", URL: engineServer(t, sim.VLLM, 1).URL, Capacity: 1})
	if d := detailsOf(p, "sim-small"); d != nil {
		t.Errorf("of a vLLM's model is told %+v", d)
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestDetails: what Ollama's list may look like.
func TestDetails(t *testing.T) {
	whole := `{"name":"a:1b","model":"a:1b","modified_at":"2025-11-29T10:00:00.5+01:00","size":7,"digest":"abc",
		"details":{"format":"gguf","family":"f","families":["f"],"parameter_size":"1B","quantization_level":"Q8_0","context_length":4096},"capabilities":["completion","tools"]}`
	want := &tunnel.ModelDetails{
		Size: 7, Digest: "abc", Modified: 1764406800, Family: "f", ParameterSize: "1B", Quantization: "Q8_0",
		Capabilities: []string{"completion", "tools"}, ContextLength: 4096,
	}
	for _, tt := range []struct {
		body string
		ok   bool
		want modelDetails
	}{
		{`{"models":[` + whole + `]}`, true, modelDetails{"a:1b": want}},
		{`{"models":[{"name":"x","size":"big"},7,null,{"name":"y","details":[]},{"name":"a\nb"},` + whole + `]}`, true, modelDetails{"a:1b": want}},
		{`{"models":[{"name":"n","modified_at":"yesterday"}]}`, true, modelDetails{"n": {}}},
		{`{"models":[]}`, true, modelDetails{}},
		{`{"models":null}`, false, nil}, {`{"models":{}}`, false, nil}, {`{}`, false, nil}, {`[]`, false, nil}, {`<html>`, false, nil}, {"", false, nil},
	} {
		got, ok := answer{status: http.StatusOK, body: []byte(tt.body)}.details()
		if ok != tt.ok || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%.80s: %v, %t", tt.body, got, ok)
		}
	}
	many := `{"models":[` + strings.Repeat(`{},`, openai.MaxModels) + whole + `]}`
	if got, ok := (answer{status: http.StatusOK, body: []byte(many)}).details(); !ok || len(got) != 0 {
		t.Errorf("%d entries of a list that is too long", len(got))
	}
}

// TestDetailsChangesAreTold: Ollama is asked anew when its list changes and when it was not asked for long, and the Edge
// is told when the answer is another one.
func TestDetailsChangesAreTold(t *testing.T) {
	var tags, list atomic.Value
	var asked atomic.Int64
	list.Store(`{"data":[{"id":"a","created":1}]}`)
	spec := httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case pathModels:
			io.WriteString(w, list.Load().(string))
		case pathOllamaTags:
			asked.Add(1)
			io.WriteString(w, tags.Load().(string))
		default:
			http.NotFound(w, r)
		}
	})
	spec.Engine = OllamaEngine
	p := testAgent(t, spec).only()
	changes := 0
	b := &prober{p: p, log: slog.New(slog.DiscardHandler), changed: func() { changes++ }}
	step := func(what, answer string, wantSize int64, wantChanges int, wantAsked int64) {
		t.Helper()
		tags.Store(answer)
		b.look(context.Background())
		var size int64
		if d := detailsOf(p, "a"); d != nil {
			size = d.Size
		}
		if size != wantSize || changes != wantChanges || asked.Load() != wantAsked {
			t.Errorf("%s: size %d, %d changes told, asked %d times; want %d, %d, %d", what, size, changes, asked.Load(), wantSize, wantChanges, wantAsked)
		}
	}
	long := func() { b.detailed = b.detailed.Add(-askAgain) }
	step("at first", `{"models":[{"name":"a","size":5}]}`, 5, 1, 1)
	step("nothing new", `{"models":[{"name":"a","size":6}]}`, 5, 1, 1)
	list.Store(`{"data":[{"id":"a","created":2}]}`)
	step("pulled again", `{"models":[{"name":"a","size":6}]}`, 6, 2, 2)
	long()
	step("the same again", `{"models":[{"name":"a","size":6}]}`, 6, 2, 3)
	long()
	step("gibberish", `gibberish`, 6, 2, 4)
	p.mu.Lock()
	p.setEngineLocked(VLLMEngine, 0)
	p.mu.Unlock()
	b.look(context.Background())
	if d := detailsOf(p, "a"); d != nil {
		t.Errorf("another engine has the details %+v", d)
	}
}
