package gateway

import (
	"testing"
	"time"

	"iop/gateway/admin"
	"iop/gateway/route"
	"iop/tunnel"
)

// TestCoverageIsLoggedCalmly: once when the fleet is there, at once for a new file, and once a minute at most as Nodes
// come and go.
func TestCoverageIsLoggedCalmly(t *testing.T) {
	t.Parallel()
	start := time.Now()
	one, two := route.Advertised(), route.Advertised()
	a, b := admin.Coverage{Unrouted: []string{"a"}}, admin.Coverage{Unrouted: []string{"a", "b"}}
	w := coverageWatch{started: start}
	for i, step := range []struct {
		after time.Duration
		table *route.Table
		found admin.Coverage
		nodes bool
		want  bool
	}{
		{2 * time.Second, one, admin.Coverage{}, false, false}, // Nodes are still on their way
		{4 * time.Second, one, admin.Coverage{}, false, false},
		{6 * time.Second, one, a, true, false}, // seen once
		{8 * time.Second, one, a, true, true},
		{10 * time.Second, one, a, true, false},
		{20 * time.Second, one, b, true, false},
		{22 * time.Second, one, b, true, false}, // a minute has not passed
		{24 * time.Second, one, a, true, false}, // back again
		{90 * time.Second, one, a, true, false}, // nothing new
		{92 * time.Second, one, b, true, false},
		{94 * time.Second, one, b, true, true},
		{96 * time.Second, two, a, true, false},
		{98 * time.Second, two, a, true, true}, // another file
		{100 * time.Second, one, a, true, false},
		{102 * time.Second, one, a, true, false}, // another file, of which there is the same to say
	} {
		if got := w.due(step.table, &step.found, step.nodes, start.Add(step.after)); got != step.want {
			t.Errorf("step %d: due is %t", i, got)
		}
	}
	empty := coverageWatch{started: start}
	empty.due(one, &admin.Coverage{}, false, start.Add(coverageStart))
	if empty.due(one, &admin.Coverage{Missing: []admin.MissingTarget{{Route: "x"}}}, false, start.Add(coverageStart)) {
		t.Error("logged what only one look has found")
	}
	if !empty.due(one, &admin.Coverage{Missing: []admin.MissingTarget{{Route: "x"}}}, false, start.Add(coverageStart+coveragePoll)) {
		t.Error("without Nodes nothing is ever said")
	}
}

// TestCoverageIsNotMadeAnew: while neither file nor fleet changes there is nothing to compare.
func TestCoverageIsNotMadeAnew(t *testing.T) {
	t.Parallel()
	table, models, found := route.Advertised(), []tunnel.ModelInfo{{ID: "a"}}, admin.Coverage{Unrouted: []string{"a"}}
	w := coverageWatch{started: time.Now().Add(-time.Hour)}
	for range 2 {
		if w.knows(table, models) {
			t.Error("it was not logged yet")
		}
		w.due(table, &found, true, time.Now())
	}
	if !w.knows(table, models) {
		t.Error("nothing has changed")
	}
	if w.knows(table, []tunnel.ModelInfo{{ID: "a"}}) || w.knows(table, nil) || w.knows(table, nil) || w.knows(route.Advertised(), nil) {
		t.Error("a new list or table is not looked at")
	}
}
