package gateway_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"iop/execution"
	"iop/state"
	"iop/tunnel"
)

// reload puts a new file in force.
func (e *edge) reload(path, text string) {
	e.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		e.t.Fatal(err)
	}
	if status, body := e.operate("POST", "/admin/v1/config/reload", ""); status != 200 {
		e.t.Fatalf("reload: %d %s", status, body)
	}
}

// waits waits until so many requests are in the queue.
func (e *edge) waits(n int) {
	e.t.Helper()
	e.eventually("requests wait", func() bool {
		var st struct{ Queued int }
		e.adminGet("/admin/v1/status", &st)
		return st.Queued == n
	})
}

// later sends a request, and returns where its answer will be.
func (e *edge) later(req *http.Request) chan answered {
	got := make(chan answered, 1)
	go func() {
		resp, err := e.client.Do(req)
		if err != nil {
			got <- answered{0, err.Error()}
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		got <- answered{resp.StatusCode, string(body)}
	}()
	return got
}

// TestReloadWithRequestsUnderWay: what runs goes on, what waits is looked at anew.
func TestReloadWithRequestsUnderWay(t *testing.T) {
	const before = `
routes:
  - model: chat
    aliases: [gpt]
    targets: [{node: old, model: m}]
  - model: gone
    targets: [{node: old, model: m}]
  - model: closed
    targets: [{node: old, model: m}]
`
	const after = `
routes:
  - model: talk
    aliases: [chat]
    targets: [{node: new, model: n}]
  - model: closed
    principals: [nobody]
    targets: [{node: new, model: n}]
`
	e, path := withRoutes(t, before)
	started, end := make(chan struct{}, 1), make(chan struct{})
	e.addNode("old", 1, func(_ context.Context, run *tunnel.NodeRun) {
		startStream(run)
		started <- struct{}{}
		<-end
		_ = run.Write([]byte(doneEvent), true)
		run.End(execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone})
	}, "m")
	sent := make(chan sentRun, 1)
	e.addNode("new", 1, capturing(sent, answerJSON(200, `{"new":true}`)), "n")

	running := e.do(e.request(http.MethodPost, chat, `{"model":"gpt","stream":true}`))
	defer running.Body.Close()
	<-started
	ask := func(body string, header ...string) chan answered {
		req := e.request(http.MethodPost, chat, body)
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		return e.later(req)
	}
	moved := ask(`{"model":"chat"}`)
	e.waits(1)
	gone := ask(`{"model":"gone"}`)
	goneInBand := ask(`{"model":"gone","stream":true}`, "X-IOP-Queue-Updates", "1")
	closed := ask(`{"model":"closed"}`)
	e.waits(4)
	e.reload(path, after)

	if got := <-moved; got.status != 200 || got.body != `{"new":true}` {
		t.Errorf("who waits for a route that moved: %+v", got)
	}
	if got := <-sent; got.request.Model != "n" || got.body != `{"model":"n"}` {
		t.Errorf("it is sent as %s to %s", got.body, got.request.Model)
	}
	for name, c := range map[string]chan answered{"gone": gone, "closed": closed} {
		if got := <-c; got.status != 404 || !strings.Contains(got.body, "model_not_found") {
			t.Errorf("who waits for a route that is %s: %+v", name, got)
		}
	}
	if got := <-goneInBand; got.status != 200 || !strings.HasPrefix(got.body, ": queued position=") || !strings.Contains(got.body, `"code":"model_not_found"`) || strings.Contains(got.body, "[DONE]") {
		t.Errorf("in-band: %+v", got)
	}
	close(end)
	if rest, err := io.ReadAll(bufio.NewReader(running.Body)); string(rest) != chunk("a")+doneEvent || err != nil {
		t.Errorf("what ran ended with %q, %v", rest, err)
	}
	e.idle()
}

// TestKeysEndWhileRequestsWait: who waits gets a target only if the key is still good for the model when its turn comes; who is
// sent on to another target, likewise.
func TestKeysEndWhileRequestsWait(t *testing.T) {
	t.Parallel()
	e, _ := withRoutes(t, "routes: [{model: chat, targets: [{model: m}], retry: {attempts: 1, on: [server_error]}}]")
	started, end := make(chan struct{}, 1), make(chan struct{})
	e.addNode("n1", 1, func(_ context.Context, run *tunnel.NodeRun) {
		started <- struct{}{}
		<-end
		answerJSON(500, `{"error":{"message":"failed"}}`)(context.Background(), run)
	}, "m")
	keys := map[string]string{}
	for _, name := range []string{"retried", "revoked", "narrowed", "kept"} {
		keys[name] = e.newKey(state.KeySpec{Name: name})
	}
	ask := func(name string) chan answered {
		var req *http.Request
		e.as(keys[name], func() { req = e.request(http.MethodPost, chat, `{"model":"chat"}`) })
		return e.later(req)
	}
	retried := ask("retried")
	<-started
	waiting := map[string]chan answered{"revoked": ask("revoked"), "narrowed": ask("narrowed"), "kept": ask("kept")}
	e.waits(3)
	for _, name := range []string{"retried", "revoked"} {
		key, err := e.store.FindKey(t.Context(), name)
		must(t, err)
		must(t, e.store.RevokeKey(t.Context(), key.ID, "test"))
	}
	key, err := e.store.FindKey(t.Context(), "narrowed")
	must(t, err)
	_, err = e.store.UpdateKey(t.Context(), key.ID, state.KeyChange{Routes: &[]string{"other"}})
	must(t, err)
	sent := make(chan sentRun, 8)
	e.addNode("n2", 8, capturing(sent, answerJSON(200, `{}`)), "m")
	close(end)
	if got := <-retried; got.status != 401 || !strings.Contains(got.body, "invalid_api_key") {
		t.Errorf("the other attempt of a revoked key: %+v", got)
	}
	for name, want := range map[string]answered{"revoked": {401, "invalid_api_key"}, "narrowed": {403, "model_not_allowed"}, "kept": {200, "{}"}} {
		if got := <-waiting[name]; got.status != want.status || !strings.Contains(got.body, want.body) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	e.idle()
	if len(sent) != 1 {
		t.Errorf("the provider got %d requests", len(sent))
	}
}

// TestReloadIsSeenWithoutBeingTold: the file is looked at now and then.
func TestReloadIsSeenWithoutBeingTold(t *testing.T) {
	e, path := withRoutes(t, "advertised_models: refuse\nroutes:\n  - model: one\n    targets: [{model: m}]\n")
	e.addNode("n1", 1, answerJSON(200, `{}`), "m")
	writeRoutes(t, path, "advertised_models: refuse\nroutes:\n  - model: two\n    targets: [{model: m}]\n")
	e.eventually("the new file is in force", func() bool { return e.models() == "two" })
	writeRoutes(t, path, "routes: [")
	e.eventually("the fault is in the log", func() bool {
		return strings.Contains(e.logs.String(), "the previous one stays in force")
	})
	if got := e.models(); got != "two" {
		t.Errorf("models %q", got)
	}
}
