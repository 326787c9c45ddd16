package admission_test

import (
	"testing"

	"iop/gateway/admission"
)

// TestWanted counts who waits for what a target serves.
func TestWanted(t *testing.T) {
	c := admission.New(admission.Config{})
	c.Offer("n1", 1, 0, nil, offer(1, "m", "k"))
	c.Offer("n2", 1, 0, nil, offer(1, "other"))
	mine, others := acquire(t, c, "m"), acquire(t, c, "other")
	want := func(what string, target admission.Target, n int) {
		t.Helper()
		if got := c.Wanted(target); got != n {
			t.Errorf("%s: %d requests want it, not %d", what, got, n)
		}
	}
	want("nobody waits", mine.Target, 0)
	first := queue(t, c, admission.Request{Route: to("m")})
	second := queue(t, c, admission.Request{Route: to("k")})
	want("one for each model", mine.Target, 2)
	want("of another Node", others.Target, 0)
	want("of no session", admission.Target{Node: "n1", Generation: 7, Provider: "p"}, 0)

	c.Offer("n1", 2, 1, nil, offer(1, "m", "k"))
	successor := mine.Target
	successor.Generation = 2
	want("of the session that was replaced", mine.Target, 2)
	want("of its successor", successor, 2)

	mine.Release()
	ticket := result(t, first)
	want("the place went to the first", ticket.Target, 1)
	ticket.Release()
	last := result(t, second)
	want("nobody waits any more", last.Target, 0)
	last.Release()
	want("it has room", last.Target, 0)
	others.Release()
	wantIdle(t, c)
}
