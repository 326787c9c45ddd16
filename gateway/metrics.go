package gateway

import (
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"iop/execution"
	"iop/gateway/meter"
	"iop/openai"
	"iop/state"
)

// metrics are the Edge's. Every label has a closed set of values: routes of the file and of models that a Node served
// (maxRouteStats of them at most, the rest are one), operations of the table, outcomes and codes of execution, reasons
// of state. No label ever holds what a client wrote; node and provider on the capacity gauges are their operators' choice.
// Where OpenTelemetry's conventions for generative AI have a name for a label, it is theirs with underscores.
type metrics struct {
	registry *prometheus.Registry
	accepted prometheus.Counter
	requests *prometheus.CounterVec   // route, operation, outcome
	refused  *prometheus.CounterVec   // operation, reason
	failures *prometheus.CounterVec   // route, error_type
	firsts   *prometheus.HistogramVec // route
	duration *prometheus.HistogramVec // route, operation
	queued   prometheus.Histogram
	tokens   *prometheus.CounterVec // route, gen_ai_token_type
	bytes    *prometheus.CounterVec // direction
	// responseBytes is the one of bytes that each run needs.
	responseBytes prometheus.Counter
	retries       [256]prometheus.Counter // by execution.Code; nil for what is none
	keys          *prometheus.CounterVec
	panics        prometheus.Counter
	laggards      prometheus.Counter
	implausible   prometheus.Counter
	peers         *prometheus.CounterVec // reason; managed mode
}

// Buckets, in seconds.
var (
	waitBuckets  = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}
	totalBuckets = []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}
)

func counterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func histogramOpts(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
}

func newMetrics(s *Server) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	m.accepted = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "iop_requests_accepted_total",
		Help: "Requests that became runs. With no run in flight it equals the sum of iop_requests_total.",
	})
	m.requests = counterVec("iop_requests_total",
		"Ended runs, by route, operation and outcome (completed, failed, cancelled, rejected).",
		"route", "gen_ai_operation_name", "outcome")
	m.refused = counterVec("iop_requests_refused_total",
		"Requests that never became runs, by operation and error code.", "gen_ai_operation_name", "error_type")
	m.failures = counterVec("iop_run_errors_total", "Runs that did not complete, by route and code.", "route", "error_type")
	m.firsts = prometheus.NewHistogramVec(histogramOpts("iop_time_to_first_token_seconds",
		"Time from a request's arrival to the first byte of its response.", waitBuckets), []string{"route"})
	m.duration = prometheus.NewHistogramVec(histogramOpts("iop_request_duration_seconds",
		"Time from a request's arrival to the end of its run.", totalBuckets), []string{"route"})
	m.queued = prometheus.NewHistogram(histogramOpts("iop_queue_wait_seconds",
		"Queueing time of requests that had to wait.", waitBuckets))
	m.tokens = counterVec("iop_tokens_total",
		"Tokens reported by providers, or estimated if they reported none. cached is part of input, reasoning is part of output.", "route", "gen_ai_token_type")
	m.bytes = counterVec("iop_body_bytes_total",
		"Body bytes from clients (request) and to clients (response).", "direction")
	m.responseBytes = m.bytes.WithLabelValues("response")
	retries := counterVec("iop_retries_total", "Runs retried on another target, by failure code.", "error_type")
	for c := execution.CodeCapacity; c <= execution.CodeInternal; c++ {
		m.retries[c] = retries.WithLabelValues(c.String())
	}
	m.keys = counterVec("iop_invalid_keys_total",
		"Requests with a refused API key, by reason (malformed, unknown, mismatch, expired, revoked).", "reason")
	m.implausible = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "iop_usage_implausible_total",
		Help: "Runs for which a Node reported an impossible number of tokens. They count as the highest possible number, marked as estimated.",
	})
	m.panics = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "iop_panics_total",
		Help: "Requests that failed because of an internal error of the Edge.",
	})
	m.laggards = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "iop_slow_clients_cut_total",
		Help: "Runs cancelled because their client hardly read anything while others waited for capacity.",
	})
	if s.pair != nil {
		m.registry.MustRegister(certificateCollector{s.pair})
	}
	m.registry.MustRegister(m.accepted, m.requests, m.refused, m.failures, m.firsts, m.duration, m.queued, m.tokens, m.bytes,
		retries, m.keys, m.panics, m.laggards, m.implausible,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		admissionCollector{s}, tunnelCollector{t: s.acceptor.Metrics()}, chunkCollector{&s.routing}, doorCollector{&s.doors})
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "iop_build_info", Help: "Always 1, labelled with the version that \"iop version\" prints and the Go version that built it.",
		ConstLabels: prometheus.Labels{"version": s.cfg.Version, "goversion": runtime.Version()},
	}, func() float64 { return 1 }))
	m.gauges(s)
	m.decisions(s)
	m.state(s)
	if s.managed() {
		m.managed(s)
	}
	return m
}

// gauges registers what is read when somebody asks.
func (m *metrics) gauges(s *Server) {
	t := s.acceptor.Metrics()
	gauge := func(name, help string, f func() float64) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
	}
	counter := func(name, help string, f func() float64) {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, f))
	}
	gauge("iop_runs_in_flight", "Runs in flight, including queued ones.", func() float64 { return float64(s.runs.live.Load()) })
	gauge("iop_queued", "Queued runs.", func() float64 { _, n := s.adm.Counts(); return float64(n) })
	gauge("iop_places_taken", "Capacity in use on all Nodes.", func() float64 { n, _ := s.adm.Counts(); return float64(n) })
	gauge("iop_sessions", "Open Node sessions.", func() float64 { return float64(t.Sessions.Load()) })
	gauge("iop_nodes_online", "Nodes that can get runs.", func() float64 { return float64(s.reg.Counts().Online) })
	gauge("iop_streams", "Runs open in Node sessions.", func() float64 { return float64(t.Streams.Load()) })
	gauge("iop_body_budget_bytes", "Bytes of request bodies in memory.", func() float64 { return float64(s.bodies.used.Load()) })
	gauge("iop_body_budget_limit_bytes", "Memory limit for request bodies, in bytes.", func() float64 { return float64(s.bodies.limit) })
	counter("iop_credit_stalls_total", "Times a run had bytes to send but no flow-control credit.", func() float64 { return float64(t.CreditStalls.Load()) })
	counter("iop_session_stalls_total", "Times a session had bytes to send but no flow-control credit.", func() float64 { return float64(t.SessionStalls.Load()) })
	counter("iop_heartbeat_timeouts_total", "Sessions ended because the Node stopped responding.", func() float64 { return float64(t.HeartbeatTimeouts.Load()) })
	counter("iop_protocol_errors_total", "Sessions ended because a frame violated the protocol.", func() float64 { return float64(t.ProtocolErrors.Load()) })
	counter("iop_stream_errors_total", "Runs ended because a frame violated the protocol.", func() float64 { return float64(t.StreamErrors.Load()) })
	counter("iop_lost_runs_total", "Runs that a Node no longer knew.", func() float64 { return float64(t.LostRuns.Load()) })
	counter("iop_cancel_timeouts_total", "Cancel requests that a Node did not acknowledge in time.", func() float64 { return float64(t.CancelTimeouts.Load()) })
	counter("iop_frames_dropped_total", "Frames received for runs that had already ended.", func() float64 { return float64(t.FramesDropped.Load()) })
	counter("iop_node_flaps_total", "Nodes refused because two processes used the same name.", func() float64 { return float64(s.reg.Counts().Flapped) })
	counter("iop_node_reconnects_total", "Reconnections of Node processes.", func() float64 { return float64(t.Reconnects.Load()) })
	counter("iop_node_supersessions_total", "Sessions ended because a newer session of the Node took over.", func() float64 { return float64(t.Supersessions.Load()) })
	counter("iop_generations_total", "Generations assigned to Nodes.", func() float64 {
		return float64(t.NewNodes.Load() + t.Reconnects.Load() + t.Replacements.Load())
	})
	counter("iop_tunnel_frames_sent_total", "Frames sent to Nodes.", func() float64 { return float64(t.FramesSent.Load()) })
	counter("iop_tunnel_frames_received_total", "Frames received from Nodes.", func() float64 { return float64(t.FramesReceived.Load()) })
	counter("iop_tunnel_bytes_sent_total", "Tunnel message bytes sent to Nodes.", func() float64 { return float64(t.BytesSent.Load()) })
	counter("iop_tunnel_bytes_received_total", "Tunnel message bytes received from Nodes.", func() float64 { return float64(t.BytesReceived.Load()) })
}

// ended notes a run that has ended.
func (m *metrics) ended(x *exchange, end *ending) {
	t, st := &end.terminal, x.stats
	m.requestsOf(st, x.op, t.Outcome).Inc()
	if t.Outcome != execution.Completed {
		code := t.Code.String()
		if !t.Code.Known() {
			code = "unknown" // a Node can send 230 of them
		}
		m.failures.WithLabelValues(st.name, code).Inc()
	}
	if end.firstByte > 0 {
		st.series.first.get(func() prometheus.Observer { return m.firsts.WithLabelValues(st.name) }).Observe(end.firstByte.Seconds())
	}
	st.series.duration.get(func() prometheus.Observer { return m.duration.WithLabelValues(st.name) }).Observe(end.total.Seconds())
	m.responseBytes.Add(float64(end.bytes))
	m.countTokens(st, t.Usage)
	st.chunks.add(&x.chunks)
}

// refusal notes a request that never became a run.
func (m *metrics) refusal(op *openai.Operation, code string) {
	m.refused.WithLabelValues(op.Name, code).Inc()
}

// retried notes that a run goes to another target.
func (m *metrics) retried(code execution.Code) {
	if c := m.retries[code]; c != nil {
		c.Inc()
	}
}

func (m *metrics) invalidKey(reason state.InvalidReason) {
	m.keys.WithLabelValues(reason.String()).Inc()
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// decisions registers what admission and the meter count.
func (m *metrics) decisions(s *Server) {
	counter := func(name, help string, labels prometheus.Labels, n *atomic.Int64) {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(n.Load()) }))
	}
	c := s.adm.Counters()
	const transitions = "State changes of circuit breakers, by new state."
	counter("iop_breaker_transitions_total", transitions, prometheus.Labels{"to": "open"}, &c.BreakerOpened)
	counter("iop_breaker_transitions_total", transitions, prometheus.Labels{"to": "closed"}, &c.BreakerClosed)
	counter("iop_target_refusals_total", "Runs refused by a target that was at capacity.", nil, &c.Refusals)
	counter("iop_target_failures_total", "Runs that failed because of the target.", nil, &c.Failures)
	const affinity = "Requests with an affinity that did not have to queue: hit (sent to where their prefix ran before), yield (that target was too busy), miss."
	counter("iop_affinity_total", affinity, prometheus.Labels{"result": "hit"}, &c.AffinityHits)
	counter("iop_affinity_total", affinity, prometheus.Labels{"result": "miss"}, &c.AffinityMisses)
	counter("iop_affinity_total", affinity, prometheus.Labels{"result": "yield"}, &c.AffinityYields)
	books := func(name, help string, f func(meter.Stats) int64) {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help},
			func() float64 { return float64(f(s.meter.Stats())) }))
	}
	books("iop_usage_written_total", "Run records written to the state.", func(st meter.Stats) int64 { return st.Written })
	books("iop_usage_dropped_total", "Run records lost because they could not be written.", func(st meter.Stats) int64 { return st.Dropped })
	books("iop_usage_failures_total", "Failed writes of run records, which are retried.", func(st meter.Stats) int64 { return st.Failures })
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "iop_usage_pending", Help: "Run records waiting to be written.",
	}, func() float64 { return float64(s.meter.Stats().Pending) }))
}

// state registers how long the state takes, and whether it works.
func (m *metrics) state(s *Server) {
	for _, f := range state.Faults() {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "iop_state_fault", Help: "1 while the state's files have this fault (deleted, replaced, damaged, unreachable, pepper).",
			ConstLabels: prometheus.Labels{"fault": f.String()},
		}, func() float64 {
			if now := s.cfg.Store.Fault(); now != nil && now.Fault == f {
				return 1
			}
			return 0
		}))
	}
	for _, f := range state.Failures() {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "iop_state_failures_total", Help: "Failed state accesses, by reason (fault, busy, full, readonly, io, damaged).",
			ConstLabels: prometheus.Labels{"reason": f.String()},
		}, func() float64 { return float64(s.cfg.Store.Failed(f)) }))
	}
	took := prometheus.NewHistogramVec(histogramOpts("iop_state_seconds",
		"Duration of state accesses, by kind (read, write). Cached keys need none.",
		[]float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5}), []string{"kind"})
	m.registry.MustRegister(took)
	read, write := took.WithLabelValues("read"), took.WithLabelValues("write")
	s.cfg.Store.Observe(func(writes bool, d time.Duration) {
		if writes {
			write.Observe(d.Seconds())
		} else {
			read.Observe(d.Seconds())
		}
	})
}
