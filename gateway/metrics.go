package gateway

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"iop/execution"
	"iop/openai"
	"iop/state"
)

// metrics are the Edge's. Every label has a closed set of values: operations of the table, outcomes of execution,
// reasons of state. No label ever holds what a client or a Node wrote, but for node and provider on the capacity
// gauges, which operators choose.
type metrics struct {
	registry *prometheus.Registry
	requests [maxOperations][maxOutcomes]prometheus.Counter // by openai.OpID and execution.Outcome
	ttfb     prometheus.Histogram
	keys     *prometheus.CounterVec
	panics   prometheus.Counter
}

const (
	maxOperations = 64
	maxOutcomes   = 8
)

func newMetrics(s *Server) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "iop_requests_total",
		Help: "Requests that have ended, by operation and outcome (completed, failed, cancelled, rejected).",
	}, []string{"operation", "outcome"})
	for _, op := range openai.Operations() {
		for o := execution.Completed; o <= execution.Rejected; o++ {
			m.requests[op.ID][o] = requests.WithLabelValues(op.Name, o.String())
		}
	}
	m.ttfb = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "iop_time_to_first_byte_seconds",
		Help:    "From a request's arrival to the first byte of its answer.",
		Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
	})
	m.keys = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "iop_invalid_keys_total",
		Help: "Requests with an API key that was refused, by reason (malformed, unknown, mismatch, expired, revoked).",
	}, []string{"reason"})
	m.panics = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "iop_panics_total",
		Help: "Requests that met a fault of the Edge itself.",
	})
	m.registry.MustRegister(requests, m.ttfb, m.keys, m.panics,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		placeCollector{s})
	m.gauges(s)
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
	gauge("iop_runs_in_flight", "Runs between their arrival and their end, queued ones too.", func() float64 { return float64(s.runs.live.Load()) })
	gauge("iop_queued", "Runs that wait for a place.", func() float64 { _, n := s.adm.Counts(); return float64(n) })
	gauge("iop_places_taken", "Capacity places taken on all Nodes.", func() float64 { n, _ := s.adm.Counts(); return float64(n) })
	gauge("iop_sessions", "Node sessions.", func() float64 { return float64(t.Sessions.Load()) })
	gauge("iop_nodes_online", "Nodes that can get runs.", func() float64 { return float64(s.reg.Counts().Online) })
	gauge("iop_streams", "Runs open in Node sessions.", func() float64 { return float64(t.Streams.Load()) })
	gauge("iop_body_budget_bytes", "Bytes of request bodies in memory.", func() float64 { return float64(s.bodies.used.Load()) })
	gauge("iop_body_budget_limit_bytes", "Bytes of request bodies that may be in memory.", func() float64 { return float64(s.bodies.limit) })
	counter("iop_credit_stalls_total", "Times that a run had bytes to send and no credit.", func() float64 { return float64(t.CreditStalls.Load()) })
	counter("iop_session_stalls_total", "Times that a session had bytes to send and no credit.", func() float64 { return float64(t.SessionStalls.Load()) })
	counter("iop_heartbeat_timeouts_total", "Sessions that ended because the Node stayed silent.", func() float64 { return float64(t.HeartbeatTimeouts.Load()) })
	counter("iop_protocol_errors_total", "Sessions that ended because a frame broke the contract.", func() float64 { return float64(t.ProtocolErrors.Load()) })
	counter("iop_stream_errors_total", "Runs that ended because a frame broke the contract.", func() float64 { return float64(t.StreamErrors.Load()) })
	counter("iop_lost_runs_total", "Runs that a Node no longer knew.", func() float64 { return float64(t.LostRuns.Load()) })
	counter("iop_cancel_timeouts_total", "Cancels that a Node did not answer in time.", func() float64 { return float64(t.CancelTimeouts.Load()) })
	counter("iop_frames_dropped_total", "Frames for runs that had ended.", func() float64 { return float64(t.FramesDropped.Load()) })
	counter("iop_node_refusals_total", "Node connections that were refused.", func() float64 { return float64(t.Refusals.Load()) })
	counter("iop_node_flaps_total", "Nodes that were refused because two processes used one name.", func() float64 { return float64(s.reg.Counts().Flapped) })
	counter("iop_tunnel_bytes_sent_total", "Bytes of tunnel messages sent to Nodes.", func() float64 { return float64(t.BytesSent.Load()) })
	counter("iop_tunnel_bytes_received_total", "Bytes of tunnel messages received from Nodes.", func() float64 { return float64(t.BytesReceived.Load()) })
}

// count notes an ended request.
func (m *metrics) count(op openai.OpID, o execution.Outcome) {
	if c := m.requests[op][o]; c != nil {
		c.Inc()
	}
}

func (m *metrics) invalidKey(reason state.InvalidReason) {
	m.keys.WithLabelValues(reason.String()).Inc()
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// placeCollector shows each target's capacity and load.
type placeCollector struct{ s *Server }

var (
	capacityDesc = prometheus.NewDesc("iop_capacity", "Runs that a provider of a Node takes at once.", []string{"node", "provider"}, nil)
	loadDesc     = prometheus.NewDesc("iop_capacity_in_use", "Runs that a provider of a Node has.", []string{"node", "provider"}, nil)
)

// Describe implements prometheus.Collector.
func (c placeCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- capacityDesc
	ch <- loadDesc
}

// Collect implements prometheus.Collector. A draining session's places are not shown beside those of its successor.
func (c placeCollector) Collect(ch chan<- prometheus.Metric) {
	for _, p := range c.s.adm.Stats().Places {
		if p.Retired {
			continue
		}
		labels := []string{string(p.Target.Node), string(p.Target.Provider)}
		ch <- prometheus.MustNewConstMetric(capacityDesc, prometheus.GaugeValue, float64(p.Capacity), labels...)
		ch <- prometheus.MustNewConstMetric(loadDesc, prometheus.GaugeValue, float64(p.InFlight), labels...)
	}
}
