package sim

import "encoding/json"

// The simulator's tokens: up to three bytes each, the bytes in the low 24 bits, their number above. So text and
// tokens turn into each other without a vocabulary, and nothing is lost.
const tokenBytes = 3

func tokensOf(text string) []int {
	out := make([]int, 0, countTokens(len(text)))
	for len(text) > 0 {
		n := min(tokenBytes, len(text))
		t := n
		for i := range tokenBytes {
			t <<= 8
			if i < n {
				t |= int(text[i])
			}
		}
		out, text = append(out, t), text[n:]
	}
	return out
}

func textOf(tokens []int) string {
	b := make([]byte, 0, tokenBytes*len(tokens))
	for _, t := range tokens {
		n := t >> 24
		if n < 1 || n > tokenBytes { // no token of ours
			b = append(b, '?')
			continue
		}
		for i := range n {
			b = append(b, byte(t>>(16-8*i)))
		}
	}
	return string(b)
}

// decodeTokenize reads POST /tokenize in vLLM's form (prompt or messages) and in llama.cpp's (content).
func decodeTokenize(_ *exchange, body []byte) (*ask, error) {
	var in struct {
		Model    string        `json:"model"`
		Prompt   string        `json:"prompt"`
		Content  string        `json:"content"`
		Messages []chatMessage `json:"messages"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	text := in.Prompt + in.Content
	for _, m := range in.Messages {
		text += m.Content.text
	}
	return &ask{model: in.Model, anyModel: true, text: text, n: 1, serve: func(x *exchange, _ *ask) error {
		if err := x.turn(); err != nil {
			return err
		}
		tokens := tokensOf(text)
		if x.s.config.Flavour == LlamaCPP {
			return x.deliver("application/json", marshal(map[string]any{"tokens": tokens}))
		}
		return x.deliver("application/json", marshal(map[string]any{
			"count": len(tokens), "max_model_len": contextLength, "tokens": tokens, "token_strs": nil,
		}))
	}}, nil
}

// decodeDetokenize reads POST /detokenize.
func decodeDetokenize(_ *exchange, body []byte) (*ask, error) {
	var in struct {
		Model  string `json:"model"`
		Tokens []int  `json:"tokens"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	return &ask{model: in.Model, anyModel: true, n: 1, serve: func(x *exchange, _ *ask) error {
		if err := x.turn(); err != nil {
			return err
		}
		key := "prompt"
		if x.s.config.Flavour == LlamaCPP {
			key = "content"
		}
		return x.deliver("application/json", marshal(map[string]string{key: textOf(in.Tokens)}))
	}}, nil
}
