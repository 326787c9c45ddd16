package gateway

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"iop/filewatch"
	"iop/gateway/admin"
)

const (
	// pairPoll is how often the public certificate's files are examined.
	pairPoll = 2 * time.Second
	// maxPairFile bounds what is read of either file, in bytes. A chain has a few KiB.
	maxPairFile = 1 << 20
)

// publicPair is the certificate that clients are shown, kept current with its files.
type publicPair struct {
	// Static.
	certFile, keyFile string
	log               *slog.Logger
	files             *filewatch.Watcher

	current atomic.Pointer[tls.Certificate] // never nil once opened; its Leaf is set
	loaded  atomic.Pointer[time.Time]       // when it took effect
}

// openPair reads the files. Its error is the start's: there is nothing yet that could stay in force.
func openPair(certFile, keyFile string, log *slog.Logger) (*publicPair, error) {
	p := &publicPair{certFile: certFile, keyFile: keyFile, log: log}
	var err error
	p.files, err = filewatch.Open(filewatch.Config{
		Files: []filewatch.File{{Path: certFile, Max: maxPairFile}, {Path: keyFile, Max: maxPairFile}},
		Take:  p.take,
		Refused: func(err error) {
			log.Error("the new TLS certificate was refused; the previous one stays in use", "file", certFile, "error", err)
		},
	})
	return p, err
}

// get is tls.Config's GetCertificate: each handshake has the pair in force, and connections keep theirs.
func (p *publicPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return p.current.Load(), nil
}

// take puts a certificate and its key in force, unless they are not usable.
func (p *publicPair) take(contents [][]byte) error {
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return fmt.Errorf("%s and %s: %w", p.certFile, p.keyFile, err)
	}
	now := time.Now()
	before := p.current.Load()
	if before != nil {
		if err := p.usable(&pair, now); err != nil {
			return err
		}
	}
	p.current.Store(&pair)
	p.loaded.Store(&now)
	if before != nil {
		leaf := pair.Leaf
		p.log.Info("TLS certificate loaded", "file", p.certFile, "names", leaf.DNSNames, "serial", leaf.SerialNumber.Text(16), "not_after", leaf.NotAfter.UTC())
	}
	return nil
}

// usable refuses a certificate whose time is over or has not come, as long as the one in force is good.
func (p *publicPair) usable(pair *tls.Certificate, now time.Time) error {
	if now.After(p.current.Load().Leaf.NotAfter) {
		return nil
	}
	switch leaf := pair.Leaf; {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("%s: the certificate expired at %s", p.certFile, leaf.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("%s: the certificate is not valid before %s", p.certFile, leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	return nil
}

// view is the pair as the operator sees it; nil where the Edge has none.
func (p *publicPair) view() *admin.Certificate {
	if p == nil {
		return nil
	}
	leaf := p.current.Load().Leaf
	v := &admin.Certificate{File: p.certFile, Names: append([]string{}, leaf.DNSNames...), NotAfter: leaf.NotAfter.UTC(), Loaded: p.loaded.Load().UTC(), Fault: p.files.Status().Fault}
	for _, ip := range leaf.IPAddresses {
		v.Names = append(v.Names, ip.String())
	}
	return v
}

// ReloadCertificate reads the public listener's certificate and key now; without them it does nothing. The error says why they
// were refused; then nothing has changed. Any goroutine may call it.
func (s *Server) ReloadCertificate() error {
	if s.pair == nil {
		return nil
	}
	return s.pair.files.Reload()
}

// certificateCollector shows how the public certificate fares.
type certificateCollector struct{ p *publicPair }

var (
	tlsExpiryDesc = prometheus.NewDesc("iop_tls_expiry_seconds", "Until the public listener's certificate ends; negative since then.", nil, nil)
	tlsFaultDesc  = prometheus.NewDesc("iop_tls_fault", "1 while the files of the public listener's certificate are refused and the previous pair stays in use.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c certificateCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- tlsExpiryDesc
	ch <- tlsFaultDesc
}

// Collect implements prometheus.Collector.
func (c certificateCollector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(tlsExpiryDesc, prometheus.GaugeValue, time.Until(c.p.current.Load().Leaf.NotAfter).Seconds())
	fault := 0.0
	if c.p.view().Fault != "" {
		fault = 1
	}
	ch <- prometheus.MustNewConstMetric(tlsFaultDesc, prometheus.GaugeValue, fault)
}
