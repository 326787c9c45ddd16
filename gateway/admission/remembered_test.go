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

// many are n names of models.
func many(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint(prefix, i)
	}
	return names
}

// TestNodeWithEverNewNames: the models that others have offered stay known, whoever comes first, also those of who waits; what the
// table of them holds has a bound.
func TestNodeWithEverNewNames(t *testing.T) {
	t.Parallel()
	const most = 16384
	c := admission.New(admission.Config{Settle: -1, Grace: time.Hour})
	leave := func(node execution.NodeID, models ...string) {
		c.Offer(node, 1, 0, nil, offer(1, models...))
		c.Remove(node, 1)
	}
	known := func(model string) bool {
		ticket, w, err := c.Acquire(admission.Request{Route: to(model)})
		if w != nil {
			w.Leave()
		}
		if ticket != nil {
			ticket.Release()
			ticket.Done()
		}
		return !errors.Is(err, admission.ErrUnknownModel)
	}
	check := func(when string, models ...string) {
		t.Helper()
		for _, m := range models {
			if !known(m) {
				t.Errorf("%s: %s is forgotten", when, m)
			}
		}
		if err := c.Check(nil); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	leave("early", "m")
	leave("greedy", "awaited")
	w := queue(t, c, admission.Request{Route: to("awaited")})
	leave("greedy", many("a", most)...)
	leave("late", "n")
	leave("greedy", many("b", 2*most)...)
	check("afterwards", "m", "n", "awaited")
	kept := 0
	for _, name := range append(many("a", most), many("b", 2*most)...) {
		if known(name) {
			kept++
		}
	}
	if kept != most-3 {
		t.Errorf("%d of its own names are known, want %d", kept, most-3)
	}
	c.Configure(route.Advertised())
	check("with new routes", "m", "n", "awaited")
	c.Offer("early", 2, 0, nil, offer(1, "m", "awaited"))
	ticket, err := w.Result()
	if !answered(w) || err != nil {
		t.Fatalf("who waited got %v, %v", ticket, err)
	}
	ticket.Release()
	ticket.Done()
	check("back again", "m", "n")
}

// TestRememberedFromBefore: models that Nodes offered to an earlier process are waited for, once Nodes have come as well, and end
// as those of a Node that left. Their number has a bound, and a Node's word is good for its own only.
func TestRememberedFromBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{Settle: -1, Grace: time.Minute})
		c.Remember("small", []string{"m", "m", "shared"})
		c.Remember("greedy", append(many("a", 20000), "shared"))
		c.Offer("other", 1, 0, nil, offer(1, "n"))
		if _, _, err := c.Acquire(admission.Request{Route: to("never")}); !errors.Is(err, admission.ErrUnknownModel) {
			t.Errorf("a model that nobody offered: %v", err)
		}
		late, gone := queue(t, c, admission.Request{Route: to("m")}), queue(t, c, admission.Request{Route: to("shared")})
		if err := c.Check(nil); err != nil {
			t.Error(err)
		}
		time.Sleep(30 * time.Second)
		c.Offer("small", 7, 0, nil, offer(1, "m"))
		if ticket, err := late.Result(); !answered(late) || err != nil {
			t.Errorf("the Node is back: %v, %v", ticket, err)
		} else {
			ticket.Release()
			ticket.Done()
		}
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if _, err := gone.Result(); !answered(gone) || !errors.Is(err, admission.ErrNotConnected) {
			t.Errorf("after the grace: %v", err)
		}
		kept := 0
		for _, name := range many("a", 20000) {
			if c.Knows(to(name)) {
				kept++
			}
		}
		if kept > 16384 || kept < 16000 {
			t.Errorf("%d names of one Node are known", kept)
		}
		if err := c.Check(nil); err != nil {
			t.Error(err)
		}
		c.Close()
	})
}
