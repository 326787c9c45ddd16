package admin_test

import (
	"encoding/json"
	"strings"
	"testing"

	"iop/gateway/admin"
)

func TestRunFilters(t *testing.T) {
	d := newDesk(t)
	d.makeKeys()
	for query, want := range map[string]string{
		"":                      "run_queued run_active run_ended",
		"?limit=2":              "run_queued run_active",
		"?limit=0":              "",
		"?state=ended":          "run_ended",
		"?state=ended&limit=1":  "run_ended",
		"?key=k1":               "run_active run_ended",
		"?node=n1&state=active": "run_active",
		"?outcome=failed":       "run_ended",
		"?outcome=completed":    "",
		"?route=chat":           "run_queued run_active run_ended",
		"?route=cha":            "",
	} {
		var list struct{ Data []admin.Run }
		d.must(&list, "GET", v1+"/runs"+query, "")
		var ids []string
		for _, run := range list.Data {
			ids = append(ids, string(run.ID))
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	d.refused(404, "run_not_found", "id", "GET", v1+"/runs/none", "")
}

func TestFollowFilters(t *testing.T) {
	d := newDesk(t)
	other := d.edge.Runs()[0]
	other.ID, other.State, other.Outcome = "run_other", "ended", "completed"
	failed := d.edge.Runs()[2]
	failed.ID = "run_more"
	go func() {
		d.edge.ended <- other
		d.edge.ended <- failed
		close(d.edge.ended)
	}()
	a := d.ask("GET", v1+"/runs?follow&outcome=failed", "")
	var ids []string
	for decoder := json.NewDecoder(strings.NewReader(a.body)); decoder.More(); {
		var run admin.Run
		if err := decoder.Decode(&run); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, string(run.ID))
	}
	if got := strings.Join(ids, " "); a.status != 200 || got != "run_ended run_more" {
		t.Errorf("%d %q", a.status, got)
	}
}

func TestCancelRun(t *testing.T) {
	d := newDesk(t)
	d.must(nil, "POST", v1+"/runs/run_queued/cancel", "")
	d.refused(409, "run_ended", "id", "POST", v1+"/runs/run_ended/cancel", "")
	d.refused(404, "run_not_found", "id", "POST", v1+"/runs/none/cancel", "")
	if logs := d.logs.String(); strings.Count(logs, "cancel run") != 1 || !strings.Contains(logs, "run_id=run_queued") {
		t.Errorf("the log: %s", logs)
	}
}

func TestNodes(t *testing.T) {
	d := newDesk(t)
	var node admin.Node
	d.must(&node, "GET", v1+"/nodes/n2", "")
	if node.Node != "n2" || node.State != "offline" {
		t.Errorf("%+v", node)
	}
	d.refused(404, "node_not_found", "node", "GET", v1+"/nodes/n3", "")
	d.refused(404, "node_not_found", "node", "POST", v1+"/nodes/n3/drain", "")
	d.refused(404, "node_not_found", "node", "POST", v1+"/nodes/n3/resume", "")
}
