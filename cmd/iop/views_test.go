package main

import (
	"encoding/csv"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"iop/gateway/admin"
)

// fakeAdmin answers the admin API's paths with values, and notes what it was asked.
type fakeAdmin struct {
	answers map[string]any // by path; a string goes out as it is
	asked   []string       // method, path and query
}

func newFakeAdmin(t *testing.T, answers map[string]any) *fakeAdmin {
	t.Helper()
	f := &fakeAdmin{answers: answers}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.asked = append(f.asked, r.Method+" "+r.URL.RequestURI())
		switch answer := f.answers[r.URL.Path].(type) {
		case nil:
			w.WriteHeader(http.StatusNotFound)
		case admin.ErrorBody:
			w.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(w).Encode(map[string]any{"error": answer})
		case string:
			_, _ = w.Write([]byte(answer))
		default:
			_ = json.NewEncoder(w).Encode(answer)
		}
	}))
	t.Cleanup(server.Close)
	t.Setenv("IOP_ADMIN_URL", server.URL)
	t.Setenv("IOP_ADMIN_TOKEN", "adm-iop_x")
	return f
}

// shows runs a command that must succeed, and compares what it prints, line by line without the spaces at the ends.
func shows(t *testing.T, args, want string) {
	t.Helper()
	status, stdout, stderr := execute(t, strings.Fields(args)...)
	if status != exitOK {
		t.Fatalf("iop %s: status %d: %s", args, status, stderr)
	}
	var lines []string
	for line := range strings.Lines(stdout) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	if got := strings.Join(lines, "\n"); got != strings.Trim(want, "\n") {
		t.Errorf("iop %s:\n%s\nwant:\n%s", args, got, want)
	}
}

func TestRoutesTable(t *testing.T) {
	soon := time.Now().Add(90*time.Second + 500*time.Millisecond)
	target := admin.Target{Node: "gpu-1", Provider: "vllm", Model: "big", InService: true, Breaker: "closed", InFlight: 1, Capacity: 4, Weight: 3, Loaded: true}
	resting, open, half, gone := target, target, target, target
	resting.Resting, resting.RestingUntil, open.RestingUntil, open.Breaker, half.Breaker, gone.InService = true, &soon, &soon, "open", "half_open", false
	newFakeAdmin(t, map[string]any{"/admin/v1/routes": listing[admin.Route]{[]admin.Route{
		{Name: "chat", Policy: "weighted", Waiting: 2, Groups: []admin.Group{
			{When: "full", Targets: []admin.Target{target, resting, open, half, gone}}, {When: "down", Targets: []admin.Target{}},
		}},
		{Name: "m", Policy: "least_busy", Advertised: true, Groups: []admin.Group{}},
	}}, "/admin/v1/config": admin.Configuration{ConfigStatus: admin.ConfigStatus{Path: "iop.yaml"}, AdvertisedModels: "serve", Coverage: admin.Coverage{
		Unrouted: []string{"m", "n\x1b"}, Reserved: []admin.ReservedModel{{Model: "big", Route: "chat", Limits: []string{"principals", "caps"}}},
		Missing: []admin.MissingTarget{{Route: "chat", TargetSpec: admin.TargetSpec{Node: "gpu-*", Provider: "o", Model: "l"}, Similar: "l:latest"}},
		Absent:  []admin.AbsentPrincipal{{Route: "chat", Principal: "anna", Key: "key:x"}, {Route: "chat", Principal: "b", Similar: "bb"}, {Route: "m", Principal: "c"}},
		Slots:   []admin.AbsentSlot{{Route: "chat", Slot: "openia", Similar: "openai"}, {Route: "m", Slot: "x"}},
		Unknown: []admin.UnknownParameter{{Route: "chat", Path: "parameters.caps.max_token", Similar: "max_tokens"}, {Route: "m", Path: "parameters.defaults.x"}},
	}}})
	shows(t, "routes", `
ROUTE  POLICY      WAITING  GROUP         NODE   PROVIDER  MODEL  STATE                 LOAD  WEIGHT  LOADED
chat   weighted    2        1             gpu-1  vllm      big    in service            1/4   3       yes
chat   weighted    2        1             gpu-1  vllm      big    resting, for 1m       1/4   3       yes
chat   weighted    2        1             gpu-1  vllm      big    breaker open, for 1m  1/4   3       yes
chat   weighted    2        1             gpu-1  vllm      big    breaker half open     1/4   3       yes
chat   weighted    2        1             gpu-1  vllm      big    out of service        1/4   3       yes
chat   weighted    2        2, when down  -      -         -      no target             -     -       -
m      least_busy  0        -             -      -         -      no target             -     -       -
served without a route:
  m
  n�
served only through a route, which limits them:
  big: chat (principals, caps)
targets that no connected Node offers:
  chat: l on gpu-* at o, but l:latest
principals that no live API key has:
  chat: anna; the principal of the key with this name is key:x
  chat: b; did you mean bb?
  m: c
slots that do not exist:
  chat: openia; did you mean openai?
  m: x
defaults and caps that no known API or engine has:
  chat: parameters.caps.max_token; did you mean max_tokens?
  m: parameters.defaults.x`)
}

func TestQueueTable(t *testing.T) {
	newFakeAdmin(t, map[string]any{"/admin/v1/queue": listing[admin.Queue]{[]admin.Queue{{
		Route: "chat", Waiting: 3, Limit: 1024, OldestMS: 1500, IntervalMS: 250,
		Principals: []admin.QueuedPrincipal{{Principal: "team-a", Waiting: 2, Weight: 3}, {Principal: "key:x", Waiting: 1, Weight: 1}},
	}, {Route: "m", Waiting: 1, Limit: 2, OldestMS: 10}}}})
	shows(t, "queue", `
ROUTE  WAITING  LIMIT  OLDEST  PACE          PRINCIPAL  THEIRS  WEIGHT
chat   3        1024   1s      one in 250ms  team-a     2       3
chat   3        1024   1s      one in 250ms  key:x      1       1
m      1        2      10ms    -             -          -       -`)
}

func TestUsageTable(t *testing.T) {
	from, to := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)
	usage := admin.Usage{From: from, To: to, By: []string{"key", "day"}, Data: []admin.UsageRow{
		{Key: "k1", Day: "2026-03-01", Runs: 3, Completed: 2, Failed: 1, Input: 1000, Output: 20, Cached: 5, Estimated: 2, QueueMS: 10, FirstTokenMS: 200, DurationMS: 1000},
		{Key: "k2", Day: "2026-03-02", Runs: 1, Completed: 1, Input: 5, Output: 7, Reasoning: 3, QueueMS: 50, DurationMS: 3000},
		{Day: "2026-03-02", Runs: 1, Rejected: 1},
	}}
	f := newFakeAdmin(t, map[string]any{"/admin/v1/usage": usage})
	shows(t, "usage --by key,day --from 2026-03-01 --to 2026-04-01", `
from 2026-03-01T00:00:00Z to 2026-04-01T00:00:00Z

KEY    DAY         RUNS  COMPLETED  FAILED  CANCELLED  REJECTED  INPUT  CACHED  OUTPUT  REASONING  QUEUE   TTFT  TOOK
k1     2026-03-01     3          2       1          0         0  ~1000       5     ~20          0   10ms  200ms    1s
k2     2026-03-02     1          1       0          0         0      5       0       7          3   50ms      -    3s
-      2026-03-02     1          0       0          0         1      0       0       0          0      -      -     -
-----  ----------  ----  ---------  ------  ---------  --------  -----  ------  ------  ---------  -----  -----  ----
total  -              5          3       1          0         1  ~1005       5     ~27          3   16ms      -    1s`)
	if want := "GET /admin/v1/usage?by=key%2Cday&from=2026-03-01&to=2026-04-01"; f.asked[len(f.asked)-1] != want {
		t.Errorf("asked %q, want %q", f.asked, want)
	}
	_, stdout, _ := execute(t, "usage", "--by", "key,day", "--csv")
	rows, err := csv.NewReader(strings.NewReader(stdout)).ReadAll()
	if err != nil || len(rows) != 4 || rows[0][0] != "key" || rows[1][0] != "k1" || rows[1][7] != "1000" || rows[0][len(rows[0])-1] != "estimated_runs" || rows[1][len(rows[1])-1] != "2" {
		t.Errorf("%v: %q", err, stdout)
	}
}

func TestUsageOfNothing(t *testing.T) {
	at := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	newFakeAdmin(t, map[string]any{"/admin/v1/usage": admin.Usage{From: at, To: at.Add(day), By: []string{}, Data: []admin.UsageRow{}}})
	shows(t, "usage", `
from 2026-03-01T00:00:00Z to 2026-03-02T00:00:00Z

       RUNS  COMPLETED  FAILED  CANCELLED  REJECTED  INPUT  CACHED  OUTPUT  REASONING  QUEUE  TTFT  TOOK
total     0          0       0          0         0      0       0       0          0      -     -     -`)
}

func TestUsageRecordsAreStreamed(t *testing.T) {
	const export = "run,key\r\nrun_1,k1\r\n"
	f := newFakeAdmin(t, map[string]any{"/admin/v1/usage/records": export})
	status, stdout, stderr := execute(t, "usage", "--records", "--csv", "--since", "7d", "--node", "n1")
	if status != exitOK || stdout != export || stderr != "" {
		t.Errorf("status %d: %q %q", status, stdout, stderr)
	}
	asked := f.asked[len(f.asked)-1]
	for _, want := range []string{"format=csv", "node=n1", "from=" + time.Now().Add(-7*day).UTC().Format(time.DateOnly)} {
		if !strings.Contains(asked, want) {
			t.Errorf("asked %q, which lacks %s", asked, want)
		}
	}
}

func TestWrongUsage(t *testing.T) {
	newFakeAdmin(t, nil)
	for args, want := range map[string]string{
		"usage --by colour":                  "--by takes some of key",
		"usage --csv --json":                 "--csv and --json",
		"usage --records --by key":           "--records and --by",
		"usage --since -1h":                  "--since must not be negative",
		"usage --since 7":                    "--since",
		"usage --since 7d --from 2026-01-01": "--since and --from",
		"usage --since 7d --to 2026-01-01":   "--from with --to",
		"usage --from yesterday":             "--from must be a date",
		"usage --to 2026-13-01":              "--to must be a date",
		"key update x":                       "nothing to change",
		"key update x --expires -1h":         "--expires",
		"key update":                         "needs the key's name or id",
		"key show":                           "needs the key's name or id",
		"edge --check-config":                "IOP_EDGE_CONFIG (--config)",
		"edge --usage-retention 90":          "IOP_EDGE_USAGE_RETENTION (--usage-retention) is not a duration with a unit, such as 36h or 90d",
		"edge --usage-retention=-1h":         "IOP_EDGE_USAGE_RETENTION",
	} {
		status, _, stderr := execute(t, strings.Fields(args)...)
		if status != exitUsage || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("iop %s: status %d, %q; want %d, one line with %q", args, status, stderr, exitUsage, want)
		}
	}
}

func TestStatusLines(t *testing.T) {
	minute := time.Now().Add(-time.Minute)
	newFakeAdmin(t, map[string]any{"/admin/v1/status": admin.Status{
		EdgeID: "e", Listen: ":1", Version: "v", UptimeSeconds: 7200, RunsInFlight: 5, Queued: 3, WaitingRoutes: 1, OldestWaitMS: 4000,
		Models: []string{"a", "b"}, Config: admin.ConfigStatus{
			Path: "iop.yaml", Digest: "abc", Loaded: &minute, Routes: 2,
			Fault: &admin.ConfigFault{At: minute, Message: "iop.yaml:3:5: routes[0].policy: no such policy\niop.yaml:9:1: x: y\x1b"},
		},
	}})
	shows(t, "status", `
edge     e, serving on :1, up 2h, version v
nodes    0 online, 0 sessions
runs     5 in flight, 3 of them queued
queue    3 waiting for 1 route, the oldest for 4s
config   iop.yaml, 2 routes, in force for 1m, digest abc
models   a, b
warning  the route file was refused 1m ago; the previous routes stay in force:
         iop.yaml:3:5: routes[0].policy: no such policy
         iop.yaml:9:1: x: y�`)
}

// TestMistypedNames: what nothing is named is said, with the name that was probably meant.
func TestMistypedNames(t *testing.T) {
	gone := admin.ErrorBody{Code: "node_not_found", Message: "no such node is connected"}
	f := newFakeAdmin(t, map[string]any{
		"/admin/v1/usage": admin.Usage{By: []string{}, Data: []admin.UsageRow{}}, "/admin/v1/nodes/pc1": gone, "/admin/v1/nodes/pc1/drain": gone,
		"/admin/v1/nodes":  listing[admin.Node]{[]admin.Node{{Node: "pc-1"}}},
		"/admin/v1/routes": listing[admin.Route]{[]admin.Route{{Name: "chat"}}},
		"/admin/v1/keys":   listing[admin.Key]{[]admin.Key{{Name: "a", Principal: "team"}}},
	})
	for _, args := range []string{"drain pc1", "drain pc1 --wait", "nodes show pc1", "ollama ps pc1"} {
		f.answers["/admin/v1/nodes/pc1/ollama/ps"] = gone
		if status, _, stderr := execute(t, strings.Fields(args)...); status != exitFailed || !strings.Contains(stderr, "did you mean pc-1?") {
			t.Errorf("%s: %d %s", args, status, stderr)
		}
	}
	status, stdout, stderr := execute(t, "usage", "--route", "chta", "--node", "pc1", "--principal", "other")
	const want = "warning: no route is named chta; did you mean chat?\nwarning: no Node is named pc1; did you mean pc-1?\nwarning: no principal is named other\n"
	if status != exitOK || stderr != want || !strings.Contains(stdout, "total") {
		t.Errorf("%d %q %s", status, stderr, stdout)
	}
	if _, _, stderr := execute(t, "usage", "--route", "chat", "--node", "pc-1", "--principal", "team"); stderr != "" {
		t.Error(stderr)
	}
	f.answers["/admin/v1/usage"] = admin.Usage{By: []string{}, Data: []admin.UsageRow{{Runs: 1}}}
	if _, _, stderr := execute(t, "usage", "--route", "of-the-past"); stderr != "" {
		t.Error(stderr)
	}
}

// TestStatusOfADrainingEdge: the uptime is no time of the drain.
func TestStatusOfADrainingEdge(t *testing.T) {
	newFakeAdmin(t, map[string]any{"/admin/v1/status": admin.Status{EdgeID: "e", Listen: ":1", Version: "v", UptimeSeconds: 7200, Draining: true}})
	shows(t, "status", `
edge     e, draining on :1, up 2h, version v
nodes    0 online, 0 sessions
runs     0 in flight, 0 of them queued
models   none`)
}

func TestIdentityLines(t *testing.T) {
	at := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	f := newFakeAdmin(t, map[string]any{"/admin/v1/identity": admin.Identity{
		Managed: true, ID: "spiffe://iop.example.org/edge/main", Serial: "0a", Changed: &at, Roots: 2, Loads: 1, Refused: 1, Fault: "expired\x1b", FaultAt: &at,
	}})
	shows(t, "identity", `
identity  spiffe://iop.example.org/edge/main
serial    0a
ends      -
in force  since 2026-03-01T00:00:00Z
trusts    2 roots
loads     1, 1 refused
warning   the reload at 2026-03-01T00:00:00Z was refused: expired�`)
	f.answers["/admin/v1/identity"] = admin.Identity{}
	shows(t, "identity", "none: the Edge runs in token mode")
}

// TestRevokedKeyMayStillBeUsed: the answer to a revocation is honest about a lease that is out.
func TestRevokedKeyMayStillBeUsed(t *testing.T) {
	until := time.Date(2026, 3, 1, 0, 0, 30, 0, time.UTC)
	newFakeAdmin(t, map[string]any{
		"/admin/v1/keys/k/revoke": admin.KeyRevocation{ID: "k", Withdrawal: admin.Withdrawal{State: admin.Pending, Until: &until}},
		"/admin/v1/keys/l/revoke": admin.KeyRevocation{ID: "l", Withdrawal: admin.Withdrawal{State: admin.Done}},
	})
	shows(t, "key revoke k", "k is revoked; a credential leased for it may be used until 2026-03-01T00:00:30Z")
	shows(t, "key revoke l", "l is revoked")
}

func TestCancelOfAnEndedRun(t *testing.T) {
	newFakeAdmin(t, map[string]any{"/admin/v1/runs/run_1/cancel": admin.ErrorBody{Message: "the run has already ended", Code: "run_ended"}})
	status, stdout, stderr := execute(t, "cancel", "run_1")
	if status != exitFailed || stdout != "" || stderr != "iop: run_1: the run has already ended\n" {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
}

func TestRunsAskForWhatWasWanted(t *testing.T) {
	f := newFakeAdmin(t, map[string]any{"/admin/v1/runs": listing[admin.Run]{[]admin.Run{{
		ID: "run_1", State: "ended", Outcome: "failed", Code: "provider_error", Route: "chat", Model: "gpt", Node: "n1", Provider: "p",
		Started: time.Now(), Reason: "weighted 1/4 of 2", Detail: "it broke",
	}}}})
	status, stdout, _ := execute(t, "runs", "--run-state", "ended", "--key", "k1", "--route", "chat", "--node", "n1", "--outcome", "failed", "--limit", "5")
	if want := "GET /admin/v1/runs?key=k1&limit=5&node=n1&outcome=failed&route=chat&state=ended"; f.asked[0] != want {
		t.Errorf("asked %q, want %q", f.asked[0], want)
	}
	for _, want := range []string{"chat", "weighted 1/4 of 2", "failed: provider_error", "it broke"} {
		if status != exitOK || !strings.Contains(stdout, want) {
			t.Errorf("%q is missing:\n%s", want, stdout)
		}
	}
}

// TestNothingMovesTheCursor: what a client or a Node chose as a name can't, in any of the tables.
func TestNothingMovesTheCursor(t *testing.T) {
	const bad = "x\x1b[2J"
	newFakeAdmin(t, map[string]any{
		"/admin/v1/config": admin.Configuration{ConfigStatus: admin.ConfigStatus{Path: bad}, Coverage: admin.Coverage{
			Unrouted: []string{bad}, Reserved: []admin.ReservedModel{{Model: bad, Route: bad}}, Missing: []admin.MissingTarget{{Route: bad, TargetSpec: admin.TargetSpec{Model: bad, Node: bad}, Similar: bad}},
			Absent: []admin.AbsentPrincipal{{Route: bad, Principal: bad, Key: bad}}, Slots: []admin.AbsentSlot{{Route: bad, Similar: bad}}, Unknown: []admin.UnknownParameter{{Route: bad, Path: bad, Similar: bad}},
		}},
		"/admin/v1/routes":    listing[admin.Route]{[]admin.Route{{Name: bad, Groups: []admin.Group{{Targets: []admin.Target{{Node: bad, Model: bad}}}}}}},
		"/admin/v1/queue":     listing[admin.Queue]{[]admin.Queue{{Route: bad, Principals: []admin.QueuedPrincipal{{Principal: bad}}}}},
		"/admin/v1/usage":     admin.Usage{By: []string{"route", "model"}, Data: []admin.UsageRow{{Route: bad, Model: bad}}},
		"/admin/v1/keys/k":    admin.Key{ID: bad, Name: bad, Principal: bad, Routes: []string{bad}, Unmatched: []admin.UnmatchedModel{{Pattern: bad, Similar: bad}}},
		"/admin/v1/runs":      listing[admin.Run]{[]admin.Run{{Route: bad, Reason: bad, Detail: bad}}},
		"/admin/v1/runs/r":    admin.Run{Model: bad, Route: bad, Reason: bad, Detail: bad},
		"/admin/v1/slots":     listing[admin.Slot]{[]admin.Slot{{Name: bad, By: bad}}},
		"/admin/v1/profiles":  listing[admin.Profile]{[]admin.Profile{{Name: bad, BaseURLs: []string{bad}}}},
		"/admin/v1/node-list": admin.NodeList{Allowed: []admin.AllowedNode{{Node: bad, Slots: []string{bad}}}, Denied: []admin.Denial{{Node: bad, By: bad}}},
		"/admin/v1/audit":     admin.AuditPage{Data: []admin.AuditEntry{{Actor: bad, Subject: bad, Reason: bad, Run: bad}}},
		"/admin/v1/status":    admin.Status{Models: []string{bad}, Config: admin.ConfigStatus{Path: bad, Fault: &admin.ConfigFault{Message: bad}}, Certificate: &admin.Certificate{Names: []string{bad}, Fault: bad}},
	})
	for _, args := range []string{"routes", "queue", "usage --by route,model", "key show k", "runs", "runs show r", "status", "slot list", "profile list", "node-list show", "audit"} {
		status, stdout, stderr := execute(t, strings.Fields(args)...)
		if status != exitOK || strings.Contains(stdout+stderr, "\x1b") {
			t.Errorf("iop %s: status %d: %q%s", args, status, stdout, stderr)
		}
	}
}
