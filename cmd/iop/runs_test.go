package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"iop/execution"
	"iop/gateway/admin"
)

// shownRun has another value in each member that is shown.
var shownRun = admin.Run{
	ID: "run_1", RequestID: "req_1", Key: "key_1", KeyName: "alice", Principal: "team", Route: "chat", Operation: "responses", Model: "m",
	State: "ended", Phase: "phase", Outcome: "failed", Code: "provider_error", Detail: "detail", Status: 502, Started: time.Now().Add(-3 * time.Hour),
	QueueMS: 50_000, TTFBMS: 60_000, DurationMS: 4_500_000, Node: "gpu-3", Provider: "vllm", Reason: "affinity", Attempts: 2,
	Usage: &execution.Usage{Input: 12, Output: 28, Known: true, Estimated: true},
}

// TestRunAsShown: each value beside its own name, and estimates marked.
func TestRunAsShown(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := printRun(&out, &shownRun); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for line := range strings.Lines(out.String()) {
		name, value, _ := strings.Cut(line, "  ")
		got[name] = strings.TrimSpace(value)
	}
	want := map[string]string{
		"run": "run_1", "request": "req_1", "state": "failed: provider_error", "status": "502", "key": "alice (key_1) of team", "operation": "responses",
		"model": "m", "route": "chat", "node": "gpu-3", "provider": "vllm", "reason": "affinity", "attempts": "2",
		"started": shownRun.Started.Local().Format(time.DateTime), "queued": "50s", "first byte": "1m", "took": "1h", "tokens": "~12+28", "detail": "detail",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, c := range [][3]string{
		{"deadline", "queue_timeout", "failed: queue_timeout (deadline)"}, {"deadline", "", "failed: deadline"}, {"", "context_length_exceeded", "failed: context_length_exceeded"},
		{"", "", "failed"}, {"no_node_available", "no_node_available", "failed: no_node_available"},
	} {
		coded := shownRun
		if coded.Code, coded.ClientCode = c[0], c[1]; viewRun(&coded).state != c[2] {
			t.Errorf("got %q, want %q", viewRun(&coded).state, c[2])
		}
	}
	reported := shownRun
	reported.Usage = &execution.Usage{Input: 12, Output: 28, Known: true}
	if tokens := viewRun(&reported).tokens; tokens != "12+28" {
		t.Errorf("what the provider reported is shown as %q", tokens)
	}
}

// TestRunsInRows: the table and the lines of --follow have each value at its place.
func TestRunsInRows(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"RUN": "run_1", "STATE": "failed: provider_error", "KEY": "alice", "ROUTE": "chat", "NODE": "gpu-3", "PROVIDER": "vllm", "STARTED": "3h",
		"QUEUE": "50s", "TOOK": "1h", "TOKENS": "~12+28", "REASON": "affinity", "DETAIL": "detail",
	}
	got, row := map[string]string{}, runRow(&shownRun)
	for i, name := range strings.Fields(runHeader) {
		got[name] = row[i]
	}
	if !maps.Equal(got, want) || len(row) != len(want) {
		t.Errorf("got %q, want %q", got, want)
	}
	line, err := json.Marshal(shownRun)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := printRunLine(&out, line, false); err != nil {
		t.Fatal(err)
	}
	followed := fmt.Sprintf("%s  run_1  failed: provider_error    alice         chat                  gpu-3/vllm  queue 50s  took 1h  tokens ~12+28  affinity  detail\n",
		shownRun.Started.Local().Format(time.TimeOnly))
	if out.String() != followed {
		t.Errorf("got %q, want %q", out.String(), followed)
	}
}
