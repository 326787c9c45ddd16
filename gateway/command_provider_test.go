package gateway

import (
	"errors"
	"testing"

	"iop/execution"
	"iop/gateway/admin"
	"iop/tunnel"
)

// Which provider a call of the Ollama API goes to: the one that is named, else the only one; never a guess.
func TestOllamaProvider(t *testing.T) {
	ollama := func(id execution.ProviderID) tunnel.ProviderInfo {
		return tunnel.ProviderInfo{ID: id, Adapter: "ollama", Engine: "ollama"}
	}
	old := tunnel.ProviderInfo{ID: "old", Adapter: "ollama"} // of a Node that does not tell engines
	vllm := tunnel.ProviderInfo{ID: "v", Adapter: "openai", Engine: "vllm"}
	for _, c := range []struct {
		has   []tunnel.ProviderInfo
		named execution.ProviderID
		want  execution.ProviderID
		code  string
	}{
		{[]tunnel.ProviderInfo{vllm, ollama("a")}, "", "a", ""},
		{[]tunnel.ProviderInfo{vllm, old}, "", "old", ""},
		{[]tunnel.ProviderInfo{ollama("a"), ollama("b")}, "b", "b", ""},
		{[]tunnel.ProviderInfo{ollama("a"), ollama("b")}, "", "", "provider_required"},
		{[]tunnel.ProviderInfo{vllm}, "", "", "not_ollama"},
		{[]tunnel.ProviderInfo{vllm, ollama("a")}, "v", "", "not_ollama"},
		{[]tunnel.ProviderInfo{ollama("a")}, "b", "", "provider_not_found"},
		{nil, "", "", "not_ollama"},
	} {
		got, err := ollamaProvider(&tunnel.NodeInfo{Providers: c.has}, c.named)
		failure, _ := errors.AsType[*admin.CommandError](err)
		if got != c.want || (failure == nil) != (c.code == "") || failure != nil && failure.Code != c.code {
			t.Errorf("%v, %q: %q, %v", c.has, c.named, got, err)
		}
	}
}
