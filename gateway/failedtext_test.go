package gateway_test

import (
	"fmt"
	"strings"
	"testing"
)

// TestErrorsWithText: a provider's error that holds what the model wrote is booked by its length, others cost nothing.
func TestErrorsWithText(t *testing.T) {
	text := strings.Repeat("word ", 4000)
	for name, test := range map[string]struct {
		status int
		body   string
		cost   bool
	}{
		"Groq":        {400, fmt.Sprintf(`{"error":{"message":"no JSON","code":"json_validate_failed","failed_generation":%q}}`, text), true},
		"llama.cpp":   {500, fmt.Sprintf(`{"error":{"code":500,"message":"Failed to parse input at pos 3: %s"}}`, text), true},
		"Ollama":      {500, fmt.Sprintf(`{"error":"error parsing tool call: raw='%s', err=EOF"}`, text), true},
		"a refusal":   {400, fmt.Sprintf(`{"error":{"message":"%s","type":"invalid_request_error"}}`, text), false},
		"an overload": {503, `{"error":{"message":"busy"}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, nil)
			e.addNode("n1", 1, answerJSON(test.status, test.body), "m")
			e.post(chat, `{"model":"m","messages":[{"role":"user","content":"hi"}]}`)
			e.idle()
			u := e.records()[0].Usage
			if !test.cost {
				if u.Known {
					t.Errorf("booked are %+v", u)
				}
			} else if want := int64(len(test.body) / 4); u.Input < 1 || u.Output != want || !u.Estimated {
				t.Errorf("booked are %+v, want %d of output", u, want)
			}
		})
	}
}
