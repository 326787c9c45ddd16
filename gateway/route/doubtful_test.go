package route_test

import (
	"slices"
	"testing"

	"iop/gateway/route"
)

// TestUnknownParameters: a mistyped default or cap is in force, and is listed with what was probably meant.
func TestUnknownParameters(t *testing.T) {
	t.Parallel()
	table, err := route.Parse("iop.yaml", []byte(`routes:
  - model: chat
    parameters:
      defaults: {temprature: 0.5, temperature: 1, Seed: 3, chat_template_kwargs: {enable_thinking: false}}
      caps: {max_token: 100, max_tokens: 100, top_k: 50, my_engines_own: 3}
  - {model: other, parameters: {defaults: {num_ctx: 4096, provider: {order: [a]}}, caps: {n: 1}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []route.UnknownParameter{
		{Route: "chat", Path: "parameters.defaults.temprature", Similar: "temperature"}, {Route: "chat", Path: "parameters.defaults.Seed", Similar: "seed"},
		{Route: "chat", Path: "parameters.caps.max_token", Similar: "max_tokens"}, {Route: "chat", Path: "parameters.caps.my_engines_own"},
	}
	if got := table.UnknownParameters(); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
