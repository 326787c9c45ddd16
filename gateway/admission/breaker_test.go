package admission_test

import (
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/gateway/admission"
	"iop/gateway/route"
)

// taken is a run that must go to a Node, by a rule.
func taken(t *testing.T, c *admission.Controller, req admission.Request, node execution.NodeID, rule string) *admission.Ticket {
	t.Helper()
	ticket, _, err := c.Acquire(req)
	if ticket == nil {
		t.Fatalf("no ticket of %s by %s: %v", node, rule, err)
	}
	if ticket.Target.Node != node || ticket.Reason.Rule != rule {
		t.Fatalf("got %s by %s, not %s by %s", ticket.Target.Node, ticket.Reason.Rule, node, rule)
	}
	return ticket
}

// failed is a run that fails.
func failed(ticket *admission.Ticket) {
	ticket.Release()
	ticket.Failed()
	ticket.Done()
}

// trip opens the breaker of the only target that the request can go to.
func trip(t *testing.T, c *admission.Controller, req admission.Request) {
	t.Helper()
	for range 5 {
		ticket, _, err := c.Acquire(req)
		if ticket == nil {
			t.Fatalf("no ticket: %v", err)
		}
		failed(ticket)
	}
}

// A breaker keeps nobody away from the only target: who asks is told at once what its provider says.
func TestLastResort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := configured(route.LeastBusy, group(0, node("")))
		defer c.Close()
		req := admission.Request{Route: r}
		c.Offer("a", 1, 0, nil, offer(2, "m"))
		trip(t, c, req)
		if !c.Serves(r) {
			t.Error("nothing serves it")
		}
		// It fails on, and the time to the trial stays what it was.
		time.Sleep(600 * time.Millisecond)
		for range 20 {
			failed(taken(t, c, req, "a", "last_resort"))
		}
		wantBreaker(t, c, "open", 400*time.Millisecond)
		// Its capacity holds, and who waits for it gets it.
		one := taken(t, c, req, "a", "last_resort")
		two := taken(t, c, req, "a", "last_resort")
		w := queue(t, c, req)
		two.Release()
		three := result(t, w)
		if three.Reason.Rule != "last_resort" {
			t.Errorf("who waited got it by %q", three.Reason.Rule)
		}
		failed(three)
		time.Sleep(400 * time.Millisecond)
		synctest.Wait()
		// Beside the trial there is still no other.
		trial := taken(t, c, req, "a", "trial")
		one.Release()
		failed(taken(t, c, req, "a", "last_resort"))
		wantBreaker(t, c, "half_open", 0)
		failed(trial)
		wantBreaker(t, c, "open", 2*time.Second)
		// One that goes well is enough, whenever it began.
		one.Served(admission.Sample{})
		wantBreaker(t, c, "", 0)
		if got := c.Counters().BreakerOpened.Load(); got != 2 {
			t.Errorf("opened %d times", got)
		}
		// What was told of the former times is over.
		trip(t, c, req)
		wantBreaker(t, c, "open", time.Second)
		two.Served(admission.Sample{})
		two.Answering()
		wantBreaker(t, c, "open", time.Second)
	})
}

// A run that went well beside the trial closes the breaker; the trial that fails then is one failure.
func TestLastResortBesideTheTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := configured(route.LeastBusy, group(0, node("")))
		defer c.Close()
		req := admission.Request{Route: r}
		c.Offer("a", 1, 0, nil, offer(2, "m"))
		trip(t, c, req)
		time.Sleep(time.Second)
		synctest.Wait()
		trial := taken(t, c, req, "a", "trial")
		other := taken(t, c, req, "a", "last_resort")
		w := queue(t, c, req)
		other.Answering()
		wantBreaker(t, c, "", 0)
		failed(trial)
		wantBreaker(t, c, "", 0)
		if got := result(t, w); got.Reason.Rule != "queue" {
			t.Errorf("then %q", got.Reason.Rule)
		}
		// It answers on, as the breaker opens again: that is no news.
		other.Release()
		for range 4 {
			failed(taken(t, c, req, "a", "only_target"))
		}
		wantBreaker(t, c, "open", time.Second)
		other.Answering()
		other.Served(admission.Sample{})
		wantBreaker(t, c, "open", time.Second)
	})
}

// As long as another target is in service, full or at rest, nobody is sent to what fails.
func TestNoLastResortBesideOthers(t *testing.T) {
	for name, end := range map[string]func(c *admission.Controller, b *admission.Ticket){
		"gone":      func(c *admission.Controller, _ *admission.Ticket) { c.Remove("b", 1) },
		"withdrawn": func(c *admission.Controller, _ *admission.Ticket) { c.Withdraw("b", 1) },
		"broken": func(_ *admission.Controller, b *admission.Ticket) {
			b.Failed()
		},
		"hung": func(c *admission.Controller, _ *admission.Ticket) {
			hung := offer(2, "m")
			hung[0].Selectable = false
			c.Offer("b", 1, 0, nil, hung)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, r := configured(route.LeastBusy, group(0, node("a")), group(0, node("b")))
				defer c.Close()
				req := admission.Request{Route: r}
				c.Offer("a", 1, 0, nil, offer(2, "m"))
				trip(t, c, req)
				c.Offer("b", 1, 0, nil, offer(2, "m"))
				for range 4 {
					failed(taken(t, c, req, "b", "only_target"))
				}
				b := taken(t, c, req, "b", "only_target")
				taken(t, c, req, "b", "only_target")
				w, second := queue(t, c, req), queue(t, c, req)
				// For who must not use b, b is no other.
				avoids := admission.Request{Route: r, Avoid: []admission.Target{b.Target, {Node: "never"}}, Line: b.Line}
				failed(taken(t, c, avoids, "a", "last_resort"))
				// Nor while it waits.
				one, two := taken(t, c, avoids, "a", "last_resort"), taken(t, c, avoids, "a", "last_resort")
				kept := queue(t, c, avoids)
				one.Release()
				if result(t, kept).Release(); answered(w) {
					t.Fatal("it was sent to what fails, with who may not use another")
				}
				two.Release()
				// A place at a that becomes free is for nobody who may use b.
				c.Offer("a", 1, 0, nil, offer(3, "m"))
				if answered(w) {
					t.Fatal("it was sent to what fails, while another is in service")
				}
				end(c, b)
				for _, w := range []*admission.Waiter{w, second} {
					if got := result(t, w); got.Target.Node != "a" || got.Reason.Rule != "last_resort" {
						t.Errorf("got %v by %q", got.Target, got.Reason.Rule)
					}
				}
			})
		})
	}
}

// A refusal is about room, and waited for, also where nothing else is left.
func TestLastResortRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := configured(route.LeastBusy, group(0, node("")))
		defer c.Close()
		req := admission.Request{Route: r}
		c.Offer("a", 1, 0, nil, offer(2, "m"))
		trip(t, c, req)
		taken(t, c, req, "a", "last_resort").Refused(300 * time.Millisecond)
		w := queue(t, c, req)
		time.Sleep(300*time.Millisecond - 1)
		if synctest.Wait(); answered(w) {
			t.Fatal("it was not left alone")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if got := result(t, w); got.Reason.Rule != "last_resort" {
			t.Errorf("then by %q", got.Reason.Rule)
		}
	})
}

// A group for when the others are down goes before a last resort of theirs; then it is the order of the groups.
func TestLastResortOfGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := configured(route.LeastBusy, group(0, node("a")), group(route.WhenDown, node("b")))
		defer c.Close()
		req := admission.Request{Route: r}
		c.Offer("b", 1, 0, nil, offer(4, "m"))
		trip(t, c, req)
		c.Offer("a", 1, 0, nil, offer(1, "m"))
		time.Sleep(500 * time.Millisecond)
		trip(t, c, req)
		// Both are open: the first group, and the second when there is no room.
		one := taken(t, c, req, "a", "last_resort")
		two := taken(t, c, req, "b", "last_resort")
		if two.Reason.Group != 1 {
			t.Errorf("of group %d", two.Reason.Group)
		}
		one.Release()
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		taken(t, c, req, "b", "trial").Served(admission.Sample{})
		taken(t, c, req, "b", "only_target") // a is open still
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		trial := taken(t, c, req, "a", "trial")
		taken(t, c, req, "b", "only_target") // full, and in service
		queue(t, c, req).Leave()
		trial.Served(admission.Sample{})
	})
}

// The policy holds where all fail, too.
func TestLastResortByPolicy(t *testing.T) {
	names := []execution.NodeID{"idle", "heavy", "fast", "warm", "known"}
	for policy, want := range map[route.Policy]execution.NodeID{
		route.LeastBusy: "", route.Weighted: "heavy", route.LowestWait: "fast", route.WarmFirst: "warm", route.PrefixAffinity: "known",
	} {
		t.Run(policy.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				chat := &route.Route{Name: "chat", Policy: policy}
				other := &route.Route{Name: "other", Policy: route.LeastBusy, Groups: []route.Group{group(0, route.Target{Model: "other", Weight: 1})}}
				var targets []route.Target
				for _, name := range names {
					targets = append(targets, route.Target{Node: string(name), Model: "m", Weight: map[bool]int{false: 1, true: 1000}[name == "heavy"]})
				}
				chat.Groups = []route.Group{group(0, targets...)}
				c := admission.New(admission.Config{})
				defer c.Close()
				c.Configure(admission.TableOf(false, chat, other))
				for _, name := range names {
					c.Offer(name, 1, 0, nil, offer(20, "m", "other"))
				}
				only := func(r *route.Route, name execution.NodeID) admission.Request {
					req := admission.Request{Route: r, Tokens: 100, Output: 50}
					for _, n := range names {
						if n != name {
							req.Avoid = append(req.Avoid, admission.Target{Node: n, Generation: 1, Provider: "p"})
						}
					}
					return req
				}
				req := admission.Request{Route: chat, Tokens: 100, Output: 50, Affinity: admission.AffinityOf("p", "s", "", nil)}
				for _, name := range names {
					took := time.Second
					if name == "fast" {
						took /= 100
					}
					run, _, _ := c.Acquire(only(chat, name))
					run.Served(admission.Sample{FirstToken: took, Duration: 2 * took, Input: 50, Output: 50})
					run.Release()
					trip(t, c, only(chat, name))
				}
				known := only(chat, "known")
				known.Affinity = req.Affinity
				taken(t, c, known, "known", "last_resort").Release()
				for _, name := range names {
					if name != "warm" { // the others had to unload the model
						run, _, _ := c.Acquire(only(other, name))
						run.Release()
					}
				}
				got := map[execution.NodeID]int{}
				for range 20 {
					ticket, _, _ := c.Acquire(req)
					if ticket == nil || ticket.Reason.Rule != "last_resort" {
						t.Fatalf("got %v", ticket)
					}
					got[ticket.Target.Node]++
					if want != "" {
						ticket.Release()
					}
				}
				for _, name := range names {
					if want == "" && got[name] != 4 || name == want && got[name] < 18 {
						t.Errorf("got %v", got)
					}
				}
			})
		})
	}
}

// The tunnel gives a place back before anybody knows what became of the run: that ends no trial.
func TestTrialEndsWithItsVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := configured(route.LeastBusy, group(0, node("")))
		defer c.Close()
		req := admission.Request{Route: r}
		c.Offer("a", 1, 0, nil, offer(9, "m"))
		trip(t, c, req)
		c.Offer("b", 1, 0, nil, offer(1, "m"))
		taken(t, c, req, "b", "least_busy")
		w := queue(t, c, req)
		time.Sleep(time.Second)
		synctest.Wait()
		trial := result(t, w)
		w = queue(t, c, req)
		trial.Release()
		if answered(w) {
			t.Fatal("a second trial, before the first is known")
		}
		// Nothing is told of it: there is another one.
		trial.Done()
		second := result(t, w)
		w = queue(t, c, req)
		trial.Done()
		if answered(w) {
			t.Fatal("the end of the first trial ends the second")
		}
		// It ends while its provider is at work still: the place stays taken.
		inFlight, _ := c.Counts()
		second.Done()
		third := result(t, w)
		if n, _ := c.Counts(); n != inFlight+1 {
			t.Errorf("%d in flight, not one more than %d", n, inFlight)
		}
		second.Release()
		// Who waited and went away meanwhile holds neither place nor trial.
		w, next := queue(t, c, req), queue(t, c, req)
		third.Done()
		third.Release()
		if !answered(w) || answered(next) {
			t.Fatal("not one trial")
		}
		w.Leave()
		trial = result(t, next)
		// A refusal says nothing of its health, and ends it.
		w = queue(t, c, req)
		trial.Refused(time.Second)
		time.Sleep(time.Second)
		synctest.Wait()
		trial = result(t, w)
		if trial.Reason.Rule != "trial" {
			t.Errorf("after a refused one by %q", trial.Reason.Rule)
		}
		trial.Failed()
		trial.Done()
		wantBreaker(t, c, "open", 2*time.Second)
		trial.Done()
		wantBreaker(t, c, "open", 2*time.Second)
	})
}

// A failure that is told late ends no other's trial.
func TestOldTrialEndsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := configured(route.LeastBusy, group(0, node("")))
		defer c.Close()
		req := admission.Request{Route: r}
		c.Offer("a", 1, 0, nil, offer(9, "m"))
		trip(t, c, req)
		time.Sleep(time.Second)
		synctest.Wait()
		old := taken(t, c, req, "a", "trial")
		old.Done()
		trial := taken(t, c, req, "a", "trial")
		old.Failed()
		wantBreaker(t, c, "half_open", 0)
		trial.Failed()
		wantBreaker(t, c, "open", 2*time.Second)
	})
}

// A target that was mended gets its share with the first run that goes well, though others have nothing to do.
func TestSuccessClearsThePenalty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, answers := range []bool{false, true} {
			c, r := configured(route.LeastBusy, group(0, node("")))
			req := admission.Request{Route: r}
			c.Offer("a", 1, 0, nil, offer(4, "m"))
			trip(t, c, req)
			mended := taken(t, c, req, "a", "last_resort")
			if answers {
				mended.Answering()
			} else {
				mended.Served(admission.Sample{})
			}
			mended.Release()
			c.Offer("b", 1, 0, nil, offer(4, "m"))
			taken(t, c, req, "b", "least_busy") // was never picked
			taken(t, c, req, "a", "least_busy").Failed()
			// While the breaker is closed a success forgives nothing: a penalty weighs by how often it fails.
			only := admission.Request{Route: r, Avoid: []admission.Target{{Node: "b", Generation: 1, Provider: "p"}}}
			taken(t, c, only, "a", "least_busy").Served(admission.Sample{})
			for range 3 {
				taken(t, c, req, "b", "least_busy")
			}
			c.Close()
		}
	})
}

// A half-open target that nobody needs gets a run after 30 s all the same, under each policy.
func TestTrialIsDue(t *testing.T) {
	for _, policy := range []route.Policy{route.LeastBusy, route.Weighted, route.LowestWait, route.WarmFirst, route.PrefixAffinity} {
		t.Run(policy.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				good := node("b")
				good.Weight = 1000
				c, r := configured(policy, group(0, node("a"), good))
				defer c.Close()
				req := admission.Request{Route: r, Affinity: admission.AffinityOf("p", "s", "", nil)}
				c.Offer("a", 1, 0, nil, offer(4, "m"))
				trip(t, c, req)
				c.Offer("b", 1, 0, nil, offer(400, "m"))
				others := func() {
					t.Helper()
					for range 10 {
						run, _, _ := c.Acquire(req)
						if run.Target.Node != "b" {
							t.Fatalf("got %s by %s", run.Target.Node, run.Reason.Rule)
						}
						run.Served(admission.Sample{FirstToken: time.Millisecond, Duration: 2 * time.Millisecond, Output: 10})
						run.Release()
					}
				}
				for _, open := range []time.Duration{1, 2, 4} {
					others()
					time.Sleep(open*time.Second + trialWait - 1)
					synctest.Wait()
					wantBreaker(t, c, "half_open", 0)
					if policy != route.Weighted { // by its weight it would get one now and then
						others()
					}
					time.Sleep(time.Nanosecond)
					synctest.Wait()
					// Of a trial that says nothing, and of one that had no room, it stays due.
					trial := taken(t, c, req, "a", "trial")
					others()
					trial.Release()
					trial.Done()
					taken(t, c, req, "a", "trial").Refused(time.Second)
					others()
					time.Sleep(time.Second)
					synctest.Wait()
					failed(taken(t, c, req, "a", "trial"))
				}
				time.Sleep(8*time.Second + trialWait)
				synctest.Wait()
				trial := taken(t, c, req, "a", "trial")
				trial.Served(admission.Sample{})
				trial.Release()
				wantBreaker(t, c, "", 0)
				if policy == route.LeastBusy {
					failed(taken(t, c, req, "b", "least_busy"))
					taken(t, c, req, "a", "least_busy") // as any other
				}
			})
		})
	}
}

const trialWait = 30 * time.Second

// A trial that is due waits for room and is not for who avoids its target, and neither keeps the others waiting.
func TestTrialIsDueWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := configured(route.LeastBusy, group(0, node("")), group(0, route.Target{Model: "other", Weight: 1}))
		defer c.Close()
		req := admission.Request{Route: r}
		c.Offer("a", 1, 0, nil, offer(1, "m"))
		trip(t, c, req)
		c.Offer("b", 1, 0, nil, offer(9, "m"))
		time.Sleep(time.Second + trialWait)
		synctest.Wait()
		avoids := admission.Request{Route: r, Avoid: []admission.Target{{Node: "a", Generation: 1, Provider: "p"}}}
		taken(t, c, avoids, "b", "least_busy")
		trial := taken(t, c, req, "a", "trial")
		trial.Done() // its place is taken still
		taken(t, c, req, "b", "least_busy")
		taken(t, c, req, "b", "least_busy")
		trial.Release()
		taken(t, c, req, "a", "trial")
	})
}

// One that is due is found where all others are full.
func TestTrialIsDueAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := configured(route.LeastBusy, group(0, node("")))
		defer c.Close()
		req := admission.Request{Route: r}
		c.Offer("a", 1, 0, nil, offer(1, "m"))
		trip(t, c, req)
		c.Offer("b", 1, 0, nil, offer(1, "m"))
		taken(t, c, req, "b", "least_busy")
		queue(t, c, req).Leave() // found that it is full
		time.Sleep(time.Second + trialWait)
		synctest.Wait()
		taken(t, c, req, "a", "trial")
	})
}

// A place that two groups of a route lead to is for the first of them.
func TestLastResortOfOnePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := configured(route.LeastBusy, group(0, node("")), group(0, route.Target{Model: "n", Weight: 1}))
		defer c.Close()
		req := admission.Request{Route: r}
		c.Offer("a", 1, 0, nil, offer(1, "m", "n"))
		trip(t, c, req)
		trip(t, c, req)
		run := taken(t, c, req, "a", "last_resort")
		w := queue(t, c, req)
		run.Release()
		if got := result(t, w); got.Model != "m" || run.Model != "m" || got.Reason.Rule != "last_resort" {
			t.Errorf("got %s by %q after %s", got.Model, got.Reason.Rule, run.Model)
		}
	})
}

// The time to a trial that is due goes on in a session that takes over, and no timer is left of one that does not.
func TestTrialIsDueInTheNextSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := configured(route.LeastBusy, group(0, node("")))
		defer c.Close()
		req := admission.Request{Route: r}
		c.Offer("a", 1, 0, nil, offer(1, "m"))
		trip(t, c, req)
		c.Offer("b", 1, 0, nil, offer(9, "m"))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		c.Withdraw("a", 1)
		time.Sleep(28 * time.Second)
		c.Offer("a", 2, 1, nil, offer(1, "m"))
		time.Sleep(time.Second - 1)
		synctest.Wait()
		b := taken(t, c, req, "b", "least_busy")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		// It stays due in the next one, without a timer.
		c.Offer("a", 3, 2, nil, offer(1, "m"))
		other := admission.Request{Route: r, Avoid: []admission.Target{{Node: "b", Generation: 1, Provider: "p"}}}
		got := taken(t, c, other, "a", "trial")
		if got.Target.Generation != 3 {
			t.Errorf("got %v", got.Target)
		}
		got.Release()
		got.Done()
		c.Offer("a", 4, 3, nil, offer(1, "m"))
		b.Release()
		if err := c.Check(nil); err != nil {
			t.Error(err)
		}
		taken(t, c, req, "a", "trial")
	})
}
