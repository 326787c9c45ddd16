package admission_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"iop/gateway/admission"
	"iop/gateway/route"
	"iop/openai"
)

// refusal is when the waiter was told that nothing is connected, from now on.
func refusal(t *testing.T, w *admission.Waiter) time.Duration {
	t.Helper()
	began := time.Now()
	select {
	case <-w.Ready():
	case <-time.After(time.Hour):
		t.Fatal("it still waits")
	}
	if ticket, err := w.Result(); ticket != nil || !errors.Is(err, admission.ErrNotConnected) {
		t.Fatalf("it got %v, %v", ticket, err)
	}
	return time.Since(began)
}

// stillWaits: for all that time.
func stillWaits(t *testing.T, w *admission.Waiter, d time.Duration) {
	t.Helper()
	time.Sleep(d)
	if answered(w) {
		ticket, err := w.Result()
		t.Fatalf("it got %v, %v", ticket, err)
	}
}

// down is an offer of a provider that gets no new runs.
func down(drained bool) []admission.Offer {
	o := offer(1, "m")
	o[0].Selectable, o[0].Drained = false, drained
	return o
}

// The grace begins when the last target goes, or with the wait, and ends when one is back. Who waits keeps its place.
func TestGrace(t *testing.T) {
	const grace = admission.DefaultGrace
	for name, test := range map[string]func(t *testing.T, c *admission.Controller){
		"the Edge has just started": func(t *testing.T, c *admission.Controller) {
			w := queue(t, c, admission.Request{Route: to("m")})
			if !w.Absent() {
				t.Error("it waits for a place")
			}
			if took := refusal(t, w); took != grace {
				t.Errorf("after %v", took)
			}
			if w.Absent() || w.Resting() { // it was asked when it had its answer already, and panicked
				t.Error("it has its answer, and waits")
			}
		},
		"the Node left before": func(t *testing.T, c *admission.Controller) {
			c.Offer("n", 1, 0, nil, offer(1, "m"))
			c.Remove("n", 1)
			time.Sleep(time.Hour)
			if took := refusal(t, queue(t, c, admission.Request{Route: to("m")})); took != grace {
				t.Errorf("after %v", took)
			}
		},
		"the last Node leaves": func(t *testing.T, c *admission.Controller) {
			c.Offer("a", 1, 0, nil, offer(1, "m"))
			c.Offer("b", 1, 0, nil, offer(1, "m"))
			a, b := acquire(t, c, "m"), acquire(t, c, "m")
			w := queue(t, c, admission.Request{Route: to("m")})
			if w.Absent() || w.Resting() {
				t.Error("it waits for something else than a place")
			}
			stillWaits(t, w, 10*time.Minute)
			c.Remove("a", 1)
			stillWaits(t, w, 10*time.Minute)
			c.Withdraw("b", 1)
			if took := refusal(t, w); took != grace {
				t.Errorf("after %v", took)
			}
			a.Release()
			b.Release()
		},
		"a short reconnect": func(t *testing.T, c *admission.Controller) {
			c.Offer("n", 1, 0, nil, offer(1, "m"))
			ticket := acquire(t, c, "m")
			first, second := queue(t, c, admission.Request{Route: to("m")}), queue(t, c, admission.Request{Route: to("m")})
			c.Remove("n", 1)
			stillWaits(t, first, grace-time.Second)
			c.Offer("n", 2, 1, nil, offer(1, "m"))
			ticket.Release()
			ticket = result(t, first)
			stillWaits(t, second, 2*grace) // for a place, now
			ticket.Release()
			result(t, second).Release()
		},
		"gone again": func(t *testing.T, c *admission.Controller) {
			c.Offer("n", 1, 0, nil, offer(1, "m"))
			ticket := acquire(t, c, "m")
			w := queue(t, c, admission.Request{Route: to("m")})
			c.Remove("n", 1)
			time.Sleep(20 * time.Second)
			c.Offer("n", 2, 0, nil, offer(1, "m"))
			result(t, w).Release()
			other := acquire(t, c, "m")
			w = queue(t, c, admission.Request{Route: to("m")})
			c.Remove("n", 2)
			if took := refusal(t, w); took != grace {
				t.Errorf("after %v", took)
			}
			ticket.Release()
			other.Release()
		},
		"each has its own": func(t *testing.T, c *admission.Controller) {
			first := queue(t, c, admission.Request{Route: to("m")})
			time.Sleep(20 * time.Second)
			second := queue(t, c, admission.Request{Route: to("m")})
			if took := refusal(t, first); took != 10*time.Second {
				t.Errorf("the first after %v", took)
			}
			if took := refusal(t, second); took != 20*time.Second {
				t.Errorf("the second after %v", took)
			}
		},
		"the provider is gone": func(t *testing.T, c *admission.Controller) {
			c.Offer("n", 1, 0, nil, down(false))
			if took := refusal(t, queue(t, c, admission.Request{Route: to("m")})); took != grace {
				t.Errorf("after %v", took)
			}
		},
		"the operator drains the Node": func(t *testing.T, c *admission.Controller) {
			c.Offer("n", 1, 0, nil, offer(1, "m"))
			ticket := acquire(t, c, "m")
			w := queue(t, c, admission.Request{Route: to("m")})
			c.Offer("n", 1, 0, nil, down(true))
			if took := refusal(t, w); took != grace {
				t.Errorf("after %v", took)
			}
			ticket.Release()
		},
		"a silent provider with runs is busy": func(t *testing.T, c *admission.Controller) {
			c.Offer("n", 1, 0, nil, offer(1, "m"))
			ticket := acquire(t, c, "m")
			w := queue(t, c, admission.Request{Route: to("m")})
			c.Offer("n", 1, 0, nil, down(false))
			stillWaits(t, w, 10*time.Minute)
			ticket.Release()
			if took := refusal(t, w); took != grace {
				t.Errorf("after %v", took)
			}
		},
		"a silent provider with runs leaves": func(t *testing.T, c *admission.Controller) {
			c.Offer("n", 1, 0, nil, offer(1, "m"))
			ticket := acquire(t, c, "m")
			c.Offer("n", 1, 0, nil, down(false))
			w := queue(t, c, admission.Request{Route: to("m")})
			time.Sleep(time.Minute)
			c.Remove("n", 1)
			if took := refusal(t, w); took != grace {
				t.Errorf("after %v", took)
			}
			ticket.Release()
		},
		"a breaker is open": func(t *testing.T, c *admission.Controller) {
			c.Offer("n", 1, 0, nil, offer(1, "m"))
			trip(t, c, admission.Request{Route: to("m")})
			ticket := acquire(t, c, "m")
			w := queue(t, c, admission.Request{Route: to("m")})
			if w.Absent() || !w.Resting() {
				t.Error("it waits for something else than the breaker")
			}
			stillWaits(t, w, 10*time.Minute)
			ticket.Release()
			result(t, w).Release()
		},
		"the provider rests": func(t *testing.T, c *admission.Controller) {
			c.Offer("n", 1, 0, nil, offer(1, "m"))
			acquire(t, c, "m").Refused(time.Minute)
			w := queue(t, c, admission.Request{Route: to("m")})
			if w.Absent() || !w.Resting() {
				t.Error("it waits for something else than the rest")
			}
			stillWaits(t, w, 45*time.Second)
			time.Sleep(15 * time.Second)
			synctest.Wait()
			result(t, w).Release()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := admission.New(admission.Config{})
				defer c.Close()
				test(t, c)
				wantIdle(t, c)
			})
		})
	}
}

// Each kind of request waits for what can run it, not for what cannot.
func TestGraceByOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{})
		defer c.Close()
		embeds := able(1, 0, openai.OpEmbeddings)
		c.Offer("chats", 1, 0, nil, able(1, 0, openai.OpChatCompletions))
		c.Offer("embeds", 1, 0, nil, embeds)
		ticket, _, _ := c.Acquire(asks(openai.OpChatCompletions, 0))
		chat := queue(t, c, asks(openai.OpChatCompletions, 0))
		embeds[0].Selectable = false
		c.Offer("embeds", 1, 0, nil, embeds)
		if took := refusal(t, queue(t, c, asks(openai.OpEmbeddings, 0))); took != admission.DefaultGrace {
			t.Errorf("after %v", took)
		}
		stillWaits(t, chat, time.Minute)
		ticket.Release()
		result(t, chat).Release()
	})
}

// A route has a grace of its own, and a new file's holds for who waits already. No file begins a grace anew.
func TestGraceOfARoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{Grace: time.Minute})
		defer c.Close()
		table := func(noNode string) *route.Table {
			table, err := route.Parse("iop.yaml", []byte("routes: [{model: m, timeouts: {no_node: "+noNode+"}}, {model: usual}]"))
			if err != nil {
				t.Fatal(err)
			}
			return table
		}
		long := table("1h")
		c.Configure(long)
		w := queue(t, c, admission.Request{Route: long.Resolve("m")})
		if took := refusal(t, queue(t, c, admission.Request{Route: long.Resolve("usual")})); took != time.Minute {
			t.Errorf("the Edge's after %v", took)
		}
		stillWaits(t, w, 20*time.Minute)
		c.Configure(table("30m"))
		if took := refusal(t, w); took != 9*time.Minute {
			t.Errorf("the route's after %v more", took)
		}
		c.Configure(table("5s"))
		c.Offer("n", 1, 0, nil, offer(1, "other"))
		if took := refusal(t, queue(t, c, admission.Request{Route: long.Resolve("m")})); took != 5*time.Second {
			t.Errorf("the new one's after %v", took)
		}
		wantIdle(t, c)
	})
}

// A name that no Node has ever offered is unknown once Nodes have come; the grace changes nothing of it.
func TestNoGraceForUnknownNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{})
		defer c.Close()
		w := queue(t, c, admission.Request{Route: to("never")})
		c.Offer("n", 1, 0, nil, offer(1, "m"))
		time.Sleep(admission.DefaultSettle)
		synctest.Wait()
		if _, err := w.Result(); !answered(w) || !errors.Is(err, admission.ErrUnknownModel) {
			t.Errorf("it got %v", err)
		}
		if _, _, err := c.Acquire(admission.Request{Route: to("never")}); !errors.Is(err, admission.ErrUnknownModel) {
			t.Errorf("got %v", err)
		}
		wantIdle(t, c)
	})
}
