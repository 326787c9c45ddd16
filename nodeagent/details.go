package nodeagent

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"time"

	"iop/openai"
	"iop/tunnel"
)

// modelDetails are what a provider says of its models' files, by the models' names. It is replaced, never changed.
type modelDetails map[string]*tunnel.ModelDetails

func (d modelDetails) equal(e modelDetails) bool {
	return maps.EqualFunc(d, e, func(a, b *tunnel.ModelDetails) bool { return a == b || reflect.DeepEqual(a, b) })
}

// detail asks an Ollama what it says of its models' files, if the list of them has changed since or it was not asked for
// long. Other engines don't tell. The former answer stands where there is no new one.
func (b *prober) detail(ctx context.Context, l learned) (details modelDetails, ok bool) {
	if b.p.engine() != OllamaEngine {
		b.listed = nil
		return nil, true
	}
	if l.err != nil || slices.Equal(b.listed, l.list.models) && time.Since(b.detailed) < askAgain {
		return nil, false
	}
	b.detailed, b.listed = time.Now(), slices.Clone(l.list.models)
	return b.p.askOllamaDetails(ctx)
}

// askOllamaDetails asks an Ollama for its own list of models, which says more of each than the one of OpenAI's form.
func (p *provider) askOllamaDetails(ctx context.Context) (details modelDetails, ok bool) {
	a, err := p.ask(ctx, pathOllamaTags)
	switch {
	case err != nil:
		return nil, false
	case a.status == http.StatusNotFound: // it only looks like an Ollama
		return nil, true
	}
	return a.details()
}

// details reads Ollama's list of models, one entry at a time: a hostile list must not cost many times its size. An entry
// of another form is passed over.
func (a answer) details() (modelDetails, bool) {
	var list struct{ Models json.RawMessage }
	if !a.into(&list) {
		return nil, false
	}
	entries := json.NewDecoder(bytes.NewReader(list.Models))
	if t, err := entries.Token(); err != nil || t != json.Delim('[') {
		return nil, false
	}
	details := modelDetails{}
	for n := 0; n < openai.MaxModels && len(details) < maxListed && entries.More(); n++ {
		var m ollamaModel
		if entries.Decode(&m) != nil {
			continue
		}
		for _, name := range [...]string{m.Name, m.Model} { // the same, but for aliases
			if validModel(name) {
				details[name] = m.described()
			}
		}
	}
	return details, true
}

// ollamaModel is one entry of Ollama's list. Only newer ones tell capabilities and the context's length.
type ollamaModel struct {
	Name, Model, Digest string
	Size                int64
	ModifiedAt          string `json:"modified_at"`
	Capabilities        []string
	Details             struct {
		Family        string
		ParameterSize string `json:"parameter_size"`
		Quantization  string `json:"quantization_level"`
		ContextLength int64  `json:"context_length"`
	}
}

func (m *ollamaModel) described() *tunnel.ModelDetails {
	d := &tunnel.ModelDetails{
		Size: m.Size, Digest: m.Digest, Family: m.Details.Family, ParameterSize: m.Details.ParameterSize,
		Quantization: m.Details.Quantization, Capabilities: m.Capabilities, ContextLength: m.Details.ContextLength,
	}
	if t, err := time.Parse(time.RFC3339Nano, m.ModifiedAt); err == nil {
		d.Modified = max(t.Unix(), 0)
	}
	return d
}
