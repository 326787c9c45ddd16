package admission

import (
	"fmt"
	"slices"
	"testing"

	"iop/gateway/route"
)

// affineQueue is a Controller with one place, which is taken, and a queue.
type affineQueue struct {
	t       *testing.T
	ctl     *Controller
	route   *route.Route
	running *Ticket
	waiters []*Waiter
	names   []string
}

// hot is the prompt that ran at the place before anybody waited.
var hot = []byte(`[{"role":"system","content":"` + words(1, 3000) + `"}]`)

func newAffineQueue(t *testing.T) *affineQueue {
	t.Helper()
	table, err := route.Parse("iop.yaml", []byte("routes: [{model: m, policy: prefix_affinity, targets: [{model: m}]}]"))
	if err != nil {
		t.Fatal(err)
	}
	q := &affineQueue{t: t, ctl: New(Config{Settle: -1}), route: table.Resolve("m")}
	q.ctl.Configure(table)
	q.ctl.Offer("n", 1, 0, nil, []Offer{{Provider: "p", Capacity: 1, Selectable: true, Models: []Model{{ID: "m"}}}})
	q.wait("", Principal{ID: "first"}, hot)
	return q
}

// wait asks for a run, which must wait unless it is the first.
func (q *affineQueue) wait(name string, who Principal, prompt []byte) {
	q.t.Helper()
	ticket, waiter, err := q.ctl.Acquire(Request{
		Route: q.route, Principal: who, Tokens: 1000, Affinity: AffinityOf(who.ID, "", "", prompt),
	})
	switch {
	case waiter != nil:
		q.names, q.waiters = append(q.names, name), append(q.waiters, waiter)
	case q.running != nil:
		q.t.Fatalf("it does not wait: %v", err)
	default:
		q.running = ticket
	}
}

// cold is a prompt that ran nowhere.
func cold(i int) []byte {
	return []byte(`[{"role":"system","content":"` + words(uint64(100+i), 3000) + `"}]`)
}

// next ends the run and returns whose turn it was.
func (q *affineQueue) next() string {
	q.t.Helper()
	q.running.Release()
	for i, w := range q.waiters {
		select {
		case <-w.Ready():
		default:
			continue
		}
		ticket, err := w.Result()
		if err != nil {
			q.t.Fatal(err)
		}
		name := q.names[i]
		q.running, q.names, q.waiters = ticket, slices.Delete(q.names, i, i+1), slices.Delete(q.waiters, i, i+1)
		return name
	}
	q.t.Fatal("nobody got the place")
	return ""
}

func (q *affineQueue) order() (names []string) {
	for range len(q.waiters) {
		names = append(names, q.next())
	}
	return names
}

func TestQueueKnowsAffinity(t *testing.T) {
	q := newAffineQueue(t)
	q.wait("a cold", Principal{ID: "a"}, cold(1))
	q.wait("a hot", Principal{ID: "a"}, hot)
	q.wait("b cold", Principal{ID: "b"}, cold(2))
	q.wait("b hot", Principal{ID: "b"}, hot)
	if got := q.order(); !slices.Equal(got, []string{"a hot", "b hot", "a cold", "b cold"}) {
		t.Errorf("served in the order %q", got)
	}
}

func TestAffinityDoesNotOutrankPriority(t *testing.T) {
	q := newAffineQueue(t)
	q.wait("urgent", Principal{ID: "a", Priority: 1}, cold(1))
	q.wait("hot", Principal{ID: "a"}, hot)
	if got := q.order(); !slices.Equal(got, []string{"urgent", "hot"}) {
		t.Errorf("served in the order %q", got)
	}
}

// TestAffinityPassesNobodyOverForLong: whoever fits no place gets one all the same.
func TestAffinityPassesNobodyOverForLong(t *testing.T) {
	q := newAffineQueue(t)
	q.wait("cold", Principal{ID: "a"}, cold(1))
	for range 30 {
		q.wait("hot", Principal{ID: "a"}, hot)
	}
	if at := slices.Index(q.order(), "cold"); at < 1 || at > maxPassed {
		t.Errorf("the one that was first in line was passed over %d times", at)
	}
}

// TestAffinityKeepsShares: prompts that fit the place win their principal no part of another's share.
func TestAffinityKeepsShares(t *testing.T) {
	q := newAffineQueue(t)
	for i := range 100 {
		q.wait("hot", Principal{ID: "a"}, hot)
		q.wait("cold", Principal{ID: "b", Weight: 2}, cold(i))
	}
	got := map[string]int{}
	for i := range 90 {
		got[q.next()]++
		if share := (i + 1) / 3; got["hot"] > share+maxLead/1000+2 {
			t.Fatalf("after %d grants: %v", i+1, got)
		}
	}
	if got["cold"] < 50 {
		t.Errorf("of 90 grants who weighs twice as much got %d", got["cold"])
	}
}

func BenchmarkAffineWaiter(b *testing.B) {
	x := newPrefixIndex(0)
	f := &flow{line: &line{}, principal: &principal{}}
	for i := range windowFlows {
		g := &flow{line: f.line, principal: &principal{}}
		for j := range windowWaiters {
			p := []byte(fmt.Sprintf(`[{"role":"user","content":"%s"}]`, words(uint64(10*i+j), 8<<10)))
			g.waiters = append(g.waiters, &Waiter{request: Request{Affinity: AffinityOf("p", "", "", p)}})
		}
		f.line.early = append(f.line.early, g)
	}
	f.waiters = f.line.early[0].waiters
	c := &Controller{index: x}
	b.ReportAllocs()
	for b.Loop() {
		f.waiters[0].passed = 0
		c.affineWaiterLocked(f, &candidate{id: 7})
	}
}
