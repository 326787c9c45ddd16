package gateway

import (
	"github.com/prometheus/client_golang/prometheus"

	"iop/gateway/admission"
	"iop/tunnel"
)

// admissionCollector shows each target's capacity, load and breakers, and how many requests wait for each route: from one
// snapshot, which takes admission's lock for as long as there are places and waiters.
type admissionCollector struct{ s *Server }

var (
	targetLabels = []string{"node", "provider"}
	capacityDesc = prometheus.NewDesc("iop_capacity", "Capacity of a Node's provider, in concurrent runs.", targetLabels, nil)
	loadDesc     = prometheus.NewDesc("iop_capacity_in_use", "Open runs at a Node's provider.", targetLabels, nil)
	breakerDesc  = prometheus.NewDesc("iop_breakers", "Models of a Node's provider whose circuit breaker is not closed, by state (open, half_open).",
		[]string{"node", "provider", "state"}, nil)
	depthDesc   = prometheus.NewDesc("iop_queue_depth", "Queued requests, by route.", []string{"route"}, nil)
	restingDesc = prometheus.NewDesc("iop_target_resting", "1 while a Node's provider gets no runs because it reported that it is at capacity.", targetLabels, nil)
)

// Describe implements prometheus.Collector.
func (c admissionCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{capacityDesc, loadDesc, breakerDesc, restingDesc, depthDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c admissionCollector) Collect(ch chan<- prometheus.Metric) {
	stats := c.s.adm.Stats()
	collectPlaces(ch, stats.Places)
	c.collectQueues(ch, stats.Queues)
}

// collectPlaces leaves out a draining session's places, beside those of its successor.
func collectPlaces(ch chan<- prometheus.Metric, places []admission.PlaceStats) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for i := range places {
		p := &places[i]
		if p.Retired {
			continue
		}
		node, provider := string(p.Target.Node), string(p.Target.Provider)
		gauge(capacityDesc, float64(p.Capacity), node, provider)
		gauge(loadDesc, float64(p.InFlight), node, provider)
		states := map[string]int{"open": 0, "half_open": 0}
		for _, b := range p.Breakers {
			states[b.State]++
		}
		for state, n := range states {
			gauge(breakerDesc, float64(n), node, provider, state)
		}
		resting := 0.
		if p.BackingOff {
			resting = 1
		}
		gauge(restingDesc, resting, node, provider)
	}
}

// collectQueues shows routes that no target was ever found for as one, without a name.
func (c admissionCollector) collectQueues(ch chan<- prometheus.Metric, queues []admission.QueueStats) {
	depth := map[string]int{}
	for _, st := range c.s.routing.all() {
		depth[st.name] = 0
	}
	for _, q := range queues {
		depth[c.s.routing.stats(q.Route, c.s.routing.inFile(q.Route)).name] += q.Waiting
	}
	for name, n := range depth {
		ch <- prometheus.MustNewConstMetric(depthDesc, prometheus.GaugeValue, float64(n), name)
	}
}

// tunnelCollector shows what of the tunnel has labels or buckets.
type tunnelCollector struct{ t *tunnel.Metrics }

var (
	refusalDesc = prometheus.NewDesc("iop_node_refusals_total", "Refused Node connections, by code.", []string{"code"}, nil)
	rttDesc     = prometheus.NewDesc("iop_heartbeat_round_trip_seconds", "Heartbeat round-trip time.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c tunnelCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- refusalDesc
	ch <- rttDesc
}

// Collect implements prometheus.Collector.
func (c tunnelCollector) Collect(ch chan<- prometheus.Metric) {
	c.t.EachRefusal(func(code string, n uint64) {
		ch <- prometheus.MustNewConstMetric(refusalDesc, prometheus.CounterValue, float64(n), code)
	})
	h := c.t.HeartbeatRTT.Snapshot()
	buckets := make(map[float64]uint64, len(h.Bounds))
	for i, bound := range h.Bounds {
		buckets[bound.Seconds()] = h.Counts[i]
	}
	ch <- prometheus.MustNewConstHistogram(rttDesc, h.Count, h.Sum.Seconds(), buckets)
}
