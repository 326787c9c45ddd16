package admission

import (
	"testing"
	"time"
	"unsafe"
)

// engineSpeed is what a provider of a fixed speed tells: so many tokens a second, read and written.
type engineSpeed struct{ input, output float64 }

func (e engineSpeed) sample(input, output, cached int64) Sample {
	first := time.Duration(float64(fixedTokens+input-cached) / e.input * float64(time.Second))
	return Sample{
		FirstToken: first,
		Duration:   first + time.Duration(float64(output-1)/e.output*float64(time.Second)),
		Input:      input, Output: output, Cached: cached,
	}
}

var (
	fast  = engineSpeed{4000, 80}
	slow  = engineSpeed{500, 10}
	epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

// trained returns a pace that saw runs of one engine, one each second, all at the same load. The last was at the epoch.
func trained(e engineSpeed, runs, inFlight int) *pace {
	p := &pace{}
	for i := range runs {
		p.observe(epoch.Add(time.Duration(i-runs+1)*time.Second), e.sample(int64(100+i*50), int64(50+i*10), int64(i*10)), inFlight)
	}
	return p
}

// near reports whether got is want, within a fifth.
func near(got, want time.Duration) bool { return got > want*4/5 && got < want*6/5 }

func TestPaceLearnsAnEngine(t *testing.T) {
	for _, e := range []engineSpeed{fast, slow} {
		p := trained(e, 20, 1)
		for _, load := range []paceLoad{{0, 200, 100}, {0, 8000, 10}, {0, 10, 2000}} {
			want := e.sample(load.input, load.output+1, 0).Duration
			if got := p.expect(epoch, load, nil); !near(got, want) {
				t.Errorf("engine %v, %+v: expected %v, want %v", e, load, got, want)
			}
		}
	}
}

// TestPaceOfAnswersWithoutStream: nothing tells when the first token came, and the whole is still what is expected.
func TestPaceOfAnswersWithoutStream(t *testing.T) {
	p := &pace{}
	for range 20 {
		s := fast.sample(300, 200, 0)
		s.FirstToken = 0
		p.observe(epoch, s, 1)
	}
	want := fast.sample(300, 200, 0).Duration
	if got := p.expect(epoch, paceLoad{0, 300, 200}, nil); !near(got, want) {
		t.Errorf("expected %v, want %v", got, want)
	}
}

func TestPaceKnowsLoads(t *testing.T) {
	p := trained(fast, 10, 1)
	for range 10 {
		p.observe(epoch, slow.sample(100, 50, 0), 7)
	}
	load := paceLoad{0, 1000, 100}
	alone, crowded := fast.sample(1000, 100, 0).Duration, slow.sample(1000, 100, 0).Duration
	for inFlight, want := range map[int]time.Duration{0: alone, 1: alone, 4: crowded, 7: crowded, 1000: crowded} {
		load.inFlight = inFlight
		if got := p.expect(epoch, load, nil); !near(got, want) {
			t.Errorf("behind %d runs: expected %v, want %v", inFlight, got, want)
		}
	}
}

func TestPaceOutliers(t *testing.T) {
	load := paceLoad{0, 1000, 100}
	for name, s := range map[string]Sample{
		"an hour":             {FirstToken: time.Hour, Duration: 2 * time.Hour, Input: 1, Output: 2},
		"no time":             {FirstToken: 1, Duration: 2, Input: 1 << 40, Output: 1 << 40},
		"nothing":             {},
		"counts below 0":      {FirstToken: time.Second, Duration: time.Millisecond, Input: -5, Output: -5, Cached: -5},
		"more cached than in": {FirstToken: time.Second, Duration: 2 * time.Second, Input: 10, Output: 10, Cached: 1 << 40},
	} {
		p := trained(fast, 20, 1)
		before := p.expect(epoch, load, nil)
		p.observe(epoch, s, 1)
		if got := p.expect(epoch, load, nil); got > before*3/2 || got < before/2 {
			t.Errorf("%s: expected %v, before it %v", name, got, before)
		}
	}
}

// TestPaceFollows: a place that has become slow is soon known to be.
func TestPaceFollows(t *testing.T) {
	p := trained(fast, 20, 1)
	for range 20 {
		p.observe(epoch, slow.sample(1000, 100, 0), 1)
	}
	want := slow.sample(1000, 101, 0).Duration
	if got := p.expect(epoch, paceLoad{0, 1000, 100}, nil); got < want*4/5 {
		t.Errorf("after 20 slow runs: expected %v, want %v", got, want)
	}
}

// TestSlowPlaceIsTriedAgain: what was slow and idle since becomes the better choice after about a minute, for one run;
// and what that takes counts.
func TestSlowPlaceIsTriedAgain(t *testing.T) {
	good, bad := trained(fast, 20, 1), trained(slow, 20, 1)
	load := paceLoad{0, 1000, 100}
	var at time.Time
	for s := range 600 {
		now := epoch.Add(time.Duration(s) * time.Second)
		good.observe(now, fast.sample(1000, 100, 0), 1)
		if bad.expect(now, load, nil) < good.expect(now, load, nil) {
			at = now
			break
		}
	}
	if waited := at.Sub(epoch); waited < 30*time.Second || waited > 2*time.Minute {
		t.Fatalf("tried again after %v", waited)
	}
	bad.picked(at)
	if bad.expect(at, load, nil) < good.expect(at, load, nil) {
		t.Error("a second run would go there before the first has told anything")
	}
	bad.observe(at.Add(time.Second), fast.sample(1000, 100, 0), 1)
	bad.observe(at.Add(2*time.Second), fast.sample(1000, 100, 0), 1)
	if got, want := bad.expect(at.Add(2*time.Second), load, nil), good.expect(at, load, nil); !near(got, want) {
		t.Errorf("it has recovered: expected %v, want %v", got, want)
	}
}

func TestUnknownPlace(t *testing.T) {
	fleet := trained(slow, 20, 1)
	load := paceLoad{0, 1000, 100}
	p := &pace{}
	if got := p.expect(epoch, load, fleet); got != 0 {
		t.Errorf("a place of which nothing is known: expected %v", got)
	}
	p.picked(epoch)
	load.inFlight = 1
	if got, want := p.expect(epoch, load, fleet), fleet.expect(epoch, load, nil); got != want {
		t.Errorf("with a run at it: expected %v, want the fleet's %v", got, want)
	}
	if got := p.expect(epoch, load, nil); got != 0 {
		t.Errorf("and no fleet: expected %v", got)
	}
	if got := p.expect(epoch, load, &pace{}); got != 0 {
		t.Errorf("and a fleet of which nothing is known: expected %v", got)
	}
}

func TestPaceIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(pace{}); size > 384 {
		t.Errorf("a pace takes %d bytes", size)
	}
	p := trained(fast, 5, 1)
	s := fast.sample(100, 10, 0)
	if allocs := testing.AllocsPerRun(100, func() {
		p.observe(epoch, s, 3)
		p.expect(epoch, paceLoad{3, 10, 10}, p)
	}); allocs != 0 {
		t.Errorf("%.1f allocations", allocs)
	}
}
