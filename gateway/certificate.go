package gateway

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"iop/gateway/admin"
)

const (
	// pairPoll is how often the public certificate's files are looked at. What they hold takes effect, or is reported, when
	// two looks have found the same: renewals write two files, and not at one moment.
	pairPoll = 2 * time.Second
	// maxPairFile bounds what is read of either file, in bytes. A chain has a few KiB.
	maxPairFile = 1 << 20
)

// publicPair is the certificate that clients are shown, kept current with its files.
type publicPair struct {
	// Static.
	certFile, keyFile string
	log               *slog.Logger

	current atomic.Pointer[tls.Certificate] // never nil once opened; its Leaf is set

	mu      sync.Mutex        // guards what follows, and is held while files are read, so that pairs take effect in their order
	seen    [sha256.Size]byte // what the last look found
	decided [sha256.Size]byte // what was taken or refused last
	loaded  time.Time         // when the pair in force took effect
	fault   string            // why the files as they are now were refused; empty while they are in force
}

// openPair reads the files. Its error is the start's: there is nothing yet that could stay in force.
func openPair(certFile, keyFile string, log *slog.Logger) (*publicPair, error) {
	p := &publicPair{certFile: certFile, keyFile: keyFile, log: log}
	pair, digest, err := p.read()
	if err != nil {
		return nil, err
	}
	p.seen = digest
	p.install(pair, digest)
	return p, nil
}

// get is tls.Config's GetCertificate: each handshake has the pair in force, and connections keep theirs.
func (p *publicPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return p.current.Load(), nil
}

// run looks at the files until ctx ends.
func (p *publicPair) run(ctx context.Context) {
	ticker := time.NewTicker(pairPoll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			p.look()
		}
	}
}

// look reads the files, and decides what two looks have found.
func (p *publicPair) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	pair, digest, err := p.read()
	settled := digest == p.seen
	p.seen = digest
	// What was refused is tried again each time: a certificate may only have been too early.
	if !settled || digest == p.decided && p.fault == "" {
		return
	}
	before := p.fault
	if err = p.decide(pair, digest, err); err != nil && p.fault != before {
		p.log.Error("the new TLS certificate was refused; the previous one stays in use", "file", p.certFile, "error", err)
	}
}

// reload takes what the files hold at once, as SIGHUP asks for. The error says why they were refused; the pair in force
// stays then.
func (p *publicPair) reload() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	pair, digest, err := p.read()
	p.seen = digest
	if digest == p.decided && p.fault == "" {
		return nil
	}
	return p.decide(pair, digest, err)
}

// decide takes or refuses what was read. mu is held.
func (p *publicPair) decide(pair *tls.Certificate, digest [sha256.Size]byte, err error) error {
	if err == nil {
		err = p.usable(pair, time.Now())
	}
	if err == nil {
		p.install(pair, digest)
		leaf := pair.Leaf
		p.log.Info("TLS certificate loaded", "file", p.certFile, "names", leaf.DNSNames, "serial", leaf.SerialNumber.Text(16), "not_after", leaf.NotAfter.UTC())
		return nil
	}
	p.decided = digest
	p.fault = err.Error()
	return err
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

func (p *publicPair) install(pair *tls.Certificate, digest [sha256.Size]byte) {
	p.current.Store(pair)
	p.decided, p.loaded, p.fault = digest, time.Now(), ""
}

// read reads both files by their paths, through whatever symbolic links lead there now. The digest is of the contents, or of
// the error.
func (p *publicPair) read() (*tls.Certificate, [sha256.Size]byte, error) {
	certPEM, certErr := readBounded(p.certFile)
	keyPEM, keyErr := readBounded(p.keyFile)
	defer clear(keyPEM)
	if err := errors.Join(certErr, keyErr); err != nil {
		return nil, sha256.Sum256([]byte(err.Error())), err
	}
	of, key := sha256.Sum256(certPEM), sha256.Sum256(keyPEM)
	digest := sha256.Sum256(append(of[:], key[:]...))
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, digest, fmt.Errorf("%s and %s: %w", p.certFile, p.keyFile, err)
	}
	return &pair, digest, nil
}

func readBounded(path string) ([]byte, error) {
	info, err := os.Stat(path) // a pipe would block the open
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxPairFile+1))
	if err == nil && len(data) > maxPairFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxPairFile)
	}
	return data, err
}

// view is the pair as the operator sees it; nil where the Edge has none.
func (p *publicPair) view() *admin.Certificate {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	leaf := p.current.Load().Leaf
	v := &admin.Certificate{File: p.certFile, Names: append([]string{}, leaf.DNSNames...), NotAfter: leaf.NotAfter.UTC(), Loaded: p.loaded.UTC(), Fault: p.fault}
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
	return s.pair.reload()
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
