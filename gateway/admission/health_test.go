package admission_test

import (
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/gateway/admission"
	"iop/gateway/route"
)

// fail lets a run of the model fail.
func fail(t *testing.T, c *admission.Controller, model string) {
	t.Helper()
	ticket := acquire(t, c, model)
	ticket.Failed()
	ticket.Release()
}

func serve(t *testing.T, c *admission.Controller, model string) {
	t.Helper()
	ticket := acquire(t, c, model)
	ticket.Release() // the tunnel's word may come first
	ticket.Served(admission.Sample{Duration: time.Second, Output: 10})
}

// breaker returns the state of the only breaker that is not closed.
func breaker(t *testing.T, c *admission.Controller) admission.BreakerStats {
	t.Helper()
	var found admission.BreakerStats
	for _, p := range c.Stats().Places {
		if len(p.Breakers) > 0 {
			found = p.Breakers[0]
		}
	}
	return found
}

func wantBreaker(t *testing.T, c *admission.Controller, want string, opens time.Duration) {
	t.Helper()
	if got := breaker(t, c); got.State != want || got.Opens != opens {
		t.Errorf("the breaker is %q, for %v; want %q, %v", got.State, got.Opens, want, opens)
	}
}

func TestBreakerOpensAtTheFifthFailureInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{}).WithoutJitter()
		c.Offer("n", 1, 0, nil, offer(4, "m", "other"))
		for range 4 {
			fail(t, c, "m")
		}
		serve(t, c, "m")
		for range 4 {
			fail(t, c, "m") // 5 of the last 6 at the first of them
			if breaker(t, c).State != "" {
				break
			}
		}
		wantBreaker(t, c, "open", time.Second)
		c.Close()

		c = admission.New(admission.Config{}).WithoutJitter()
		c.Offer("n", 1, 0, nil, offer(4, "m", "other"))
		for range 20 {
			serve(t, c, "m")
		}
		for range 4 {
			fail(t, c, "m")
		}
		wantBreaker(t, c, "", 0)
		fail(t, c, "m")
		wantBreaker(t, c, "open", time.Second)
		serve(t, c, "other") // each model of a place has a breaker of its own
		if n := c.Counters().BreakerOpened.Load(); n != 1 {
			t.Errorf("opened %d times", n)
		}
		c.Close()
	})
}

func TestBreakerOpensWhenHalfOfTheLastTwentyFailed(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("n", 1, 0, nil, offer(4, "m"))
	for range 11 {
		serve(t, c, "m")
	}
	for i := range 9 { // of 20: 9
		fail(t, c, "m")
		if i%3 == 2 {
			serve(t, c, "m")
		}
	}
	// The last 20 are 8 good ones, and 9 failures with 3 good ones between them.
	wantBreaker(t, c, "", 0)
	fail(t, c, "m")
	if breaker(t, c).State != "open" {
		t.Error("half of the last 20 failed and it is not open")
	}
	c.Close()
}

func TestBreakerTrials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{}).WithoutJitter()
		c.Offer("n", 1, 0, nil, offer(4, "m"))
		long := acquire(t, c, "m") // is still running at the end
		for range 5 {
			fail(t, c, "m")
		}
		c.Offer("busy", 1, 0, nil, offer(1, "m")) // is in service, so that the other is no last resort
		acquire(t, c, "m")
		// Each trial that fails doubles the time, up to a minute.
		for _, d := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			wantBreaker(t, c, "open", d*time.Second)
			w := queue(t, c, admission.Request{Route: to("m")})
			second := queue(t, c, admission.Request{Route: to("m")})
			time.Sleep(d*time.Second - 1)
			if synctest.Wait(); answered(w) {
				t.Fatalf("it was tried before %v", d*time.Second)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			trial := result(t, w)
			if trial.Reason.Rule != "trial" || trial.Reason.Public() != "trial" {
				t.Errorf("the trial is called %q", trial.Reason.Rule)
			}
			wantBreaker(t, c, "half_open", 0)
			if answered(second) {
				t.Fatal("two trials at once")
			}
			second.Leave()
			trial.Failed()
			trial.Release()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		// A trial of which nothing is told makes room for another one.
		neutral := acquire(t, c, "m")
		w := queue(t, c, admission.Request{Route: to("m")})
		neutral.Release()
		neutral.Done()
		trial := result(t, w)
		// What began before does not count.
		long.Served(admission.Sample{})
		long.Release()
		wantBreaker(t, c, "half_open", 0)
		// Nor does a refusal: it has no room, which says nothing of its health.
		trial.Refused(time.Second)
		wantBreaker(t, c, "half_open", 0)
		w = queue(t, c, admission.Request{Route: to("m")})
		more := queue(t, c, admission.Request{Route: to("m")})
		time.Sleep(time.Second)
		synctest.Wait()
		trial = result(t, w)
		trial.Release()
		if answered(more) {
			t.Fatal("two trials, as nothing was told yet")
		}
		trial.Served(admission.Sample{})
		wantBreaker(t, c, "", 0)
		result(t, more)
		for range 3 {
			acquire(t, c, "m")
		}
		counters := c.Counters()
		if o, n := counters.BreakerOpened.Load(), counters.BreakerClosed.Load(); o != 9 || n != 1 {
			t.Errorf("opened %d times, closed %d times", o, n)
		}
		c.Close()
	})
}

// A trial whose answer has begun is passed: nobody waits for the end of a long one.
func TestTrialThatAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{}).WithoutJitter()
		c.Offer("n", 1, 0, nil, offer(2, "m"))
		for range 5 {
			fail(t, c, "m")
		}
		c.Offer("busy", 1, 0, nil, offer(1, "m")) // is in service, so that the other is no last resort
		acquire(t, c, "m")
		w := queue(t, c, admission.Request{Route: to("m")})
		other := queue(t, c, admission.Request{Route: to("m")})
		time.Sleep(time.Second)
		synctest.Wait()
		trial := result(t, w)
		trial.Answering()
		trial.Answering()
		result(t, other).Answering()
		wantBreaker(t, c, "", 0)
		// It can still fail, as any other.
		trial.Failed()
		trial.Release()
		for range 4 {
			wantBreaker(t, c, "", 0)
			fail(t, c, "m")
		}
		wantBreaker(t, c, "open", time.Second)
		// Too late: the trial was given up.
		trial.Answering()
		wantBreaker(t, c, "open", time.Second)
		c.Close()
	})
}

// The time that a breaker is open is a tenth more or less: targets that failed together are not tried together.
func TestBreakerJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := map[time.Duration]bool{}
		for range 20 {
			c := admission.New(admission.Config{})
			c.Offer("n", 1, 0, nil, offer(4, "m"))
			for range 5 {
				fail(t, c, "m")
			}
			d := breaker(t, c).Opens
			if d < 900*time.Millisecond || d > 1100*time.Millisecond {
				t.Errorf("open for %v", d)
			}
			seen[d] = true
			c.Close()
		}
		if len(seen) < 10 {
			t.Errorf("%d different times of 20", len(seen))
		}
	})
}

// FAULTS 15: a Node that fails at once looks idle. After 5 errors 95 % go to the healthy one.
func TestFastFailingNodeGetsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{})
		c.Offer("good", 1, 0, nil, offer(8, "m"))
		c.Offer("bad", 1, 0, nil, offer(8, "m"))
		got, errors := map[execution.NodeID]int{}, 0
		for range 3000 {
			time.Sleep(20 * time.Millisecond)
			ticket := acquire(t, c, "m")
			if errors >= 5 {
				got[ticket.Target.Node]++
			}
			if ticket.Target.Node == "bad" {
				errors++
				ticket.Failed()
				ticket.Release()
				continue
			}
			time.AfterFunc(100*time.Millisecond, func() {
				ticket.Served(admission.Sample{FirstToken: time.Millisecond, Duration: 100 * time.Millisecond, Output: 10})
				ticket.Release()
			})
		}
		time.Sleep(time.Second)
		if total := got["good"] + got["bad"]; errors < 5 || got["good"]*100 < total*95 {
			t.Errorf("%d errors; after 5 of them %v", errors, got)
		}
		wantIdle(t, c)
		c.Close()
	})
}

// Failures count in the load, until they are forgotten.
func TestPenaltyDecays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{})
		c.Offer("a", 1, 0, nil, offer(4, "m"))
		fail(t, c, "m")
		c.Offer("b", 1, 0, nil, offer(4, "m"))
		take := func(n int) map[execution.NodeID]int {
			got := map[execution.NodeID]int{}
			for range n {
				got[acquire(t, c, "m").Target.Node]++
			}
			return got
		}
		if got := take(2); got["b"] != 2 { // a failure weighs half of the capacity
			t.Errorf("after a failure: %v", got)
		}
		time.Sleep(10 * time.Second)
		if got := take(1); got["a"] != 1 { // a quarter is left
			t.Errorf("after the half of it: %v", got)
		}
		time.Sleep(2 * time.Minute)
		if got := take(5); got["a"] != 3 || got["b"] != 2 {
			t.Errorf("when it was forgotten: %v", got)
		}
	})
}

// Under each policy a target that fails gets less, before its breaker opens.
func TestPenaltyUnderEachPolicy(t *testing.T) {
	for _, policy := range []route.Policy{route.LeastBusy, route.Weighted, route.LowestWait, route.WarmFirst, route.PrefixAffinity} {
		t.Run(policy.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, r := configured(policy, group(0, node("")))
				req := admission.Request{Route: r, Tokens: 1000, Output: 100, Affinity: admission.AffinityOf("p", "s", "", nil)}
				c.Offer("bad", 1, 0, nil, offer(4, "m"))
				for range 4 {
					ticket, _, _ := c.Acquire(req)
					ticket.Failed()
					ticket.Release()
				}
				c.Offer("good", 1, 0, nil, offer(4, "m"))
				c.Offer("fair", 1, 0, nil, offer(4, "m"))
				got := map[execution.NodeID]int{}
				for range 1000 {
					ticket, _, _ := c.Acquire(req)
					got[ticket.Target.Node]++
					ticket.Release()
				}
				if got["bad"] > 250 || policy != route.Weighted && got["bad"] > 0 {
					t.Errorf("got %v", got)
				}
			})
		})
	}
}

// Of a target of which only failures are known, it is not known that it is fast.
func TestFailuresAreNotFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := configured(route.LowestWait, group(0, node("")))
		c.Offer("good", 1, 0, nil, offer(4, "m"))
		good := take1(t, c, r)
		good.Served(admission.Sample{FirstToken: 50 * time.Millisecond, Duration: 500 * time.Millisecond, Input: 500, Output: 200})
		good.Release()
		c.Offer("bad", 1, 0, nil, offer(4, "m"))
		for range 4 {
			bad, _, _ := c.Acquire(admission.Request{Route: r, Avoid: []admission.Target{good.Target}})
			bad.Failed()
			bad.Release()
		}
		time.Sleep(31 * time.Second) // from then on what nothing is known of is tried
		if ticket := take1(t, c, r); ticket.Target.Node != "good" {
			t.Errorf("got %v", ticket.Target)
		}
	})
}

// Affinity leads to no target that is cut off by its breaker.
func TestAffinityKeepsOffOpenBreakers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := configured(route.PrefixAffinity, group(0, node("")))
		c.Offer("a", 1, 0, nil, offer(9, "m"))
		req := admission.Request{Route: r, Affinity: admission.AffinityOf("p", "s", "", nil)}
		for range 5 {
			ticket, _, _ := c.Acquire(req)
			ticket.Failed()
			ticket.Release()
		}
		for d := time.Second; d <= time.Minute; d *= 2 { // until the penalty is gone before the breaker opens
			time.Sleep(min(d, time.Minute))
			synctest.Wait()
			trial, _, _ := c.Acquire(req)
			trial.Failed()
			trial.Release()
		}
		time.Sleep(58 * time.Second)
		wantBreaker(t, c, "open", 2*time.Second)
		c.Offer("b", 1, 0, nil, offer(9, "m"))
		for range 3 {
			if ticket, _, _ := c.Acquire(req); ticket.Target.Node != "b" {
				t.Errorf("got %v by %v", ticket.Target, ticket.Reason)
			}
		}
		c.Close()
	})
}

func TestRefusedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{})
		c.Offer("n", 1, 0, nil, offer(4, "m", "other"))
		for _, test := range []struct{ told, want time.Duration }{{7 * time.Second, 7 * time.Second}, {time.Hour, time.Minute}} {
			running := acquire(t, c, "m")
			acquire(t, c, "m").Refused(test.told)
			w := queue(t, c, admission.Request{Route: to("other")}) // the whole place rests
			running.Served(admission.Sample{})
			running.Release()
			c.Offer("n", 1, 0, nil, offer(4, "m", "other"))
			time.Sleep(test.want - 1)
			if synctest.Wait(); answered(w) {
				t.Errorf("it got a run within %v", test.want)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			result(t, w).Release()
		}
		// It is no failure.
		for range 10 {
			acquire(t, c, "m").Refused(time.Second)
			time.Sleep(time.Second)
			synctest.Wait()
		}
		wantBreaker(t, c, "", 0)
		if n := c.Counters().Refusals.Load(); n != 12 {
			t.Errorf("%d refusals", n)
		}
		wantIdle(t, c)
		c.Close()
	})
}

// Runs that were sent together and are refused together are one refusal.
func TestRefusalsOfABurstCountOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{})
		c.Offer("n", 1, 0, nil, offer(8, "m"))
		var burst []*admission.Ticket
		for range 8 {
			burst = append(burst, acquire(t, c, "m"))
		}
		for _, ticket := range burst {
			ticket.Refused(0)
		}
		w := queue(t, c, admission.Request{Route: to("m")})
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		result(t, w).Release()
		c.Close()
	})
}

// A session that replaces its former in the same process inherits its health; a new process begins clean.
func TestHealthOfSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{}).WithoutJitter()
		c.Offer("n", 1, 0, nil, offer(4, "m"))
		for range 5 {
			fail(t, c, "m")
		}
		c.Withdraw("n", 1)
		c.Offer("n", 2, 1, nil, offer(4, "m"))
		wantBreaker(t, c, "open", time.Second)
		c.Withdraw("n", 2) // its time runs out while nobody has it
		time.Sleep(5 * time.Second)
		c.Offer("n", 3, 2, nil, offer(4, "m"))
		synctest.Wait()
		trial := acquire(t, c, "m")
		if trial.Reason.Rule != "trial" {
			t.Errorf("the first run of the third session is by %q", trial.Reason.Rule)
		}
		trial.Failed()
		trial.Release()
		c.Remove("n", 3)
		c.Offer("n", 4, 0, nil, offer(4, "m"))
		serve(t, c, "m")
		acquire(t, c, "m").Refused(time.Minute)
		c.Offer("n", 5, 0, nil, offer(4, "m"))
		if ticket := acquire(t, c, "m"); ticket.Target.Generation != 5 {
			t.Errorf("got %v", ticket.Target)
		}
		c.Close()
	})
}
