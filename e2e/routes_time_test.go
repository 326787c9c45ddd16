package e2e

import (
	"net/http"
	"testing"
	"time"
)

// timeFile has a route for each time that a route can limit, and for each kind of failure that another target may mend.
const timeFile = `
defaults:
  retry: {attempts: 0}
routes:
  - model: chat
    targets: [{model: sim-small}]
  - model: first
    timeouts: {first_byte: 600ms}
    targets: [{model: sim-small}]
  - model: between
    timeouts: {between_chunks: 800ms}
    targets: [{model: sim-small}]
  - model: all
    timeouts: {total: 1200ms}
    targets: [{model: sim-small}]
`

// TestRouteTimeouts has a provider that is silent at each point, and routes that bear it for so long.
func TestRouteTimeouts(t *testing.T) {
	t.Parallel()
	s := newRouted(t, timeFile)
	s.startNodeBehind("node-1", "sim-small", "--slots", "32")
	cases := []struct {
		model, knobs string
		stream       bool
		least, most  time.Duration
		status       int // 0: the whole answer; 200: an error in the stream
	}{
		{"first", "ttft=300ms,tokens=3,itl=1s", true, 2 * time.Second, 20 * time.Second, 0}, // what comes after is not the first byte
		{"first", "ttft=20s", true, 600 * time.Millisecond, 15 * time.Second, http.StatusGatewayTimeout},
		{"first", "ttft=20s", false, 600 * time.Millisecond, 15 * time.Second, http.StatusGatewayTimeout},
		{"first", "fault=hang", true, 600 * time.Millisecond, 15 * time.Second, http.StatusGatewayTimeout},
		{"between", "ttft=1500ms,tokens=3,itl=200ms", true, 1500 * time.Millisecond, 20 * time.Second, 0}, // nor is it silence between
		{"between", "tokens=8,stall_after=4,stall=20s", true, 800 * time.Millisecond, 15 * time.Second, http.StatusOK},
		{"between", "tokens=8,hang_after=2", true, 800 * time.Millisecond, 15 * time.Second, http.StatusOK},
		{"all", "tokens=10,itl=20ms", true, 0, 20 * time.Second, 0},
		{"all", "tokens=1000,itl=50ms", true, 1200 * time.Millisecond, 15 * time.Second, http.StatusOK},
		{"all", "ttft=20s", false, 1200 * time.Millisecond, 15 * time.Second, http.StatusGatewayTimeout},
		{"chat", "ttft=2s,tokens=3,stall_after=2,stall=2s", true, 4 * time.Second, 20 * time.Second, 0},
	}
	for _, c := range cases {
		t.Run(c.model+"/"+c.knobs, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			a := s.chatNow(t, c.model, c.knobs, c.stream)
			took := time.Since(began)
			switch c.status {
			case 0:
				a.ok(t, "within its times")
			case http.StatusOK:
				if err := a.broken(); err != nil {
					t.Error(err)
				}
			default:
				a.refused(t, "too late", c.status, "provider_timeout")
			}
			if took < c.least || took > c.most {
				t.Errorf("it took %s, not %s to %s", took, c.least, c.most)
			}
		})
	}
	t.Cleanup(func() {
		s.sims[0].active(t, 0) // the provider works for nobody
		s.quiet()
	})
}

// retryFile has the same targets with different ideas of what another one may mend.
const retryFile = `
routes:
  - model: usual
    targets: [{model: sim-small}]
  - model: never
    retry: {attempts: 0}
    targets: [{model: sim-small}]
  - model: always
    retry: {attempts: 2, on: [unreachable, overloaded, gateway, lost, server_error]}
    targets: [{model: sim-small}]
  - model: overload-only
    retry: {on: [overloaded]}
    targets: [{model: sim-small}]
`

// TestRetryPolicy has one provider that fails in different ways beside a good one. By its route's policy the client sees
// that, or does not.
func TestRetryPolicy(t *testing.T) {
	t.Parallel()
	for status, hidden := range map[string]map[string]bool{
		"500": {"usual": false, "never": false, "always": true, "overload-only": false},
		"502": {"usual": true, "never": false, "always": true, "overload-only": false},
		"503": {"usual": true, "never": false, "always": true, "overload-only": true},
		"429": {"usual": true, "never": false, "always": true, "overload-only": true},
		"400": {"usual": false, "never": false, "always": false, "overload-only": false},
	} {
		t.Run(status, func(t *testing.T) {
			t.Parallel()
			s := newRouted(t, retryFile)
			bad := s.startSim("--slots", "32")
			good := s.startSim("--slots", "32")
			for model, mended := range hidden {
				// A Node of each, fresh: nothing is known of its target.
				name := "bad-for-" + model
				node := s.launchNode(name, "--provider", "sim="+bad.url)
				s.serving(name, "sim-small")
				bad.control(t, "POST", "/sim/config", map[string]any{"status": status}, nil)
				if len(s.nodes) == 1 {
					s.launchNode("good", "--provider", "sim="+good.url)
					s.serving("good", "sim-small")
				}
				s.oneFails(t, model, bad, mended)
				node.kill()
				bad.control(t, "POST", "/sim/reset", nil, nil)
			}
			s.quiet()
		})
	}
}

// oneFails sends requests until one has reached the bad provider, and looks at what its client was told.
func (s *routed) oneFails(t *testing.T, model string, bad *simulator, mended bool) {
	t.Helper()
	for i := range 10 {
		a := s.chatNow(t, model, "tokens=1", i%2 == 0)
		if bad.startedRuns(t) == 0 {
			a.ok(t, model)
			continue
		}
		r := s.run(a.header.Get("X-Iop-Run-Id"))
		if mended && (a.status != http.StatusOK || r.Attempts != 2 || r.Node != "good") || !mended && (a.status < 400 || r.Attempts != 1) {
			t.Errorf("%s: mended should be %v: %s, %+v", model, mended, a, r)
		}
		return
	}
	t.Errorf("%s: no request has reached the bad provider", model)
}
