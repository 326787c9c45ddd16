package registry

import (
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/tunnel"
)

func TestDeadIncumbentIsProbedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(t)
		dead := newSession("a")
		dead.runs = 3
		connect(t, r, dead)
		dead.alive = false
		began := time.Now()
		connect(t, r, newSession("b"))
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("the probe took %v", took)
		}
		if dead.fenced != execution.CodeSessionSuperseded || r.Nodes()[0].Flapping {
			t.Errorf("fenced with %v", dead.fenced)
		}
	})
}

// TestIncumbentWithRunsKeepsTheName: for as long as it has some, or the other process asks; then the other one gets it.
func TestIncumbentWithRunsKeepsTheName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(t)
		incumbent := newSession("a")
		incumbent.runs = 1
		connect(t, r, incumbent)
		for i := range 30 { // 5 minutes, with gaps between the runs
			incumbent.runs = (i + 1) % 2
			_, err := r.register(t.Context(), newSession("b"))
			refusal, ok := err.(*tunnel.Refusal)
			if !ok || refusal.Code != "flapping" || refusal.RetryAfter != flapRetryAfter {
				t.Fatalf("try %d: %v", i, err)
			}
			time.Sleep(10 * time.Second)
		}
		if incumbent.fenced != 0 || incumbent.superseded || incumbent.yielded || r.target(t) != incumbent.gen {
			t.Error("the incumbent lost its name")
		}
		if n := len(incumbent.notices); n != 5 || incumbent.notices[0] != "name_contested" {
			t.Errorf("in five minutes it was told %q", incumbent.notices)
		}
		if v := r.Nodes()[0]; !v.Flapping || v.Contender != "192.0.2.1:1" || r.Counts().Flapped != 30 {
			t.Errorf("it does not show: %+v", v)
		}
		// The incumbent crashes: nothing holds the other up.
		r.gone("n", incumbent.gen, nil)
		began := time.Now()
		other := newSession("b")
		connect(t, r, other)
		if time.Since(began) != 0 || r.target(t) != other.gen {
			t.Error("the name of a dead process is kept from the living one")
		}
	})
}

// TestFightEndsWithOneWhoAsks: once nobody has asked for a minute, an idle incumbent yields again.
func TestFightEndsWithOneWhoAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(t)
		incumbent := newSession("a")
		connect(t, r, incumbent)
		incumbent.runs = 1
		if _, err := r.register(t.Context(), newSession("b")); code(err) != "flapping" {
			t.Fatal(err)
		}
		incumbent.runs = 0
		time.Sleep(flapWindow - time.Second)
		if _, err := r.register(t.Context(), newSession("b")); code(err) != "flapping" {
			t.Fatal(err)
		}
		time.Sleep(flapWindow)
		if r.Nodes()[0].Flapping {
			t.Error("it shows a fight that is over")
		}
		connect(t, r, newSession("b"))
		if !incumbent.yielded {
			t.Error("the idle incumbent kept the name")
		}
	})
}

// TestIdleProcessesDoNotFlap: the newcomer gets the name of an idle process, and that is the last change while both live.
func TestIdleProcessesDoNotFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(t)
		first, second := newSession("a"), newSession("b")
		connect(t, r, first)
		connect(t, r, second)
		if !first.yielded || first.fenced != 0 || r.target(t) != second.gen {
			t.Fatal("the newcomer has not got the name")
		}
		for range 100 { // the first comes back, as its supervisor does
			if _, err := r.register(t.Context(), newSession("a")); code(err) != "flapping" {
				t.Fatalf("got %v", err)
			}
			time.Sleep(30 * time.Second)
		}
		if second.yielded || r.target(t) != second.gen {
			t.Error("the name went back")
		}
	})
}

// TestRunsBeganMeanwhile: between registration and READY the incumbent got a run. It is not cut.
func TestRunsBeganMeanwhile(t *testing.T) {
	r := newRegistry(t)
	incumbent, newcomer := newSession("a"), newSession("b")
	connect(t, r, incumbent)
	register(t, r, newcomer)
	incumbent.runs = 1
	if err := r.readied("n", newcomer.gen); code(err) != "flapping" {
		t.Errorf("got %v", err)
	}
	if incumbent.fenced != 0 || incumbent.yielded || r.target(t) != incumbent.gen {
		t.Error("the incumbent lost its name")
	}
}

// TestTwoNewcomersAtOnce: of two that registered before either was ready one gets the name, and its runs stay.
func TestTwoNewcomersAtOnce(t *testing.T) {
	r := newRegistry(t)
	first, second := newSession("a"), newSession("b")
	register(t, r, first)
	register(t, r, second)
	if err := r.readied("n", first.gen); err != nil {
		t.Fatal(err)
	}
	r.online("n", first.gen)
	first.runs = 1
	if err := r.readied("n", second.gen); code(err) != "flapping" {
		t.Errorf("got %v", err)
	}
	if r.target(t) != first.gen {
		t.Error("the first lost its name")
	}
}

// TestNodeThatStopsGivesItsNameAway: a process that drains is no incumbent, and its runs finish.
func TestNodeThatStopsGivesItsNameAway(t *testing.T) {
	r := newRegistry(t)
	old := newSession("a")
	connect(t, r, old)
	old.runs = 2
	r.draining("n", old.gen)
	started := newSession("b")
	connect(t, r, started)
	if !old.superseded || old.fenced != 0 || r.target(t) != started.gen || r.Nodes()[0].Flapping {
		t.Error("the process that was started anew is kept out, or the runs of the old one are cut")
	}
}

func TestCrashLoopIsNeverLockedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry(t)
		for i := range 30 {
			s := newSession(string(rune('a' + i)))
			connect(t, r, s)
			if i%2 == 0 {
				r.gone("n", s.gen, nil)
			} else {
				s.alive = false // half open: the Edge does not know yet
			}
		}
	})
}
