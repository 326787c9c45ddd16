package gateway_test

import (
	"strconv"
	"strings"
	"testing"
)

// TestOperatorsSeeTheProvidersStatus: the client gets an answer that fits its protocol; the operator's run has what the provider
// answered, whether it counts as the provider's failure or as the request's.
func TestOperatorsSeeTheProvidersStatus(t *testing.T) {
	for status, want := range map[int]string{401: "check the key", 403: "check the key", 429: "429", 500: "500", 503: "503", 400: "400"} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			e := newEdge(t, nil)
			e.addNode("n1", 4, answerJSON(status, `{"error":{"message":"no"}}`), "m")
			e.post(chat, `{"model":"m","messages":[]}`)
			e.idle()
			if detail := e.lastRun().Detail; !strings.HasPrefix(detail, "the provider answered "+strconv.Itoa(status)) || !strings.Contains(detail, want) {
				t.Errorf("%q", detail)
			}
		})
	}
}
