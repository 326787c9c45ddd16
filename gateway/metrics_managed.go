package gateway

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"iop/gateway/credential"
	"iop/identity"
	"iop/state"
)

// managed registers what exists in managed mode only.
func (m *metrics) managed(s *Server) {
	m.peers = counterVec("iop_peer_refusals_total", "Peers whose certificate was refused in the tunnel handshake, by reason.", "reason")
	for _, reason := range identity.Reasons() {
		m.peers.WithLabelValues(reason.String())
	}
	m.registry.MustRegister(m.peers, leaseCollector{s.issuer}, identityCollector{s.cfg.Identity})
	audit := func(name, help string, f func(state.AuditLeaseStats) int64) {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help},
			func() float64 { return float64(f(s.cfg.Store.AuditLeaseStats())) }))
	}
	audit("iop_audit_written_total", "Lease entries written to the audit.", func(st state.AuditLeaseStats) int64 { return st.Written })
	audit("iop_audit_refused_total", "Lease entries that could not be queued; their leases were not issued.", func(st state.AuditLeaseStats) int64 { return st.Refused })
	audit("iop_audit_failures_total", "Failed writes of lease entries, which are retried.", func(st state.AuditLeaseStats) int64 { return st.Failures })
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "iop_audit_pending", Help: "Lease entries waiting to be written.",
	}, func() float64 { return float64(s.cfg.Store.AuditLeaseStats().Pending) }))
}

// leaseCollector shows how many leases there were.
type leaseCollector struct{ i *credential.Issuer }

var (
	leasesDesc        = prometheus.NewDesc("iop_leases_issued_total", "Credential leases issued.", nil, nil)
	leaseRefusalsDesc = prometheus.NewDesc("iop_leases_refused_total", "Runs that got no credential lease or whose Node refused it, by reason.", []string{"reason"}, nil)
)

// Describe implements prometheus.Collector.
func (c leaseCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- leasesDesc
	ch <- leaseRefusalsDesc
}

// Collect implements prometheus.Collector.
func (c leaseCollector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(leasesDesc, prometheus.CounterValue, float64(c.i.Issued()))
	for _, r := range credential.Reasons() {
		ch <- prometheus.MustNewConstMetric(leaseRefusalsDesc, prometheus.CounterValue, float64(c.i.Refused(r)), r.String())
	}
}

// identityCollector shows how the Edge's own certificate fares.
type identityCollector struct{ src identity.Source }

var (
	expiryDesc = prometheus.NewDesc("iop_identity_expiry_seconds", "Time until the Edge's own certificate expires; negative once it has.", nil, nil)
	loadsDesc  = prometheus.NewDesc("iop_identity_loads_total", "Identities offered to the Edge, by result (taken, refused).", []string{"result"}, nil)
)

// Describe implements prometheus.Collector.
func (c identityCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- expiryDesc
	ch <- loadsDesc
}

// Collect implements prometheus.Collector. Without a certificate there is no time.
func (c identityCollector) Collect(ch chan<- prometheus.Metric) {
	st := c.src.Status()
	if !st.NotAfter.IsZero() {
		ch <- prometheus.MustNewConstMetric(expiryDesc, prometheus.GaugeValue, time.Until(st.NotAfter).Seconds())
	}
	ch <- prometheus.MustNewConstMetric(loadsDesc, prometheus.CounterValue, float64(st.Loads), "taken")
	ch <- prometheus.MustNewConstMetric(loadsDesc, prometheus.CounterValue, float64(st.Refused), "refused")
}
