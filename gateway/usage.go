package gateway

import (
	"iop/execution"
	"iop/gateway/admission"
	"iop/state"
)

// phaseCharged is where a run begins to cost something.
const phaseCharged = execution.PhaseProviderCalled

// usageRecord is what is kept of a run for good.
func (x *exchange) usageRecord(end *ending) state.UsageRecord {
	rec := x.rec
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return state.UsageRecord{
		Run: rec.id, Key: rec.key, Principal: x.key.Principal(), Route: x.stats.name, Operation: rec.op,
		Node: rec.target.Node, Provider: rec.target.Provider, Model: rec.upstream,
		Started: rec.started, Queue: rec.queued, FirstToken: end.firstByte, Duration: end.total,
		Outcome: end.terminal.Outcome, Code: end.terminal.Code, Status: end.status, Attempts: rec.attempts, Stream: rec.stream,
		Usage: end.terminal.Usage,
	}
}

// sampleOf is what a run that went well tells of its target.
func sampleOf(t *execution.Terminal) admission.Sample {
	return admission.Sample{
		FirstToken: t.Timings.FirstByte, Duration: t.Timings.Provider,
		Input: t.Usage.Input, Output: t.Usage.Output, Cached: t.Usage.Cached,
	}
}
