package sim

import (
	"bytes"
	"encoding/json"
	"strings"
)

// ask is what any endpoint's request comes down to.
type ask struct {
	serve    func(x *exchange, a *ask) error // never nil
	model    string
	anyModel bool // the endpoint does not need one
	stream   bool
	// text is what the answer echoes: the last user message, without the knobs at its beginning.
	text   string
	orders []string // other places that may hold knobs; later ones win
	input  int      // tokens of all messages
	limit  int      // of output tokens; unset where the client gave none
	n      int      // answers wanted, at least 1

	tools    []tool
	toolMode string // "", auto, none, required
	toolName string // the one tool that must be called, or ""
	answered bool   // the last message is a tool's result: no further call

	schema     json.RawMessage // the JSON Schema that the text must satisfy, or nil
	jsonObject bool            // any JSON object will do

	streamOptions bool // the client sent stream_options
	includeUsage  bool
}

// tool is a function that the client offers.
type tool struct {
	name       string
	parameters json.RawMessage // JSON Schema, or nil
}

// words is message content in any of its forms: a string, a list of parts, null. Only text is kept: images and audio
// stay in the body, however large.
type words struct {
	text       string
	size       int  // bytes of text and of what was not kept
	toolResult bool // a part is the result of a tool (Anthropic)
}

func (w *words) UnmarshalJSON(b []byte) error {
	*w = words{size: len(b)}
	switch {
	case bytes.Equal(b, []byte("null")):
		w.size = 0
		return nil
	case b[0] == '"':
		err := json.Unmarshal(b, &w.text)
		w.size = len(w.text)
		return err
	}
	var parts []struct {
		Type    string `json:"type"`
		Text    string `json:"text"`
		Content *words `json:"content"`
	}
	if err := json.Unmarshal(b, &parts); err != nil {
		return err
	}
	var all []string
	for _, p := range parts {
		w.toolResult = w.toolResult || p.Type == "tool_result"
		if p.Text != "" {
			all = append(all, p.Text)
		}
		if p.Content != nil && p.Content.text != "" {
			all = append(all, p.Content.text)
		}
	}
	w.text = strings.Join(all, "\n")
	return nil
}

// order is a place for knobs inside the JSON body that SDKs pass on as it is.
type order struct {
	User     json.RawMessage `json:"user"`
	SafetyID json.RawMessage `json:"safety_identifier"`
	Metadata json.RawMessage `json:"metadata"`
}

func (o order) list() []string {
	var out []string
	var metadata map[string]any
	if json.Unmarshal(o.Metadata, &metadata) == nil {
		for _, key := range []string{"sim", "user_id"} {
			if s, ok := metadata[key].(string); ok && (key == "sim" || strings.HasPrefix(s, "sim:")) {
				out = append(out, "sim:"+strings.TrimPrefix(s, "sim:"))
			}
		}
	}
	for _, raw := range []json.RawMessage{o.SafetyID, o.User} {
		var s string
		if json.Unmarshal(raw, &s) == nil {
			out = append(out, s)
		}
	}
	return out
}

// countTokens is the simulator's tokenizer: three bytes make a token.
func countTokens(bytes int) int { return (bytes + 2) / 3 }

func limitOf(given ...*int) int {
	for _, g := range given {
		if g != nil {
			return max(0, *g)
		}
	}
	return unset
}

// toolChoice reads tool_choice in OpenAI's and Anthropic's forms.
func (a *ask) toolChoice(raw json.RawMessage) {
	if len(raw) == 0 {
		return
	}
	var mode string
	if json.Unmarshal(raw, &mode) == nil {
		a.toolMode = mode
		return
	}
	var object struct {
		Type     string `json:"type"`
		Name     string `json:"name"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	if json.Unmarshal(raw, &object) != nil {
		return
	}
	a.toolMode = object.Type
	a.toolName = object.Name + object.Function.Name
	switch object.Type {
	case "any", "function", "tool":
		a.toolMode = "required"
	}
}
