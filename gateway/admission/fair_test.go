package admission_test

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/gateway/admission"
)

// ask is a request of a principal that costs so many tokens.
func ask(model, principal string, weight int, tokens int64) admission.Request {
	return admission.Request{Route: to(model), Principal: admission.Principal{ID: principal, Weight: weight}, Tokens: tokens}
}

// line is who waits, by name.
type line struct {
	t       *testing.T
	c       *admission.Controller
	waiters map[*admission.Waiter]string
	// Served, in order. Its tickets are still out.
	order   []string
	tickets []*admission.Ticket
}

func newLine(t *testing.T, c *admission.Controller) *line {
	return &line{t: t, c: c, waiters: map[*admission.Waiter]string{}}
}

func (l *line) wait(name string, n int, req admission.Request) {
	l.t.Helper()
	for range n {
		l.waiters[queue(l.t, l.c, req)] = name
	}
}

// free gives a ticket back and takes those that it led to.
func (l *line) free(t *admission.Ticket) {
	t.Release()
	l.collect()
}

func (l *line) collect() {
	l.t.Helper()
	for w, name := range l.waiters {
		if answered(w) {
			delete(l.waiters, w)
			l.order = append(l.order, name)
			l.tickets = append(l.tickets, result(l.t, w))
		}
	}
	if err := l.c.Check(l.tickets); err != nil {
		l.t.Fatal(err)
	}
}

// run frees the ticket that is out longest, n times or until nobody waits, and counts who was served.
func (l *line) run(n int) map[string]int {
	l.t.Helper()
	from := len(l.order)
	for range n {
		if len(l.tickets) == 0 {
			break
		}
		first := l.tickets[0]
		l.tickets = l.tickets[1:]
		l.free(first)
	}
	got := map[string]int{}
	for _, name := range l.order[from:] {
		got[name]++
	}
	return got
}

func within(t *testing.T, what string, got, want, percent int) {
	t.Helper()
	if d := got - want; d*100 > want*percent || -d*100 > want*percent {
		t.Errorf("%s: got %d, want %d within %d %%", what, got, want, percent)
	}
}

func TestSharesFollowWeights(t *testing.T) {
	for _, tokens := range []int64{0, 1000, 200_000} {
		c := admission.New(admission.Config{})
		for i := range 4 {
			c.Offer(execution.NodeID(fmt.Sprint("n", i)), 1, 0, nil, offer(1, "m"))
		}
		l := newLine(t, c)
		for range 4 {
			l.tickets = append(l.tickets, acquire(t, c, "m"))
		}
		l.wait("flood", 150, ask("m", "flood", 1, tokens))
		l.wait("one", 20, ask("m", "one", 1, tokens))
		l.wait("two", 30, ask("m", "two", 2, tokens))
		got := l.run(60) // as long as all have something that waits
		within(t, "the flood", got["flood"], 15, 10)
		within(t, "one", got["one"], 15, 10)
		within(t, "two", got["two"], 30, 10)
		got = l.run(1000)
		if got["flood"] != 135 || got["one"] != 5 || got["two"] != 0 {
			t.Errorf("then %v", got)
		}
		wantIdle(t, c)
	}
}

// A weight is a share beside any other weight, up to the grants that keep the small ones from starving.
func TestVeryDifferentWeights(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("n", 1, 0, nil, offer(1, "m"))
	l := newLine(t, c)
	l.tickets = append(l.tickets, acquire(t, c, "m"))
	for _, weight := range []int{1, 100, 200} {
		l.wait(fmt.Sprint(weight), 1000/3, ask("m", fmt.Sprint(weight), weight, 3000))
	}
	got := l.run(450)
	if got["1"] < 10 || got["1"] > 450/turnEvery+3 {
		t.Errorf("the smallest got %d", got["1"])
	}
	within(t, "100 beside 200", got["100"], (450-got["1"])/3, 10)
}

// turnEvery: one grant of 16 goes to who was served longest ago.
const turnEvery = 16

// Shares are of tokens, whatever a request of each costs.
func TestSharesAreOfTokens(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("n", 1, 0, nil, offer(1, "m"))
	l := newLine(t, c)
	l.tickets = append(l.tickets, acquire(t, c, "m"))
	l.wait("long", 100, ask("m", "long", 1, 4000))
	l.wait("short", 400, ask("m", "short", 1, 1000))
	got := l.run(200)
	within(t, "long", got["long"], 40, 10)
	within(t, "short", got["short"], 160, 10)
}

// A client that asks one thing after the other gets its share beside a flood, and no more.
func TestClosedLoopBesideAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{})
		c.Offer("n", 1, 0, nil, offer(4, "m"))
		var flood, loop atomic.Int64
		end := time.Now().Add(20 * time.Minute)
		client := func(name string, served *atomic.Int64) {
			for time.Now().Before(end) {
				ticket, w, err := c.Acquire(ask("m", name, 1, 1000))
				if err != nil {
					t.Error(err)
					return
				}
				if w != nil {
					<-w.Ready()
					ticket, _ = w.Result()
				}
				served.Add(1)
				time.Sleep(time.Second)
				ticket.Release()
				time.Sleep(time.Millisecond)
			}
		}
		for range 30 {
			go client("flood", &flood)
		}
		for range 6 {
			go client("loop", &loop)
		}
		time.Sleep(30 * time.Minute)
		within(t, "the flood", int(flood.Load()), 2400, 10)
		within(t, "the loop", int(loop.Load()), 2400, 10)
		wantIdle(t, c)
	})
}

// Nobody waits forever, however small its weight and however much the others want.
func TestThreat65NobodyStarves(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("n", 1, 0, nil, offer(1, "m"))
	l := newLine(t, c)
	l.tickets = append(l.tickets, acquire(t, c, "m"))
	l.wait("flood", 500, ask("m", "flood", 1000, 1))
	l.wait("small", 2, ask("m", "small", 1, 1<<40))
	if got := l.run(64); got["small"] != 2 {
		t.Errorf("got %v", got)
	}
}

// Two routes share a place: who waits for both gets one share of it.
func TestSharedPlaceIsFairOverRoutes(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("n", 1, 0, nil, offer(2, "x", "y"))
	l := newLine(t, c)
	l.tickets = append(l.tickets, acquire(t, c, "x"), acquire(t, c, "y"))
	for range 10 {
		l.wait("both", 20, ask("x", "both", 1, 1000))
		l.wait("both", 20, ask("y", "both", 1, 1000))
		l.wait("x only", 20, ask("x", "x only", 1, 1000))
		l.wait("y only", 20, ask("y", "y only", 1, 1000))
	}
	got := l.run(300)
	for _, name := range []string{"both", "x only", "y only"} {
		within(t, name, got[name], 100, 10)
	}
}

// Waiting for a slow route earns no burst on a fast one; and what happens on a fast one leaves a slow one fair.
func TestSlowAndFastRoutes(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("slow", 1, 0, nil, offer(1, "slow"))
	c.Offer("fast", 1, 0, nil, offer(1, "fast"))
	slow, fast := newLine(t, c), newLine(t, c)
	slow.tickets = append(slow.tickets, acquire(t, c, "slow"))
	fast.tickets = append(fast.tickets, acquire(t, c, "fast"))
	all := func(l *line, n int) map[string]int { // with the tickets of both lines in Check
		from := len(l.order)
		for range n {
			first := l.tickets[0]
			l.tickets = l.tickets[1:]
			first.Release()
			for w, name := range l.waiters {
				if answered(w) {
					delete(l.waiters, w)
					l.order, l.tickets = append(l.order, name), append(l.tickets, result(t, w))
				}
			}
		}
		if err := c.Check(append(append([]*admission.Ticket(nil), slow.tickets...), fast.tickets...)); err != nil {
			t.Fatal(err)
		}
		got := map[string]int{}
		for _, name := range l.order[from:] {
			got[name]++
		}
		return got
	}
	fast.wait("a", 600, ask("fast", "a", 1, 1000))
	slow.wait("b", 300, ask("slow", "b", 1, 1000))
	slow.wait("c", 300, ask("slow", "c", 2, 1000))
	// 20 times as fast: a's grants move the clock far ahead of b and c.
	got := map[string]int{}
	for range 20 {
		all(fast, 20)
		for name, n := range all(slow, 1) {
			got[name] += n
		}
	}
	within(t, "b on the slow route", got["b"], 7, 30)
	within(t, "c on the slow route", got["c"], 13, 20)
	// d is new on the slow route, and does not wait for b and c to catch up with the clock.
	slow.wait("d", 100, ask("slow", "d", 1, 1000))
	got = map[string]int{}
	for range 40 {
		all(fast, 3)
		for name, n := range all(slow, 1) {
			got[name] += n
		}
	}
	within(t, "b beside d", got["b"], 10, 30)
	within(t, "c beside d", got["c"], 20, 30)
	within(t, "d", got["d"], 10, 30)
	// b has waited long, and now wants the fast one too: it may be ahead by the lag that is allowed, of 8 requests.
	fast.wait("b", 100, ask("fast", "b", 1, 1000))
	got = all(fast, 40)
	if got["b"] > 20+6 || got["b"] < 18 {
		t.Errorf("on the fast route: %v", got)
	}
}

// A place that serves several routes is shared among principals, not among routes, also while another route that has
// nothing to do with it is so fast that all of them are late.
func TestSharedPlaceIsFairAmongPrincipals(t *testing.T) {
	for _, fast := range []int{0, 30} {
		c := admission.New(admission.Config{QueueLimit: 900})
		c.Offer("n", 1, 0, nil, offer(1, "x", "y"))
		c.Offer("other", 1, 0, nil, offer(1, "fast"))
		ticket, other := acquire(t, c, "x"), acquire(t, c, "fast")
		waiters := map[string][]*admission.Waiter{}
		wait := func(model, name string) {
			for range 900 {
				waiters[name] = append(waiters[name], queue(t, c, ask(model, name, 1, 1000)))
			}
		}
		wait("fast", "z")
		wait("x", "a")
		for _, name := range []string{"b", "c", "d"} {
			for range 200 {
				waiters[name] = append(waiters[name], queue(t, c, ask("y", name, 1, 1000)))
			}
		}
		got := map[string]int{}
		next := func(former *admission.Ticket) *admission.Ticket {
			former.Release()
			for name, list := range waiters {
				for i, w := range list {
					if answered(w) {
						waiters[name] = slices.Delete(list, i, i+1)
						got[name]++
						return result(t, w)
					}
				}
			}
			t.Fatal("nobody was served")
			return nil
		}
		for range 27 {
			for range fast {
				other = next(other)
			}
			for range 3 { // one less than there are principals
				ticket = next(ticket)
			}
		}
		for _, name := range []string{"a", "b", "c", "d"} {
			within(t, fmt.Sprint(name, " beside ", fast), got[name], 20, 15)
		}
		if err := c.Check([]*admission.Ticket{ticket, other}); err != nil {
			t.Error(err)
		}
	}
}

// Who comes to a queue begins with those who are in it: it has earned nothing while it was away, nor does it wait for
// those who were served out of order.
func TestAbsenceEarnsNothing(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("n", 1, 0, nil, offer(1, "m"))
	l := newLine(t, c)
	l.tickets = append(l.tickets, acquire(t, c, "m"))
	l.wait("flood", 300, ask("m", "flood", 100, 100_000))
	l.wait("small", 30, ask("m", "small", 1, 100_000))
	l.run(64)
	l.wait("new", 100, ask("m", "new", 100, 100_000))
	got := l.run(32)
	within(t, "new", got["new"], 15, 10)
	within(t, "the flood", got["flood"], 15, 10)
}

// A principal's own requests go by priority, and its priority is nothing to the others.
func TestPriorityIsAmongOnesOwn(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("n", 1, 0, nil, offer(1, "m"))
	l := newLine(t, c)
	l.tickets = append(l.tickets, acquire(t, c, "m"))
	for _, priority := range []int{-5, 0, 7, 0} {
		req := ask("m", "a", 1, 100)
		req.Principal.Priority = priority
		l.wait(fmt.Sprint("a", priority), 1, req)
	}
	l.wait("b", 4, ask("m", "b", 1, 100))
	l.run(8)
	want := "[a7 b a0 b a0 b a-5 b]"
	if got := fmt.Sprint(l.order); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A second dispatch goes before all new requests, in the old order, and costs nothing.
func TestSecondDispatchIsNotCharged(t *testing.T) {
	c := admission.New(admission.Config{QueueLimit: 4})
	c.Offer("n", 1, 0, nil, offer(2, "m"))
	first, second := acquire(t, c, "m"), acquire(t, c, "m")
	l := newLine(t, c)
	l.wait("a", 2, ask("m", "a", 1, 1000))
	l.wait("b", 2, ask("m", "b", 1, 1000))
	again := ask("m", "a", 1, 1<<20)
	again.Line = second.Line
	l.wait("second", 1, again) // the queue is full: not for those who were in it
	again.Line = first.Line
	l.wait("first", 1, again)
	l.tickets = append(l.tickets, second)
	l.free(first)
	l.run(10)
	if got, want := fmt.Sprint(l.order), "[first second a b a b]"; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Requests that avoid a target let the others pass to it, in each route.
func TestPickyWaitersBlockNobody(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("a", 1, 0, nil, offer(1, "m"))
	c.Offer("b", 1, 0, nil, offer(1, "m"))
	var a, b *admission.Ticket
	for range 2 {
		if ticket := acquire(t, c, "m"); ticket.Target.Node == "a" {
			a = ticket
		} else {
			b = ticket
		}
	}
	picky := admission.Request{Route: to("m"), Avoid: []admission.Target{a.Target, a.Target}, Line: a.Line}
	w := queue(t, c, picky)
	plain := queue(t, c, ask("m", "p", 1, 1))
	a.Release()
	if answered(w) || !answered(plain) {
		t.Fatal("the wrong one was served")
	}
	b.Release()
	if got := result(t, w); got.Target.Node != "b" {
		t.Errorf("it got %v", got.Target)
	}
	picky.Avoid = append(picky.Avoid, b.Target)
	if _, _, err := c.Acquire(picky); !errors.Is(err, admission.ErrNoOther) {
		t.Errorf("got %v", err)
	}
}

func TestPlaceInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{})
		c.Offer("n", 1, 0, nil, offer(1, "m"))
		ticket := acquire(t, c, "m")
		var flood []*admission.Waiter
		for range 10 {
			flood = append(flood, queue(t, c, ask("m", "flood", 1, 1000)))
		}
		time.Sleep(2 * time.Second)
		ticket.Release()
		ticket = result(t, flood[0])
		late := queue(t, c, ask("m", "late", 1, 1000))
		// The flood's next begins one request after the grant, late begins with it.
		if n, d := late.Place(); n != 1 || d != 2*time.Second {
			t.Errorf("late is at %d, in %v", n, d)
		}
		if n, d := flood[1].Place(); n != 2 || d != 4*time.Second {
			t.Errorf("the flood's next is at %d, in %v", n, d)
		}
		if n, d := flood[9].Place(); n != 10 || d != 20*time.Second {
			t.Errorf("the flood's last is at %d, in %v", n, d)
		}
		ticket.Release()
		if n, _ := late.Place(); n != 0 {
			t.Errorf("%d when it was served", n)
		}
		c.Close()
	})
}

func TestRetryAfterIsWhenTheQueueDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{QueueLimit: 3})
		c.Offer("n", 1, 0, nil, offer(1, "m"))
		full := func() time.Duration {
			_, _, err := c.Acquire(ask("m", "p", 1, 1))
			e, ok := errors.AsType[*admission.QueueFullError](err)
			if !ok {
				t.Fatalf("got %v", err)
			}
			return e.RetryAfter
		}
		want := func(d time.Duration) {
			t.Helper()
			if got := full(); got != d {
				t.Errorf("got %v, want %v", got, d)
			}
		}
		l := newLine(t, c)
		l.tickets = append(l.tickets, acquire(t, c, "m"))
		l.wait("p", 3, ask("m", "p", 1, 1))
		want(time.Second) // nothing is known yet
		time.Sleep(3 * time.Second)
		l.run(1)
		l.wait("p", 1, ask("m", "p", 1, 1))
		want(9 * time.Second) // 3 that wait, one in 3 s
		time.Sleep(3 * time.Second)
		want(9 * time.Second)
		time.Sleep(time.Millisecond)
		want(10 * time.Second) // it stands longer than that: 9.003 s
		time.Sleep(time.Minute)
		want(time.Minute) // the most that is said
		c.Close()
	})
}

// What the fair order remembers of principals that are gone is bounded.
func TestPrincipalsAreForgotten(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("n", 1, 0, nil, offer(1, "m"))
	ticket := acquire(t, c, "m")
	var last []*admission.Waiter
	for i := range 20_000 {
		last = append(last, queue(t, c, ask("m", fmt.Sprint("p", i), 1, 1000)))
		if len(last) > 10 {
			ticket.Release()
			next := last[0]
			last = last[1:]
			for j, w := range last {
				if answered(w) {
					next, last[j] = w, next
				}
			}
			ticket = result(t, next)
		}
	}
	if principals, flows := c.Remembered(); principals > 3000 || flows > 3000 {
		t.Errorf("%d principals, %d flows", principals, flows)
	}
	for _, w := range last {
		w.Leave()
	}
	if principals, flows := c.Remembered(); principals != 0 || flows != 0 {
		t.Errorf("%d principals, %d flows of nobody", principals, flows)
	}
}
