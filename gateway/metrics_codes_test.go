package gateway_test

import (
	"context"
	"testing"

	"iop/execution"
	"iop/tunnel"
)

// TestUnknownCodesAreOneSeries: a Node can end runs with codes that this version does not have, and they make no series of their own.
func TestUnknownCodesAreOneSeries(t *testing.T) {
	e := newEdge(t, nil)
	code := execution.Code(200)
	e.addNode("n1", 4, func(_ context.Context, run *tunnel.NodeRun) {
		run.End(execution.Terminal{Outcome: execution.Failed, Code: code, Phase: execution.PhaseDispatched})
		code++
	}, "m")
	for range 3 {
		e.post(chat, `{"model":"m","messages":[]}`)
	}
	e.idle()
	if n := e.metric(`iop_run_errors_total{error_type="unknown",route="m"}`); n != 3 {
		t.Errorf("%d runs", n)
	}
}
