package registry

import (
	"testing"

	"iop/gateway/admission"
	"iop/openai"
	"iop/tunnel"
)

func TestWhatAProviderIsAskedFor(t *testing.T) {
	for name, tt := range map[string]struct {
		provider tunnel.ProviderInfo
		runs     admission.Kinds
		has, not []openai.OpID
	}{
		"what it was found to have": {
			provider: tunnel.ProviderInfo{Adapter: "openai", OperationsKnown: true, Operations: []string{"embeddings", "of a newer Node"}, Runs: true},
			runs:     admission.KindOpenAI, has: []openai.OpID{openai.OpEmbeddings}, not: []openai.OpID{openai.OpChatCompletions, openai.OpMessages},
		},
		"found to have nothing": {
			provider: tunnel.ProviderInfo{Adapter: "ollama", OperationsKnown: true},
			not:      []openai.OpID{openai.OpOllamaChat, openai.OpChatCompletions},
		},
		"unknown, of an older Node": {
			provider: tunnel.ProviderInfo{Adapter: "openai"},
			has:      []openai.OpID{openai.OpChatCompletions, openai.OpResponses, openai.OpMessages, openai.OpRerank},
			not:      []openai.OpID{openai.OpOllamaChat, openai.OpOllamaEmbeddings},
		},
		"unknown, an Ollama": {
			provider: tunnel.ProviderInfo{Adapter: "ollama"},
			has:      []openai.OpID{openai.OpChatCompletions, openai.OpOllamaChat, openai.OpOllamaEmbed},
		},
		"unknown, an Anthropic": {
			provider: tunnel.ProviderInfo{Adapter: "anthropic"},
			has:      []openai.OpID{openai.OpMessages, openai.OpCountTokens},
			not:      []openai.OpID{openai.OpResponses, openai.OpOllamaChat, openai.OpEmbeddings},
		},
		"a kind that this Edge does not know": {
			provider: tunnel.ProviderInfo{Adapter: "gemini", OperationsKnown: true, Runs: true},
			runs:     admission.KindOther, not: []openai.OpID{openai.OpChatCompletions},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := offers(&tunnel.NodeInfo{Providers: []tunnel.ProviderInfo{tt.provider}}, false, nil)[0]
			if got.Runs != tt.runs {
				t.Errorf("runs %v, want %v", got.Runs, tt.runs)
			}
			for _, op := range tt.has {
				if !got.Raw.Has(op) {
					t.Errorf("without %v", op)
				}
			}
			for _, op := range tt.not {
				if got.Raw.Has(op) {
					t.Errorf("with %v", op)
				}
			}
		})
	}
}
