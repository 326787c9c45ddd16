package gateway

import (
	"cmp"
	"context"
	"time"

	"iop/execution"
	"iop/gateway/admission"
	"iop/gateway/route"
	"iop/openai"
	"iop/state"
)

// books is the state as the meter writes to it. What is too old to be kept of runs is too old of their leases as well.
type books struct{ *state.Store }

// PruneUsage forgets runs, and leases, that began before then.
func (b books) PruneUsage(ctx context.Context, before time.Time) (int64, error) {
	n, err := b.Store.PruneUsage(ctx, before)
	if err == nil {
		_, err = b.PruneAudit(ctx, before)
	}
	return n, err
}

// phaseCharged is where a run begins to cost something.
const phaseCharged = execution.PhaseProviderCalled

// usageRecord is what is kept of a run for good.
func (x *exchange) usageRecord(end *ending) state.UsageRecord {
	rec := x.rec
	rec.mu.Lock()
	defer rec.mu.Unlock()
	name, model := rec.route, rec.upstream
	switch {
	case !x.named:
		name = "" // whatever the client wrote
	case model == "":
		model = onlyModel(x.route)
	}
	return state.UsageRecord{
		Session: rec.session, Normalized: rec.normal,
		Run: rec.id, Key: rec.key, Principal: x.key.Principal(), Route: name, Operation: rec.op,
		Node: rec.target.Node, Provider: rec.target.Provider, Model: model,
		Started: rec.started, Queue: rec.queued, FirstToken: end.firstByte, Duration: end.total,
		Outcome: end.terminal.Outcome, Code: end.terminal.Code, Status: end.status, Attempts: rec.attempts, Stream: rec.stream,
		Usage: end.terminal.Usage,
	}
}

// onlyModel is what every target of a route calls the model; empty where they differ.
func onlyModel(r *route.Route) (model string) {
	if r.Advertised {
		return r.Name
	}
	for _, g := range r.Groups {
		for i := range g.Targets {
			if model != "" && model != g.Targets[i].Model {
				return ""
			}
			model = g.Targets[i].Model
		}
	}
	return model
}

// used is the usage that is booked for a run. Where it is unknown it is what was relayed of an answer that was lost, else what the
// key's limits keep of it: the estimate.
// Of a stream whose provider told nothing the Node has counted the output; the prompt was read all the same.
func (x *exchange) used(t *execution.Terminal) execution.Usage {
	u := t.Usage
	switch {
	case u.Estimated && u.Input == 0:
		u.Input = x.input
	case !u.Known && x.reply.answered && t.Outcome != execution.Completed && x.costs(t):
		u = x.usedByRelayed()
	case !u.Known && x.costs(t):
		u = execution.Usage{Input: x.input, Output: x.tokens - x.input, Known: true, Estimated: true}
	case x.op.Stream == openai.StreamChat && x.prompts > 1 && u.Known && u.Input < x.input/2: // llama.cpp reports the first prompt alone
		u.Input, u.Estimated = x.input, true
	}
	return u
}

// sampleOf is what a run that went well tells of its target.
func (x *exchange) sampleOf(t *execution.Terminal) admission.Sample {
	return admission.Sample{
		FirstToken: t.Timings.FirstByte, Duration: t.Timings.Provider,
		Input: cmp.Or(t.Usage.Input, x.input), Output: t.Usage.Output, Cached: t.Usage.Cached,
	}
}
