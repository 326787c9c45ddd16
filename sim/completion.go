package sim

import (
	"encoding/json"
	"strings"
)

// prompts is an input in any of its forms: a string, a list of strings, tokens, lists of tokens, or parts with text.
// Tokens become the text that /detokenize makes of them.
type prompts []string

func (p *prompts) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*p = prompts{one}
		return nil
	}
	var many []string
	if json.Unmarshal(b, &many) == nil {
		*p = many
		return nil
	}
	var tokens []int
	if json.Unmarshal(b, &tokens) == nil {
		*p = prompts{textOf(tokens)}
		return nil
	}
	var lists [][]int
	if json.Unmarshal(b, &lists) == nil {
		for _, l := range lists {
			*p = append(*p, textOf(l))
		}
		return nil
	}
	var parts words
	if json.Unmarshal(b, &parts) != nil {
		return &requestError{"input", "must be a string, a list of strings, tokens, or parts"}
	}
	*p = prompts{parts.text}
	return nil
}

// bytes is the length of all texts.
func (p prompts) bytes() int { return len(strings.Join(p, "")) }

type completionRequest struct {
	order
	Model         string  `json:"model"`
	Prompt        prompts `json:"prompt"`
	Stream        bool    `json:"stream"`
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	N         *int `json:"n"`
	MaxTokens *int `json:"max_tokens"`
}

// decodeCompletion reads POST /v1/completions.
func decodeCompletion(_ *exchange, body []byte) (*ask, error) {
	var in completionRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	if len(in.Prompt) == 0 {
		return nil, &requestError{"prompt", "Missing required parameter: 'prompt'."}
	}
	a := &ask{
		serve: serveCompletion, model: in.Model, stream: in.Stream, orders: in.list(),
		limit: limitOf(in.MaxTokens), n: len(in.Prompt),
		text: in.Prompt[len(in.Prompt)-1], input: countTokens(in.Prompt.bytes()),
	}
	if in.N != nil {
		if *in.N < 1 || *in.N > 128 {
			return nil, &requestError{"n", "Invalid 'n': must be 1 to 128."}
		}
		a.n *= *in.N
	}
	if o := in.StreamOptions; o != nil {
		a.streamOptions, a.includeUsage = true, o.IncludeUsage
	}
	return a, nil
}

func serveCompletion(x *exchange, a *ask) error {
	p := x.planFor(a)
	id, created := x.id("cmpl-"), unixNow()
	if a.stream {
		return x.speak(&p, newChunkStream(x, a, &p, id, created, true), sseType)
	}
	if err := x.compute(&p); err != nil {
		return err
	}
	choices := make([]any, a.n)
	for i := range choices {
		choices[i] = map[string]any{"index": i, "text": x.fullText(&p), "logprobs": nil, "finish_reason": p.finish}
	}
	out := map[string]any{"id": id, "object": "text_completion", "created": created, "model": a.model, "choices": choices}
	if x.k.usage != "never" {
		out["usage"] = p.usage.chat()
	}
	return x.deliver("application/json", marshal(out))
}
