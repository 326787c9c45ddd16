package sim

import (
	"encoding/json"
	"strings"
	"testing"
)

// contentOf joins the text of a streamed chat answer.
func contentOf(t *testing.T, body string) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.SplitSeq(body, "\n") {
		data, ok := strings.CutPrefix(line, "data: {")
		if !ok {
			continue
		}
		var chunk struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
		}
		if err := json.Unmarshal([]byte("{"+data), &chunk); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		for _, c := range chunk.Choices {
			b.WriteString(c.Delta.Content)
		}
	}
	return b.String()
}
