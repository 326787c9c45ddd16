package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"iop/gateway/admin"
)

// drainedBy answers as an Edge whose Node is in these states, one after the other. The last one stays.
func drainedBy(t *testing.T, states ...admin.Node) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_, _ = w.Write([]byte(`{"node":"n1"}`))
			return
		}
		states[0].Node = "n1"
		_ = json.NewEncoder(w).Encode(states[0])
		if len(states) > 1 {
			states = states[1:]
		}
	}))
	t.Cleanup(server.Close)
	t.Setenv("IOP_ADMIN_URL", server.URL)
	t.Setenv("IOP_ADMIN_TOKEN", "adm-iop_x")
}

func TestDrainWaits(t *testing.T) {
	busy := admin.Node{State: "draining", Drain: true, OpenRuns: 2}
	done := admin.Node{State: "drained", Drain: true}
	for name, test := range map[string]struct {
		states []admin.Node
		flags  string
		status int
		says   string
	}{
		"at once":      {[]admin.Node{done}, "", exitOK, "n1 is drained: it has no runs\n"},
		"after a run":  {[]admin.Node{busy, done}, "", exitOK, "n1 is drained: it has no runs\n"},
		"as JSON":      {[]admin.Node{busy, done}, "--json", exitOK, `"state":"drained"`},
		"not in time":  {[]admin.Node{busy}, "--timeout 50ms", exitFailed, "n1 still has 2 open runs after 50ms"},
		"late as JSON": {[]admin.Node{busy}, "--timeout 50ms --json", exitFailed, `"open_runs":2`},
		"it goes away": {[]admin.Node{busy, {State: "offline", LastCause: "connection_lost"}}, "", exitFailed, "n1 disconnected before its runs ended: connection_lost"},
		"resumed":      {[]admin.Node{busy, {State: "online", OpenRuns: 2}}, "", exitFailed, "n1 is no longer draining"},
	} {
		t.Run(name, func(t *testing.T) {
			drainedBy(t, test.states...)
			status, stdout, stderr := execute(t, append([]string{"drain", "n1", "--wait"}, strings.Fields(test.flags)...)...)
			if status != test.status || !strings.Contains(stdout+stderr, test.says) {
				t.Errorf("status %d: %q, %q", status, stdout, stderr)
			}
			if (status == exitOK) != (stderr == "") {
				t.Errorf("status %d and on standard error %q", status, stderr)
			}
		})
	}
}

func TestDrainRefusesWhatContradictsItself(t *testing.T) {
	for _, flags := range []string{"--wait --resume", "--timeout 5s", "--wait --timeout=-1s"} {
		if status, _, stderr := execute(t, append([]string{"drain", "n1"}, strings.Fields(flags)...)...); status != exitUsage {
			t.Errorf("%s: status %d, %s", flags, status, stderr)
		}
	}
}
