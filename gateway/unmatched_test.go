package gateway_test

import (
	"fmt"
	"strings"
	"testing"

	"iop/gateway/admin"
	"iop/state"
)

// What a key may use and nothing has is named, with what was probably meant, as soon as there is anything to compare with.
func TestUnmatchedModelsOfKeys(t *testing.T) {
	e, path := withRoutes(t, "routes: []\n")
	probe, _, err := e.store.CreateKey(t.Context(), state.KeySpec{Name: "probe"})
	if err != nil {
		t.Fatal(err)
	}
	unmatched := func(routes string) string {
		t.Helper()
		var key admin.Key
		patterns := strings.Split(routes, " ")
		if _, err := e.store.UpdateKey(t.Context(), probe.ID, state.KeyChange{Routes: &patterns}); err != nil {
			t.Fatal(err)
		}
		e.adminGet("/admin/v1/keys/probe", &key)
		return fmt.Sprint(key.Unmatched)
	}
	if got := unmatched("anything"); got != "[]" {
		t.Errorf("before any Node: %s", got)
	}
	away := e.addNode("n0", 1, answerJSON(200, `{}`), "away")
	e.addNode("n1", 1, answerJSON(200, `{}`), "llama3.2:latest", "gpt-oss:20b", "hidden")
	away.stop()
	e.eventually("n0 is offline", func() bool { return e.nodeState("n0") == "offline" })
	writeRoutes(t, path, "routes:\n  - {model: chat, aliases: [gpt-4o], principals: [team], targets: [{model: hidden}]}\n")
	if err := e.server.Reload(); err != nil {
		t.Fatal(err)
	}
	for routes, want := range map[string]string{
		"*":               "[]",
		"llama* gpt-4o":   "[]",
		"llama3.2:latest": "[]",
		"away":            "[]", // its Node may come back
		"lama3.2":         `[no route and no connected Node has the model "lama3.2"; did you mean "llama3.2:latest"?]`,
		"llama3.2":        `[no route and no connected Node has the model "llama3.2"; did you mean "llama3.2:latest"?]`,
		"hidden":          `[no route and no connected Node has the model "hidden"; did you mean "chat"?]`,
		"gpt-4o zzz y-*":  `[no route and no connected Node has the model "zzz" no route and no connected Node has the model "y-*"]`,
	} {
		if got := unmatched(routes); got != want {
			t.Errorf("%s: %s, want %s", routes, got, want)
		}
	}
}
