package admission_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"iop/execution"
	"iop/gateway/admission"
	"iop/gateway/route"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func offer(capacity int, models ...string) []admission.Offer {
	list := make([]admission.Model, len(models))
	for i, m := range models {
		list[i].ID = m
	}
	return []admission.Offer{{Provider: "p", Capacity: capacity, Selectable: true, Models: list}}
}

func to(model string) *route.Route { return &route.Route{Name: model, Advertised: true} }

// acquire asks for a ticket that must be there at once.
func acquire(t *testing.T, c *admission.Controller, model string) *admission.Ticket {
	t.Helper()
	ticket, w, err := c.Acquire(admission.Request{Route: to(model)})
	if ticket == nil {
		t.Fatalf("no ticket: waiter %v, %v", w, err)
	}
	return ticket
}

// queue asks for a ticket that must be waited for.
func queue(t *testing.T, c *admission.Controller, req admission.Request) *admission.Waiter {
	t.Helper()
	ticket, w, err := c.Acquire(req)
	if w == nil {
		t.Fatalf("it does not wait: ticket %v, %v", ticket, err)
	}
	return w
}

func answered(w *admission.Waiter) bool {
	select {
	case <-w.Ready():
		return true
	default:
		return false
	}
}

// result is the ticket of a waiter that must have one by now.
func result(t *testing.T, w *admission.Waiter) *admission.Ticket {
	t.Helper()
	if !answered(w) {
		t.Fatal("it still waits")
	}
	ticket, err := w.Result()
	if err != nil {
		t.Fatal(err)
	}
	return ticket
}

func wantIdle(t *testing.T, c *admission.Controller) {
	t.Helper()
	if inFlight, waiting := c.Counts(); inFlight != 0 || waiting != 0 {
		t.Errorf("in flight %d, waiting %d", inFlight, waiting)
	}
}

func TestLeastBusyByShareOfCapacity(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("small", 1, 0, nil, offer(2, "m"))
	c.Offer("large", 1, 0, nil, offer(6, "m"))
	got := map[execution.NodeID]int{}
	for range 4 {
		got[acquire(t, c, "m").Target.Node]++
	}
	if got["small"] != 1 || got["large"] != 3 {
		t.Errorf("4 runs went %v", got)
	}
	for range 4 {
		got[acquire(t, c, "m").Target.Node]++
	}
	if got["small"] != 2 || got["large"] != 6 {
		t.Errorf("8 runs went %v", got)
	}
	if _, w, _ := c.Acquire(admission.Request{Route: to("m")}); w == nil {
		t.Error("a ninth run finds a place")
	}
}

func TestEqualsTakeTurns(t *testing.T) {
	c := admission.New(admission.Config{})
	for _, n := range []execution.NodeID{"a", "b", "c"} {
		c.Offer(n, 1, 0, nil, offer(4, "m"))
	}
	got := map[execution.NodeID]int{}
	for range 30 {
		ticket := acquire(t, c, "m")
		got[ticket.Target.Node]++
		ticket.Release()
	}
	if got["a"] != 10 || got["b"] != 10 || got["c"] != 10 {
		t.Errorf("30 short runs went %v", got)
	}
	wantIdle(t, c)
}

func TestFirstComeFirstServed(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("n", 1, 0, nil, offer(1, "a", "b"))
	ticket := acquire(t, c, "a")
	var waiters []*admission.Waiter
	for i := range 6 {
		model := "a"
		if i%2 == 1 {
			model = "b" // one provider, two models: one line
		}
		waiters = append(waiters, queue(t, c, admission.Request{Route: to(model)}))
	}
	waiters[2].Leave()
	for i, w := range waiters {
		if i == 2 {
			continue
		}
		if answered(w) {
			t.Fatalf("waiter %d was served early", i)
		}
		ticket.Release()
		ticket = result(t, w)
	}
	ticket.Release()
	wantIdle(t, c)
}

func TestSecondDispatchKeepsItsPlaceInLine(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("n", 1, 0, nil, offer(1, "m"))
	first := acquire(t, c, "m")
	second := queue(t, c, admission.Request{Route: to("m")})
	again := queue(t, c, admission.Request{Route: to("m"), Line: first.Line})
	first.Release()
	if answered(second) {
		t.Error("the newer request overtook")
	}
	result(t, again).Release()
	result(t, second).Release()
	wantIdle(t, c)
}

func TestWhatNoNodeOffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{Settle: time.Second})
		early := queue(t, c, admission.Request{Route: to("m")})
		unknown := queue(t, c, admission.Request{Route: to("unknown")})
		c.Offer("n", 1, 0, nil, offer(4, "m"))
		result(t, early).Release()
		late := queue(t, c, admission.Request{Route: to("late")})
		time.Sleep(900 * time.Millisecond)
		c.Offer("n2", 1, 0, nil, offer(4, "late"))
		result(t, late).Release()
		if answered(unknown) {
			t.Error("answered before the other Nodes had their time")
		}
		time.Sleep(200 * time.Millisecond)
		if !answered(unknown) {
			t.Fatal("the unknown model still waits")
		}
		if _, err := unknown.Result(); !errors.Is(err, admission.ErrUnknownModel) {
			t.Errorf("got %v", err)
		}
		if _, _, err := c.Acquire(admission.Request{Route: to("unknown")}); !errors.Is(err, admission.ErrUnknownModel) {
			t.Errorf("got %v", err)
		}
		// A model whose Nodes are away is waited for.
		c.Remove("n", 1)
		w := queue(t, c, admission.Request{Route: to("m")})
		c.Offer("n", 2, 0, nil, offer(4, "m"))
		result(t, w).Release()
		wantIdle(t, c)
	})
}

func TestUnhealthyProviderGetsNothing(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("n", 1, 0, nil, offer(4, "m"))
	hung := offer(4, "m")
	hung[0].Selectable = false
	c.Offer("n", 1, 0, nil, hung)
	w := queue(t, c, admission.Request{Route: to("m")})
	c.Offer("n", 1, 0, nil, offer(4, "m"))
	result(t, w).Release()
}

func TestAnotherTarget(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("a", 1, 0, nil, offer(4, "m"))
	first := acquire(t, c, "m")
	first.Release()
	avoid := admission.Request{Route: to("m"), Avoid: []admission.Target{first.Target}, Line: first.Line}
	if _, _, err := c.Acquire(avoid); !errors.Is(err, admission.ErrNoOther) {
		t.Fatalf("got %v", err)
	}
	c.Offer("b", 1, 0, nil, offer(1, "m"))
	other, _, err := c.Acquire(avoid)
	if err != nil || other.Target.Node != "b" {
		t.Fatalf("got %v, %v", other, err)
	}
	// b is full now: it is waited for, and a's free place is not taken.
	w := queue(t, c, avoid)
	plain := acquire(t, c, "m")
	if plain.Target.Node != "a" {
		t.Error("a request that avoids nothing waits behind one that does")
	}
	plain.Release()
	if answered(w) {
		t.Fatal("the target to avoid was given")
	}
	other.Release()
	if got := result(t, w); got.Target.Node != "b" {
		t.Errorf("got %v", got.Target)
	} else {
		w = queue(t, c, avoid)
		c.Withdraw("b", 1)
		if _, err := w.Result(); !answered(w) || !errors.Is(err, admission.ErrNoOther) {
			t.Errorf("after the other is gone: %v", err)
		}
		got.Release()
	}
	wantIdle(t, c)
}

// A Node that refuses is left alone for a while, longer each time, so that it can't spin the Edge.
func TestRefusalBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{})
		c.Offer("n", 1, 0, nil, offer(4, "m"))
		began := time.Now()
		ticket := acquire(t, c, "m")
		tries := 0
		var w *admission.Waiter
		for time.Since(began) < time.Minute {
			ticket.Release() // the tunnel's word may come first
			ticket.Refused(0)
			w = queue(t, c, admission.Request{Route: to("m"), Line: ticket.Line})
			<-w.Ready()
			ticket = result(t, w)
			tries++
		}
		if tries < 12 || tries > 20 {
			t.Errorf("%d tries in a minute", tries)
		}
		// A run of it that ends well is a sign of a free place; so is the Node's word.
		well := acquire(t, c, "m")
		ticket.Refused(0)
		w = queue(t, c, admission.Request{Route: to("m")})
		well.Served(admission.Sample{})
		well.Release()
		ticket = result(t, w)
		ticket.Refused(0)
		w = queue(t, c, admission.Request{Route: to("m")})
		c.Offer("n", 1, 0, nil, offer(4, "m"))
		result(t, w).Release()
		wantIdle(t, c)
		c.Close()
	})
}

// Runs that finish on a session that was replaced count against the same engine's capacity.
func TestReplacedSessionSharesItsLoad(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("n", 1, 0, nil, offer(2, "m"))
	old := []*admission.Ticket{acquire(t, c, "m"), acquire(t, c, "m")}
	c.Withdraw("n", 1)
	c.Offer("n", 2, 1, nil, offer(2, "m"))
	w := queue(t, c, admission.Request{Route: to("m")})
	old[0].Release()
	if got := result(t, w); got.Target.Generation != 2 {
		t.Errorf("got %v", got.Target)
	} else {
		got.Release()
	}
	c.Remove("n", 1)
	old[1].Release()
	// A session that replaces nothing starts from zero.
	busy := acquire(t, c, "m")
	c.Remove("n", 2)
	c.Offer("n", 3, 0, nil, offer(1, "m"))
	acquire(t, c, "m").Release()
	busy.Release()
	wantIdle(t, c)
}

func TestQueueLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{QueueLimit: 2, Settle: time.Second})
		for i := range 2 {
			queue(t, c, admission.Request{Route: to(fmt.Sprint("unknown-", i))})
		}
		if _, _, err := c.Acquire(admission.Request{Route: to("unknown-9")}); err == nil {
			t.Error("names that nobody offers take memory without limit")
		}
		c.Offer("n", 1, 0, nil, offer(1, "m"))
		ticket := acquire(t, c, "m")
		queue(t, c, admission.Request{Route: to("m")})
		time.Sleep(7 * time.Second)
		queue(t, c, admission.Request{Route: to("m")})
		_, _, err := c.Acquire(admission.Request{Route: to("m")})
		full, ok := errors.AsType[*admission.QueueFullError](err)
		if !ok || full.RetryAfter != 14*time.Second { // 2 that wait, at a rate of none in 7 s
			t.Errorf("got %v", err)
		}
		ticket.Release()
		c.Close()
	})
}

// A principal that fills a queue keeps nobody out who has less in it: its last requests make room, by weight.
func TestFullQueueIsShared(t *testing.T) {
	c := admission.New(admission.Config{QueueLimit: 6})
	c.Offer("n", 1, 0, nil, offer(1, "m"))
	ticket := acquire(t, c, "m")
	waiters := map[string][]*admission.Waiter{}
	ask := func(principal string, weight, times int) {
		t.Helper()
		for range times {
			waiters[principal] = append(waiters[principal], queue(t, c, ask("m", principal, weight, 1)))
		}
	}
	full := func(principal string, weight int) {
		t.Helper()
		if _, _, err := c.Acquire(admission.Request{Route: to("m"), Principal: admission.Principal{ID: principal, Weight: weight}}); !isFull(err) {
			t.Errorf("another of %s: %v", principal, err)
		}
	}
	// want: so many of a principal's requests wait, the first ones, and the others were told that the queue is full.
	want := func(principal string, waiting int) {
		t.Helper()
		for i, w := range waiters[principal] {
			if answered(w) != (i >= waiting) {
				t.Errorf("request %d of %s is answered: %v", i, principal, answered(w))
			} else if answered(w) {
				if _, err := w.Result(); !isFull(err) {
					t.Errorf("request %d of %s: %v", i, principal, err)
				}
			}
		}
	}
	ask("flood", 1, 6)
	full("flood", 1)
	ask("quiet", 1, 3)
	want("flood", 3)
	full("quiet", 1)
	full("flood", 1)
	ask("heavy", 2, 3)
	full("heavy", 2)
	want("heavy", 3)
	want("flood", 2)
	want("quiet", 1)
	if err := c.Check([]*admission.Ticket{ticket}); err != nil {
		t.Error(err)
	}
	for _, list := range waiters {
		for _, w := range list {
			w.Leave()
		}
	}
	ticket.Release()
	wantIdle(t, c)
}

func isFull(err error) bool {
	_, full := errors.AsType[*admission.QueueFullError](err)
	return full
}

func TestCloseAnswersAll(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("n", 1, 0, nil, offer(1, "m"))
	ticket := acquire(t, c, "m")
	w := queue(t, c, admission.Request{Route: to("m")})
	c.Close()
	if _, err := w.Result(); !answered(w) || !errors.Is(err, admission.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if _, _, err := c.Acquire(admission.Request{Route: to("m")}); !errors.Is(err, admission.ErrClosed) {
		t.Errorf("got %v", err)
	}
	ticket.Refused(0)
	wantIdle(t, c)
}

// Whatever happens in whatever order: capacity is never exceeded, everybody is answered, and all returns to zero.
func TestStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes, models, clients, capacity = 6, 4, 64, 3
		c := admission.New(admission.Config{QueueLimit: clients})
		names := make([]string, models)
		for i := range names {
			names[i] = fmt.Sprint("m", i)
		}
		var gens [nodes]execution.Generation
		flip := func(r *rand.Rand) {
			i := r.IntN(nodes)
			id := execution.NodeID(fmt.Sprint("n", i))
			switch r.IntN(4) {
			case 0:
				c.Remove(id, gens[i])
			case 1:
				c.Withdraw(id, gens[i])
			default:
				gens[i]++
				var replaces execution.Generation
				if r.IntN(2) == 0 {
					replaces = gens[i] - 1
				}
				c.Withdraw(id, gens[i]-1)
				c.Offer(id, gens[i], replaces, nil, offer(capacity, names[r.IntN(models):]...))
			}
		}
		for i := range nodes {
			gens[i] = 1
			c.Offer(execution.NodeID(fmt.Sprint("n", i)), 1, 0, nil, offer(capacity, names...))
		}
		time.Sleep(admission.DefaultSettle)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() { client(c, rand.New(rand.NewPCG(7, uint64(i))), names, stop) })
		}
		r := rand.New(rand.NewPCG(1, 2))
		tables := []*route.Table{route.Advertised(), admission.TableOf(true, &route.Route{Name: "m1", Policy: route.Weighted})}
		for range 2000 {
			flip(r)
			if r.IntN(20) == 0 {
				c.Configure(tables[r.IntN(2)])
			}
			time.Sleep(time.Duration(r.IntN(1000)) * time.Microsecond)
			for _, p := range c.Stats().Places {
				if p.InFlight > 2*capacity { // shared by two generations at most, and never over one's capacity from new runs
					t.Fatalf("%v has %d runs", p.Target, p.InFlight)
				}
			}
		}
		for i := range nodes {
			gens[i]++
			c.Offer(execution.NodeID(fmt.Sprint("n", i)), gens[i], 0, nil, offer(capacity, names...))
		}
		close(stop)
		wg.Wait()
		wantIdle(t, c)
		c.Close()
	})
}

// client asks, waits, sometimes leaves, is sometimes refused, and always gives back.
func client(c *admission.Controller, r *rand.Rand, names []string, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		ticket, w, _ := c.Acquire(admission.Request{Route: to(names[r.IntN(len(names))])})
		if w != nil {
			_, _ = w.Place()
			leave := time.After(time.Duration(r.IntN(20)) * time.Millisecond)
			select {
			case <-w.Ready():
				ticket, _ = w.Result()
			case <-leave:
				w.Leave()
			}
		}
		time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
		if ticket == nil {
			continue
		}
		switch r.IntN(20) {
		case 0, 1:
			ticket.Refused(0)
		case 2, 3, 4, 5:
			ticket.Failed()
		case 6:
			ticket.Answering()
			ticket.Served(admission.Sample{FirstToken: time.Millisecond, Duration: time.Second, Output: 9})
		}
		ticket.Release()
		ticket.Release()
	}
}
