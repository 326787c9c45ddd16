package gateway

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"iop/execution"
	"iop/openai"
)

// series are the metrics of one route, found once: looking them up by their labels is most of what counting costs. Each is
// made when it is first needed, so that what never happened is not there. The zero value is ready.
type series struct {
	first, duration one[prometheus.Observer]
	completed       [maxSeriesOps]one[prometheus.Counter] // by openai.OpID
	tokens          [len(tokenKinds)]one[prometheus.Counter]
}

// maxSeriesOps is how many operations have a place in series; others are looked up each time.
const maxSeriesOps = 48

// tokenKinds are the values of gen_ai_token_type.
var tokenKinds = [...]string{"input", "output", "cached", "reasoning"}

// one is what is made once, or twice where two need it at once: both get the same from a metric's vector.
type one[T any] struct{ made atomic.Pointer[T] }

func (o *one[T]) get(find func() T) T {
	if made := o.made.Load(); made != nil {
		return *made
	}
	found := find()
	o.made.Store(&found)
	return found
}

// requestsOf is the counter of a route's runs of an operation that ended so.
func (m *metrics) requestsOf(st *routeStats, op *openai.Operation, outcome execution.Outcome) prometheus.Counter {
	find := func() prometheus.Counter { return m.requests.WithLabelValues(st.name, op.Name, outcome.String()) }
	if outcome != execution.Completed || op.ID >= maxSeriesOps {
		return find()
	}
	return st.series.completed[op.ID].get(find)
}

// countTokens adds what a run used.
func (m *metrics) countTokens(st *routeStats, u execution.Usage) {
	for i, n := range [len(tokenKinds)]int64{u.Input, u.Output, u.Cached, u.Reasoning} {
		if n > 0 {
			st.series.tokens[i].get(func() prometheus.Counter { return m.tokens.WithLabelValues(st.name, tokenKinds[i]) }).Add(float64(n))
		}
	}
}
