package bench

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Run puts the load on the target and returns what came of it. A request that fails is part of the report, not an
// error; the error is about the configuration. If ctx ends, what is under way is cancelled, and the report covers what
// was done.
func Run(ctx context.Context, cfg Config) (Report, error) {
	if err := cfg.validate(); err != nil {
		return Report{}, err
	}
	begin := time.Now()
	t := run(ctx, cfg)
	return t.report(cfg, time.Since(begin)), nil
}

// rounds is how many turns each target gets in Compare: what else happens on the machine then meets both.
const rounds = 3

// Compare puts the same load on cfg.Target and on other, in turns, and returns both reports and their ratios. Requests
// and Duration are for each target.
func Compare(ctx context.Context, cfg Config, other Target) (Comparison, error) {
	if err := cfg.validate(); err != nil {
		return Comparison{}, err
	}
	if err := other.validate(); err != nil {
		return Comparison{}, err
	}
	configs := [2]Config{cfg, cfg}
	configs[1].Target = other
	var tallies [2]tally
	var elapsed [2]time.Duration
	for round := range rounds {
		for i, c := range configs {
			c.Requests = share(cfg.Requests, round)
			c.Duration = cfg.Duration / rounds
			if c.Requests == 0 && c.Duration == 0 || ctx.Err() != nil {
				continue
			}
			begin := time.Now()
			tallies[i].merge(run(ctx, c))
			elapsed[i] += time.Since(begin)
		}
	}
	c := Comparison{
		Target:  tallies[0].report(configs[0], elapsed[0]),
		Against: tallies[1].report(configs[1], elapsed[1]),
	}
	c.Ratios = ratios(c.Target, c.Against)
	return c, nil
}

// share divides n requests over the rounds.
func share(n, round int) int {
	part := n / rounds
	if round < n%rounds {
		part++
	}
	return part
}

// load is one run under way.
type load struct {
	// Static.
	cfg    Config
	client *http.Client
	body   []byte
	begin  time.Time

	begun, ended, failed, tokens, underWay atomic.Int64

	mu    sync.Mutex
	total tally // guarded by mu until the workers have ended
}

func run(ctx context.Context, cfg Config) *tally {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns = cfg.Concurrency
	transport.MaxIdleConnsPerHost = cfg.Concurrency
	transport.DisableCompression = true // a compressed stream arrives in lumps
	defer transport.CloseIdleConnections()
	l := &load{cfg: cfg, client: &http.Client{Transport: transport}, body: requestBody(cfg), begin: time.Now()}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if cfg.Duration > 0 {
		end := time.AfterFunc(cfg.Duration+grace, cancel)
		defer end.Stop()
	}
	var progress sync.WaitGroup
	stop := make(chan struct{})
	progress.Go(func() { l.tellProgress(stop) })
	l.work(ctx)
	close(stop)
	progress.Wait()
	return &l.total
}

// work runs the workers to their end.
func (l *load) work(ctx context.Context) {
	var workers sync.WaitGroup
	for range l.cfg.Concurrency {
		workers.Go(func() {
			var r result
			for l.next(ctx) {
				r = result{}
				l.underWay.Add(1)
				l.request(ctx, &r)
				l.underWay.Add(-1)
				l.count(&r)
			}
		})
	}
	workers.Wait()
}

// next reports whether one more request is to be made.
func (l *load) next(ctx context.Context) bool {
	if ctx.Err() != nil || l.cfg.Duration > 0 && time.Since(l.begin) >= l.cfg.Duration {
		return false
	}
	return l.begun.Add(1) <= int64(l.cfg.Requests) || l.cfg.Requests == 0
}

func (l *load) count(r *result) {
	l.ended.Add(1)
	l.tokens.Add(r.tokens)
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.kind != "" {
		l.failed.Add(1)
	}
	l.total.add(r)
}

func (l *load) tellProgress(stop <-chan struct{}) {
	if l.cfg.Progress == nil {
		return
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			l.cfg.Progress(Progress{
				Elapsed: time.Since(l.begin), Ended: l.ended.Load(), Failed: l.failed.Load(), Tokens: l.tokens.Load(),
				UnderWay: l.underWay.Load(), RequestsWanted: l.cfg.Requests,
			})
		}
	}
}
