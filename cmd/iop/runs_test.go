package main

import (
	"strings"
	"testing"
	"time"

	"iop/execution"
	"iop/gateway/admin"
)

// TestRunAsShown: each value beside its own name, and estimates marked.
func TestRunAsShown(t *testing.T) {
	t.Parallel()
	run := admin.Run{ID: "run_1", Started: time.Now().Add(-time.Hour), QueueMS: 50_000, DurationMS: 75_000,
		Usage: &execution.Usage{Input: 12, Output: 28, Known: true, Estimated: true}}
	var out strings.Builder
	if err := printRun(&out, &run); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for line := range strings.Lines(out.String()) {
		name, value, _ := strings.Cut(line, "  ")
		got[name] = strings.TrimSpace(value)
	}
	for name, want := range map[string]string{"queued": brief(50 * time.Second), "took": brief(75 * time.Second), "tokens": "~12+28"} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q in\n%s", name, got[name], want, out.String())
		}
	}
	run.Usage.Estimated = false
	if cells := runRow(&run); cells[9] != "12+28" {
		t.Errorf("what the provider reported is shown as %q", cells[9])
	}
}
