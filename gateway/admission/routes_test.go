package admission_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/gateway/admission"
	"iop/gateway/route"
)

// configured is a Controller with one route, "chat", of these groups.
func configured(policy route.Policy, groups ...route.Group) (*admission.Controller, *route.Route) {
	c := admission.New(admission.Config{}).WithoutJitter()
	r := &route.Route{Name: "chat", Policy: policy, Groups: groups}
	c.Configure(admission.TableOf(false, r))
	return c, r
}

func group(when route.When, targets ...route.Target) route.Group {
	return route.Group{When: when, Targets: targets}
}

func node(pattern string) route.Target { return route.Target{Node: pattern, Model: "m", Weight: 1} }

func take1(t *testing.T, c *admission.Controller, r *route.Route) *admission.Ticket {
	t.Helper()
	ticket, _, err := c.Acquire(admission.Request{Route: r})
	if ticket == nil {
		t.Fatalf("no ticket: %v", err)
	}
	return ticket
}

// A target's name means Ollama's other spelling of the model where a provider has that alone.
func TestTargetsInTheOtherSpelling(t *testing.T) {
	c, r := configured(route.LeastBusy, group(0,
		route.Target{Model: "m", Weight: 1}, route.Target{Model: "old:latest", Weight: 1}, route.Target{Model: "sized:7b", Weight: 1},
	))
	put := func(id execution.NodeID, models ...string) {
		offer := admission.Offer{Provider: "p", Capacity: 1, Selectable: true}
		for _, m := range models {
			offer.Models = append(offer.Models, admission.Model{ID: m})
		}
		c.Offer(id, 1, 0, nil, []admission.Offer{offer})
	}
	put("others", "sized:7b:latest", "M", "m:8b", "m:latest:latest", "org/m")
	if c.Serves(r) {
		t.Error("it is served by what has another name")
	}
	put("tagged", "m:latest")
	put("both", "m:latest", "m")
	put("plain", "old")
	got := map[execution.NodeID]string{}
	for range 3 {
		ticket := take1(t, c, r)
		got[ticket.Target.Node] = ticket.Model
	}
	if fmt.Sprint(got) != "map[both:m plain:old tagged:m:latest]" {
		t.Errorf("got %v", got)
	}
	put("both", "m:latest") // what was meant is gone, the other is left
	w := queue(t, c, admission.Request{Route: r})
	put("late", "m:latest")
	if ticket := result(t, w); ticket.Target.Node != "late" || ticket.Model != "m:latest" {
		t.Errorf("got %v, %s", ticket.Target, ticket.Model)
	}
}

func TestTargetsOfARoute(t *testing.T) {
	c, r := configured(route.LeastBusy, group(0,
		route.Target{Node: "gpu-*", Labels: map[string]string{"site": "lab"}, Provider: "vllm", Model: "big", Weight: 1},
		route.Target{Provider: "vllm", Model: "small", Weight: 1},
	))
	models := []admission.Model{{ID: "small"}, {ID: "big"}, {ID: "chat"}}
	put := func(id execution.NodeID, site string, provider execution.ProviderID, models ...admission.Model) {
		c.Offer(id, 1, 0, map[string]string{"site": site}, []admission.Offer{{Provider: provider, Capacity: 1, Selectable: true, Models: models}})
	}
	if c.Serves(r) {
		t.Error("it is served by nobody")
	}
	put("gpu-1", "lab", "vllm", models...)
	put("gpu-2", "office", "vllm", models...)
	put("gpu-3", "lab", "ollama", models...)
	put("gpu-4", "lab", "vllm", models[2])
	put("cpu-1", "lab", "vllm", models...)
	if !c.Serves(r) {
		t.Error("it is served")
	}
	got := map[execution.NodeID]string{}
	for range 3 {
		ticket := take1(t, c, r)
		got[ticket.Target.Node] = ticket.Model
	}
	if fmt.Sprint(got) != "map[cpu-1:small gpu-1:big gpu-2:small]" {
		t.Errorf("got %v", got)
	}
	w := queue(t, c, admission.Request{Route: r})
	put("gpu-2", "lab", "vllm", models...) // its labels changed: it is the first target's now
	if answered(w) {
		t.Error("a full place was given")
	}
	put("gpu-3", "lab", "vllm", models[0]) // ollama went, vllm came
	if ticket := result(t, w); ticket.Target.Node != "gpu-3" || ticket.Model != "small" {
		t.Errorf("got %v, %s", ticket.Target, ticket.Model)
	}
	// The file refuses advertised models.
	if _, _, err := c.Acquire(admission.Request{Route: to("big")}); !errors.Is(err, admission.ErrUnknownModel) {
		t.Errorf("got %v", err)
	}
}

// A place is one, whatever models and routes it serves.
func TestCapacityIsOfAllRoutes(t *testing.T) {
	a := &route.Route{Name: "a", Groups: []route.Group{group(0, route.Target{Model: "m", Weight: 1})}}
	b := &route.Route{Name: "m"} // no groups: who advertises it
	c := admission.New(admission.Config{})
	c.Configure(admission.TableOf(true, a, b))
	c.Offer("n", 1, 0, nil, offer(3, "m", "other"))
	first := take1(t, c, a)
	take1(t, c, b)
	take1(t, c, to("other"))
	for _, r := range []*route.Route{a, b, to("other")} {
		queue(t, c, admission.Request{Route: r})
	}
	first.Release()
	if _, waiting := c.Counts(); waiting != 2 {
		t.Errorf("%d wait", waiting)
	}
}

func TestLaterGroupWhenFull(t *testing.T) {
	c, r := configured(route.LeastBusy, group(0, node("a")), group(route.WhenFull, node("b")))
	c.Offer("a", 1, 0, nil, offer(1, "m"))
	c.Offer("b", 1, 0, nil, offer(1, "m"))
	first, second := take1(t, c, r), take1(t, c, r)
	if first.Target.Node != "a" || second.Target.Node != "b" {
		t.Errorf("got %v and %v", first.Target, second.Target)
	}
	if got := second.Reason.String(); got != "only_target 1/1 of 1, group 2" {
		t.Errorf("the reason is %q", got)
	}
	w := queue(t, c, admission.Request{Route: r})
	second.Release()
	if got := result(t, w); got.Target.Node != "b" || got.Reason.Rule != "queue" || got.Reason.Group != 1 {
		t.Errorf("got %v, %v", got.Target, got.Reason)
	}
}

func TestLaterGroupWhenDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := configured(route.LeastBusy, group(0, node("a*")), group(route.WhenDown, node("cloud")))
		c.Offer("cloud", 1, 0, nil, offer(9, "m"))
		cloud := take1(t, c, r)
		if cloud.Target.Node != "cloud" {
			t.Errorf("with nothing else: %v", cloud.Target)
		}
		c.Offer("a1", 1, 0, nil, offer(1, "m"))
		c.Offer("a2", 1, 0, nil, offer(1, "m"))
		one, two := take1(t, c, r), take1(t, c, r)
		if one.Target.Node == "cloud" || two.Target.Node == "cloud" {
			t.Error("the cloud was used")
		}
		// Full is not down, nor is resting.
		w := queue(t, c, admission.Request{Route: r})
		one.Refused(time.Second)
		cloud.Release()
		if answered(w) {
			t.Fatal("the cloud was used when the others are full")
		}
		// For who avoids both they are out.
		avoid := admission.Request{Route: r, Avoid: []admission.Target{one.Target, two.Target}, Line: one.Line}
		if ticket, _, _ := c.Acquire(avoid); ticket == nil || ticket.Target.Node != "cloud" {
			t.Errorf("who avoids both gets %v", ticket)
		}
		// One of them goes, the other is cut off.
		c.Remove(two.Target.Node, 1)
		if answered(w) {
			t.Fatal("the cloud was used while one is in service")
		}
		hung := offer(1, "m")
		hung[0].Selectable = false
		c.Offer(one.Target.Node, 1, 0, nil, hung)
		if got := result(t, w); got.Target.Node != "cloud" {
			t.Errorf("when both are down: %v", got.Target)
		}
		two.Release()
		c.Offer(one.Target.Node, 1, 0, nil, offer(4, "m"))
		time.Sleep(time.Second) // the refusal
		synctest.Wait()
		for range 5 {
			ticket := take1(t, c, r)
			if ticket.Target.Node == "cloud" {
				t.Error("the cloud was used before the breaker opened")
			}
			ticket.Failed()
			ticket.Release()
		}
		if got := take1(t, c, r); got.Target.Node != "cloud" {
			t.Errorf("when the breaker is open: %v", got.Target)
		}
		// On trial it is not in service yet: one run goes there, the others need not wait for it.
		time.Sleep(time.Second)
		synctest.Wait()
		trial := take1(t, c, r)
		if got := take1(t, c, r); trial.Reason.Rule != "trial" || got.Target.Node != "cloud" {
			t.Errorf("on trial: %v, beside it %v", trial.Reason, got.Target)
		}
		trial.Served(admission.Sample{})
		if got := take1(t, c, r); got.Target.Node == "cloud" {
			t.Error("the cloud was used after the breaker closed")
		}
		c.Close()
	})
}

// Those who wait, as the only target in service is full, get the others' trial the moment that a breaker lets it through.
func TestBrokenTargetsAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := configured(route.LeastBusy, group(0, node("")))
		c.Offer("n", 1, 0, nil, offer(4, "m"))
		for range 5 {
			ticket := take1(t, c, r)
			ticket.Failed()
			ticket.Release()
		}
		c.Offer("busy", 1, 0, nil, offer(1, "m"))
		l := newLine(t, c)
		l.tickets = append(l.tickets, take1(t, c, r))
		l.wait("w", 10, admission.Request{Route: r})
		time.Sleep(time.Second)
		synctest.Wait()
		l.collect()
		if len(l.tickets) != 2 {
			t.Fatalf("%d trials", len(l.tickets)-1)
		}
		l.tickets[1].Served(admission.Sample{})
		l.collect()
		if len(l.tickets) != 5 {
			t.Errorf("%d run after the trial", len(l.tickets)-1)
		}
		c.Close()
	})
}

func TestWeights(t *testing.T) {
	for _, nodes := range []int{3, 300} {
		var targets []route.Target
		for _, w := range []int{1, 3, 96} {
			targets = append(targets, route.Target{Node: fmt.Sprint("w", w, "-*"), Model: "m", Weight: w})
		}
		c, r := configured(route.Weighted, group(0, targets...))
		for i := range nodes {
			c.Offer(execution.NodeID(fmt.Sprint("w", []int{1, 3, 96}[i%3], "-", i)), 1, 0, nil, offer(4, "m"))
		}
		got := map[string]int{}
		const runs = 20_000
		for range runs {
			ticket := take1(t, c, r)
			got[string(ticket.Target.Node[:2])]++
			ticket.Release()
		}
		within(t, fmt.Sprint("weight 1 of ", nodes), got["w1"], runs/100, 30)
		within(t, fmt.Sprint("weight 3 of ", nodes), got["w3"], runs*3/100, 20)
		within(t, fmt.Sprint("weight 96 of ", nodes), got["w9"], runs*96/100, 2)
	}
}

// With more candidates than are compared, all of them get runs.
func TestAllOfManyGetRuns(t *testing.T) {
	c, r := configured(route.LeastBusy, group(0, node("")))
	for i := range 200 {
		c.Offer(execution.NodeID(fmt.Sprint("n", i)), 1, 0, nil, offer(2, "m"))
	}
	got := map[execution.NodeID]int{}
	for range 2000 {
		ticket := take1(t, c, r)
		got[ticket.Target.Node]++
		ticket.Release()
	}
	if len(got) < 190 {
		t.Errorf("%d of 200 got runs", len(got))
	}
	for range 400 {
		take1(t, c, r)
	}
	queue(t, c, admission.Request{Route: r})
}

// What is full gets none, and the weight of the others stays.
func TestWeightsOfWhatIsFree(t *testing.T) {
	c, r := configured(route.Weighted, group(0, route.Target{Node: "heavy", Model: "m", Weight: 1000}, node("*")))
	c.Offer("heavy", 1, 0, nil, offer(1, "m"))
	c.Offer("light", 1, 0, nil, offer(1, "m"))
	a, b := take1(t, c, r), take1(t, c, r)
	if a.Target.Node == b.Target.Node {
		t.Error("both on one place")
	}
	w := queue(t, c, admission.Request{Route: r})
	b.Release()
	result(t, w)
}

func TestWarmFirst(t *testing.T) {
	target := route.Target{Model: "m", Weight: 1}
	r := &route.Route{Name: "chat", Policy: route.WarmFirst, Groups: []route.Group{group(0, target)}}
	c := admission.New(admission.Config{})
	c.Configure(admission.TableOf(false, r))
	put := func(i int, loaded bool) {
		c.Offer(execution.NodeID(fmt.Sprint("n", i)), 1, 0, nil, []admission.Offer{{Provider: "p", Capacity: 2, Selectable: true,
			Models: []admission.Model{{ID: "m", Loaded: loaded}, {ID: "x"}}}})
	}
	for i := range 100 {
		put(i, i == 42)
	}
	a, b := take1(t, c, r), take1(t, c, r)
	if a.Target.Node != "n42" || b.Target.Node != "n42" || a.Reason.Rule != "warm" {
		t.Errorf("got %v and %v by %v", a.Target, b.Target, a.Reason)
	}
	cold := take1(t, c, r)
	if cold.Target.Node == "n42" || cold.Reason.Rule != "least_busy" {
		t.Errorf("got %v by %v", cold.Target, cold.Reason)
	}
	if next := take1(t, c, r); next.Target != cold.Target {
		t.Errorf("got %v, where %v ran it last", next.Target, cold.Target)
	}
}

// A model is warm where it ran last, until another one ran there.
func TestWarmIsWhatRanLast(t *testing.T) {
	one := &route.Route{Name: "one", Groups: []route.Group{group(0, route.Target{Node: "n1", Model: "x", Weight: 1})}}
	r := &route.Route{Name: "chat", Policy: route.WarmFirst, Groups: []route.Group{group(0, node(""))}}
	c := admission.New(admission.Config{})
	c.Configure(admission.TableOf(false, r, one))
	put := func(id execution.NodeID, loaded bool) {
		c.Offer(id, 1, 0, nil, []admission.Offer{{Provider: "p", Capacity: 2, Selectable: true,
			Models: []admission.Model{{ID: "m", Loaded: loaded}, {ID: "x"}}}})
	}
	run := func(r *route.Route) execution.NodeID {
		ticket := take1(t, c, r)
		ticket.Release()
		return ticket.Target.Node
	}
	put("n1", false)
	run(r)
	put("n2", false)
	for range 3 { // by turns it were n2's
		if got := run(r); got != "n1" {
			t.Errorf("it runs on %s", got)
		}
	}
	run(one)
	for range 3 {
		if got := run(r); got != "n2" {
			t.Errorf("with another model on n1, it runs on %s", got)
		}
	}
	put("n1", true)
	if got := run(r); got != "n1" {
		t.Errorf("it was loaded on n1, where nothing ran for longer, and runs on %s", got)
	}
}

func TestPrefixAffinity(t *testing.T) {
	c, r := configured(route.PrefixAffinity, group(0, node("")))
	for i := range 8 {
		c.Offer(execution.NodeID(fmt.Sprint("n", i)), 1, 0, nil, offer(8, "m"))
	}
	req := admission.Request{Route: r, Affinity: admission.AffinityOf("p", "session", "", nil)}
	first, _, _ := c.Acquire(req)
	first.Release()
	for range 8 {
		ticket, _, _ := c.Acquire(req)
		if ticket.Target != first.Target || ticket.Reason.Rule != "affinity" {
			t.Fatalf("got %v by %v", ticket.Target, ticket.Reason)
		}
		ticket.Release()
	}
	// It comes back under another generation.
	c.Remove(first.Target.Node, 1)
	c.Offer(first.Target.Node, 2, 0, nil, offer(8, "m"))
	if ticket, _, _ := c.Acquire(req); ticket.Target.Node != first.Target.Node {
		t.Errorf("got %v", ticket.Target)
	}
	// Too much at one place goes elsewhere.
	yielded := false
	for range 8 {
		ticket, _, _ := c.Acquire(req)
		yielded = yielded || ticket.Reason.Rule == "affinity_yield"
	}
	n := c.Counters()
	if !yielded || n.AffinityHits.Load() < 9 || n.AffinityMisses.Load() != 1 || n.AffinityYields.Load() < 1 {
		t.Errorf("%d hits, %d misses, %d yields", n.AffinityHits.Load(), n.AffinityMisses.Load(), n.AffinityYields.Load())
	}
}

func TestLowestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := configured(route.LowestWait, group(0, node("")))
		took := map[execution.NodeID]time.Duration{"slow": 9 * time.Second, "fast": time.Second}
		for id := range took {
			c.Offer(id, 1, 0, nil, offer(4, "m"))
		}
		got := map[execution.NodeID]int{}
		for range 40 {
			ticket, _, _ := c.Acquire(admission.Request{Route: r, Tokens: 1000, Output: 100})
			id := ticket.Target.Node
			got[id]++
			time.Sleep(took[id])
			ticket.Served(admission.Sample{FirstToken: took[id] / 10, Duration: took[id], Input: 900, Output: 100})
			ticket.Release()
		}
		if got["fast"] < 35 {
			t.Errorf("got %v", got)
		}
		// It is known again after a new connection.
		for id := range took {
			c.Remove(id, 1)
			c.Offer(id, 2, 0, nil, offer(4, "m"))
		}
		for range 3 {
			ticket, _, _ := c.Acquire(admission.Request{Route: r, Tokens: 1000, Output: 100})
			if ticket.Target.Node != "fast" {
				t.Errorf("after a new connection it got %v", ticket.Target)
			}
		}
	})
}

// Who waits stays in line when the routes change.
func TestConfigureLosesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := configured(route.LeastBusy, group(0, node("a")))
		gone := &route.Route{Name: "gone"}
		c.Configure(admission.TableOf(false, r, gone))
		l := newLine(t, c)
		for i := range 1000 {
			req := ask("", fmt.Sprint("p", i%7), 1+i%3, int64(i))
			req.Route = r
			l.wait("w", 1, req)
		}
		lost := queue(t, c, admission.Request{Route: gone})
		denied := queue(t, c, admission.Request{Route: r, Principal: admission.Principal{ID: "q"}})
		c.Offer("b", 1, 0, nil, offer(2, "m"))
		now := &route.Route{Name: "talk", Aliases: []string{"chat"}, Policy: route.Weighted, Principals: []string{"p*"},
			Groups: []route.Group{group(0, node("b"))}, QueueLimit: 5}
		c.Configure(admission.TableOf(false, now))
		for _, w := range []*admission.Waiter{lost, denied} {
			if _, err := w.Result(); !answered(w) || !errors.Is(err, admission.ErrUnknownModel) {
				t.Errorf("whose route is gone gets %v", err)
			}
		}
		l.collect()
		if len(l.tickets) != 2 {
			t.Fatalf("%d run", len(l.tickets))
		}
		var full *admission.QueueFullError
		if _, _, err := c.Acquire(admission.Request{Route: now, Principal: admission.Principal{ID: "p1"}}); !errors.As(err, &full) {
			t.Errorf("past the new limit: %v", err)
		}
		if st := c.Stats(); len(st.Queues) != 1 || st.Queues[0].Waiting != 998 || st.Queues[0].Limit != 5 || len(st.Queues[0].Principals) != 7 {
			t.Errorf("the queues are %v", st.Queues)
		}
		if l.run(2000); len(l.order) != 1000 {
			t.Errorf("%d of 1000 were served", len(l.order))
		}
		wantIdle(t, c)
		c.Close()
	})
}

// What is known of a route's pace stays known.
func TestConfigureKeepsThePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := configured(route.LeastBusy, group(0, node("")))
		c.Offer("n", 1, 0, nil, offer(1, "m"))
		ticket := take1(t, c, r)
		queue(t, c, admission.Request{Route: r})
		w := queue(t, c, admission.Request{Route: r})
		time.Sleep(7 * time.Second)
		ticket.Release()
		c.Configure(admission.TableOf(false, r))
		if st := c.Stats().Queues[0]; st.Interval != 7*time.Second {
			t.Errorf("%v between two grants", st.Interval)
		}
		if n, d := w.Place(); n != 1 || d != 7*time.Second {
			t.Errorf("the next is at %d, in %v", n, d)
		}
		// Of another route nothing is known.
		c.Configure(admission.TableOf(false, &route.Route{Name: "talk", Aliases: []string{"chat"}, Groups: r.Groups}))
		if n, d := w.Place(); n != 1 || d != 0 {
			t.Errorf("the next is at %d, in %v", n, d)
		}
	})
}

// FAULTS 14: no Node is there; one comes, and those who waited run, as many as it takes.
func TestNodeJoinsWhileManyWait(t *testing.T) {
	c, r := configured(route.LeastBusy, group(0, node("")))
	l := newLine(t, c)
	l.wait("w", 50, admission.Request{Route: r})
	c.Offer("n", 1, 0, nil, offer(4, "m"))
	l.collect()
	if len(l.tickets) != 4 {
		t.Fatalf("%d run", len(l.tickets))
	}
	c.Offer("n2", 1, 0, nil, offer(6, "m"))
	l.collect()
	if len(l.tickets) != 10 {
		t.Fatalf("%d run", len(l.tickets))
	}
	if l.run(100); len(l.order) != 50 {
		t.Errorf("%d of 50 were served", len(l.order))
	}
	wantIdle(t, c)
}

// A request holds the route of a table that was replaced meanwhile.
func TestRouteOfAFormerTable(t *testing.T) {
	c, r := configured(route.LeastBusy, group(0, node("")))
	c.Offer("n", 1, 0, nil, offer(4, "m"))
	c.Configure(admission.TableOf(false, &route.Route{Name: "talk", Aliases: []string{"chat"}, Groups: r.Groups}))
	take1(t, c, r)
	c.Configure(admission.TableOf(false, &route.Route{Name: "talk", Groups: r.Groups}))
	if _, _, err := c.Acquire(admission.Request{Route: r}); !errors.Is(err, admission.ErrUnknownModel) {
		t.Errorf("got %v", err)
	}
	if c.Serves(r) {
		t.Error("a route that is gone is served")
	}
}

// A request that is tried again after the routes have changed gets a ticket only if its principal may still use the route.
func TestFormerRouteOfAPrincipal(t *testing.T) {
	c, r := configured(route.LeastBusy, group(0, node("")))
	c.Offer("n", 1, 0, nil, offer(4, "m"))
	c.Configure(admission.TableOf(false, &route.Route{Name: r.Name, Principals: []string{"p*"}, Groups: r.Groups}))
	for _, avoid := range [][]admission.Target{nil, {{Node: "other", Generation: 1}}} {
		if _, _, err := c.Acquire(admission.Request{Route: r, Principal: admission.Principal{ID: "q"}, Avoid: avoid}); !errors.Is(err, admission.ErrUnknownModel) {
			t.Errorf("who may not use it any more: %v", err)
		}
		ticket, _, err := c.Acquire(admission.Request{Route: r, Principal: admission.Principal{ID: "p1"}, Avoid: avoid})
		if err != nil || ticket == nil {
			t.Errorf("who may: %v", err)
		}
	}
}

// Names come from Nodes: those that none offers any more are remembered within bounds, and may be offered again.
func TestNamesAreForgotten(t *testing.T) {
	c := admission.New(admission.Config{Settle: -1})
	for gen := range execution.Generation(30) {
		names := make([]string, 1000)
		for i := range names {
			names[i] = fmt.Sprint("m", gen, "-", i)
		}
		c.Offer("n", gen+1, 0, nil, offer(1, names...))
		c.Remove("n", gen+1)
		if err := c.Check(nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.Lines(); n > 16384 {
		t.Errorf("%d names of 30,000 are remembered", n)
	}
	queue(t, c, admission.Request{Route: to("m0-1")}).Leave()
	if _, _, err := c.Acquire(admission.Request{Route: to("m29-1")}); !errors.Is(err, admission.ErrUnknownModel) {
		t.Errorf("what was forgotten: %v", err)
	}
	c.Offer("n", 99, 0, nil, offer(1, "m29-1", "m0-1"))
	take1(t, c, to("m29-1"))
	if err := c.Check(nil); err == nil {
		t.Error("the ticket is not counted")
	}
}
