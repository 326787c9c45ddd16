package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"iop/execution"
	"iop/gateway"
	"iop/gateway/admin"
	"iop/state"
	"iop/tunnel"
)

// records are the usage records of all runs, the oldest first. Those of runs that the Edge counts as ended are there.
func (e *edge) records() (list []state.UsageRecord) {
	e.t.Helper()
	var usage admin.Usage
	e.adminGet("/admin/v1/usage", &usage) // writes what is still in memory
	err := e.store.EachUsage(e.t.Context(), state.UsageQuery{}, func(r state.UsageRecord) error {
		list = append(list, r)
		return nil
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return list
}

// TestUsageRecord: each number in its place.
func TestUsageRecord(t *testing.T) {
	e, _ := withRoutes(t, "routes:\n  - model: chat\n    aliases: [gpt]\n    groups:\n      - targets: [{node: bad, model: real}]\n      - targets: [{node: good, model: other}]\n")
	e.addNode("bad", 1, answerJSON(503, `{}`), "real")
	begun := make(chan struct{})
	e.addNode("good", 1, func(_ context.Context, run *tunnel.NodeRun) {
		_ = run.Head(head(200, "text/event-stream"))
		_ = run.Write([]byte(chunk("x")), true)
		<-begun
		time.Sleep(20 * time.Millisecond) // so that the first byte, which the client has, and the end differ
		_ = run.Write([]byte(doneEvent), true)
		run.End(execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone,
			Usage: execution.Usage{Input: 11, Output: 7, Cached: 5, Reasoning: 3, Known: true}})
	}, "other")
	key, secret, err := e.store.CreateKey(t.Context(), state.KeySpec{Name: "k", Owner: "team-a"})
	if err != nil {
		t.Fatal(err)
	}
	e.key = secret.Reveal()
	before := time.Now().Truncate(time.Millisecond)
	resp := e.do(e.request(http.MethodPost, chat, `{"model":"gpt","stream":true,"session_id":"job-7"}`))
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, len(chunk("x")))); err != nil {
		t.Fatal(err)
	}
	close(begun)
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	h := resp.Header
	e.idle()
	records := e.records()
	if len(records) != 1 {
		t.Fatalf("%d records", len(records))
	}
	r := records[0]
	if r.Started.Before(before) || r.FirstToken <= 0 || r.Duration < r.FirstToken+15*time.Millisecond || r.Duration > time.Since(before) {
		t.Errorf("times %v, %v, %v", r.Started, r.FirstToken, r.Duration)
	}
	r.Started, r.FirstToken, r.Duration = time.Time{}, 0, 0
	want := state.UsageRecord{
		Run: execution.RunID(h.Get("X-Iop-Run-Id")), Key: key.ID, Principal: "team-a", Route: "chat", Operation: "chat.completions",
		Node: "good", Provider: "p", Model: "other", Outcome: execution.Completed, Status: 200, Attempts: 2, Stream: true, Session: "job-7",
		Usage: execution.Usage{Input: 11, Output: 7, Cached: 5, Reasoning: 3, Known: true},
	}
	if r != want {
		t.Errorf("the record is\n%+v, want\n%+v", r, want)
	}
	// What the caller sees of it: nothing of who ran it, or of how much there is.
	view := e.get("/iop/v1/runs/" + h.Get("X-Iop-Run-Id"))
	var run struct {
		Reason, Model, State string
		Attempts             int
		Usage                execution.Usage
	}
	if err := json.Unmarshal([]byte(view), &run); err != nil {
		t.Fatal(err)
	}
	if run.Reason != "only_target" || run.Model != "gpt" || run.Attempts != 2 || run.Usage != want.Usage {
		t.Errorf("the caller sees %s", view)
	}
	for _, name := range []string{"good", `"p"`, "other", "1/1", "group", "team-a", string(key.ID)} {
		if strings.Contains(view, name) {
			t.Errorf("the caller sees %q in %s", name, view)
		}
	}
}

// TestUsageRecordOfNormalizedRun: it says that an adapter ran it.
func TestUsageRecordOfNormalizedRun(t *testing.T) {
	e := newEdge(t, nil)
	e.addProvider("n1", runsOn("anthropic"), answerEvents(completed, started, hello, stop), "m")
	if status, _, answer := e.post(chat, `{"model":"m","messages":[{"role":"user","content":"hi"}]}`); status != 200 {
		t.Fatalf("%d: %s", status, answer)
	}
	e.idle()
	if records := e.records(); len(records) != 1 || !records[0].Normalized || records[0].Session != "" {
		t.Errorf("%+v", records)
	}
}

// TestUsageOfManyRoutes: metrics tell some hundred routes apart, the books all of them.
func TestUsageOfManyRoutes(t *testing.T) {
	var file strings.Builder
	file.WriteString("routes:\n")
	for i := range 300 {
		fmt.Fprintf(&file, "  - model: route-%d\n    targets: [{model: m}]\n", i)
	}
	e, _ := withRoutes(t, file.String())
	e.addNode("n1", 1, answerJSON(200, `{}`), "m")
	for i := range 300 {
		e.post(chat, fmt.Sprintf(`{"model":"route-%d"}`, i))
	}
	e.idle()
	for i, r := range e.records() {
		if !strings.HasPrefix(r.Route, "route-") {
			t.Fatalf("record %d has the route %q", i, r.Route)
		}
	}
}

// TestRetentionOfLeases: what is too old of runs is too old of their leases as well; changes of slots stay.
func TestRetentionOfLeases(t *testing.T) {
	store, err := state.Open(t.Context(), "sqlite::memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	now := time.Now()
	for _, at := range []time.Time{now.Add(-time.Hour), now} {
		entry := state.AuditEntry{At: at, Actor: "edge", Action: state.AuditLeaseIssued, Outcome: state.AuditDone, Slot: "s", Run: "run_x", Lease: "l"}
		change := state.AuditEntry{At: at, Actor: "operator", Action: state.AuditSlotSet, Outcome: state.AuditDone, Slot: "s"}
		if err := store.Audit(t.Context(), entry, change); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := gateway.Prune(t.Context(), store, now.Add(-time.Minute)); err != nil {
		t.Fatal(err)
	}
	left, _, err := store.AuditEntries(t.Context(), state.AuditQuery{})
	if err != nil || len(left) != 3 {
		t.Errorf("%d entries are left, %v: %+v", len(left), err, left)
	}
}
