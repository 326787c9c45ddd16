package openai

import (
	"slices"
	"strings"
	"testing"
)

// TestKnownParameters: each name is one that a default or a cap could have, is there once, and whatever the Edge or a Node's
// adapter reads of a request is among them.
func TestKnownParameters(t *testing.T) {
	t.Parallel()
	known := KnownParameters()
	for _, name := range otherParameters {
		if err := CheckParameter(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if name != strings.ToLower(name) {
			t.Errorf("%s: names are compared in lower case", name)
		}
	}
	all := slices.Sorted(slices.Values(known))
	for i, name := range all[1:] {
		if _, elsewhere := knownMembers[name]; name == all[i] && (!elsewhere || slices.Contains(otherParameters[:], name)) {
			t.Errorf("%s is listed twice", name)
		}
	}
	for _, name := range []string{
		"temperature", "top_k", "min_p", "seed", "stop", "frequency_penalty", "repetition_penalty", "max_tokens", "max_completion_tokens", "num_predict",
		"reasoning_effort", "thinking", "think", "tools", "response_format", "messages", "user", "metadata", "prompt_cache_key", "n", "best_of",
		"logprobs", "top_logprobs", "options", "keep_alive", "num_ctx", "t_max_predict_ms", "chat_template_kwargs", "provider", "service_tier",
	} {
		if !slices.Contains(known, name) {
			t.Errorf("%s is not known", name)
		}
	}
	for _, name := range []string{"max_token", "temprature", "top-k", ""} {
		if slices.Contains(known, name) {
			t.Errorf("%s is known", name)
		}
	}
}
