package admission_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"iop/execution"
	"iop/gateway/admission"
	"iop/gateway/route"
)

// fleet offers so many routes at so many Nodes, each of a capacity.
func fleet(c *admission.Controller, nodes, capacity, routes int) {
	names := make([]string, routes)
	for i := range names {
		names[i] = fmt.Sprint("m", i)
	}
	for i := range nodes {
		c.Offer(execution.NodeID(fmt.Sprint("n", i)), 1, 0, nil, offer(capacity, names...))
	}
}

// Everything is free: what a decision costs.
func BenchmarkDecision(b *testing.B) {
	for _, nodes := range []int{1, 10, 1000} {
		for _, policy := range []route.Policy{route.LeastBusy, route.Weighted, route.LowestWait, route.WarmFirst, route.PrefixAffinity} {
			b.Run(fmt.Sprint(policy, "/", nodes, "-nodes"), func(b *testing.B) {
				r := &route.Route{Name: "r", Policy: policy, Groups: []route.Group{{Targets: []route.Target{{Model: "m0", Weight: 1}}}}}
				c := admission.New(admission.Config{})
				c.Configure(admission.TableOf(true, r))
				fleet(c, nodes, 8, 20)
				asked := make([]admission.Request, 1024)
				prompt := make([]byte, 16<<10)
				for i := range asked {
					prompt[rand.IntN(len(prompt))]++
					asked[i] = admission.Request{
						Route: r, Principal: admission.Principal{ID: fmt.Sprint("p", i%100)}, Tokens: 4500, Output: 500,
						Affinity: admission.AffinityOf("p", "", "", prompt),
					}
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					t, _, _ := c.Acquire(asked[i%len(asked)])
					t.Release()
				}
			})
		}
	}
}

// full is a Controller of 1,000 full Nodes for 20 routes, with 10,000 that wait, of 100 principals.
func full(b *testing.B) (*admission.Controller, []*admission.Ticket, []*route.Route) {
	const nodes, capacity, routes, waiting, principals = 1000, 2, 20, 10_000, 100
	c := admission.New(admission.Config{})
	fleet(c, nodes, capacity, routes)
	list := make([]*route.Route, routes)
	for i := range list {
		list[i] = to(fmt.Sprint("m", i))
	}
	tickets := make([]*admission.Ticket, nodes*capacity)
	for i := range tickets {
		tickets[i], _, _ = c.Acquire(admission.Request{Route: list[i%routes]})
	}
	for i := range waiting {
		if _, w, err := c.Acquire(wish(list, i)); w == nil {
			b.Fatal(err)
		}
	}
	return c, tickets, list
}

func wish(routes []*route.Route, i int) admission.Request {
	return admission.Request{
		Route:     routes[i%len(routes)],
		Principal: admission.Principal{ID: names[i/len(routes)%100], Weight: 1 + i%3},
		Tokens:    int64(500 + i*7919%3000),
	}
}

var names = func() (list [100]string) {
	for i := range list {
		list[i] = fmt.Sprint("principal-", i)
	}
	return list
}()

// Everything is full and 10,000 wait: to come and go.
func BenchmarkEnqueueLeave(b *testing.B) {
	c, _, routes := full(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		_, w, err := c.Acquire(wish(routes, i))
		if w == nil {
			b.Fatal(err)
		}
		w.Leave()
	}
}

// Everything is full and 10,000 wait: a place is given back and goes to the next, and another one comes.
func BenchmarkReleaseGrant(b *testing.B) {
	c, tickets, routes := full(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		at := i % len(tickets)
		tickets[at].Release()
		tickets[at].Again() // stands for the ticket that the other one got
		if _, w, err := c.Acquire(wish(routes, i)); w == nil {
			b.Fatal(err)
		}
	}
	if _, waiting := c.Counts(); waiting != 10_000 {
		b.Errorf("%d wait", waiting)
	}
}

// A Node with 300 models becomes full and free.
func BenchmarkManyRoutes(b *testing.B) {
	c := admission.New(admission.Config{})
	fleet(c, 10, 1, 300)
	r := to("m7")
	b.ReportAllocs()
	for b.Loop() {
		t, _, _ := c.Acquire(admission.Request{Route: r})
		t.Release()
	}
}

// A Node says again what it offers; one of 1,000, with 20 routes.
func BenchmarkOffer(b *testing.B) {
	c := admission.New(admission.Config{})
	fleet(c, 1000, 4, 20)
	again := offer(4, "m0", "m1", "m2", "m3")
	other := offer(4, "m4", "m5", "m6", "m7")
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%2 == 0 {
			again, other = other, again
		}
		c.Offer("n7", 1, 0, nil, again)
	}
}
