package admission_test

import (
	"testing"
	"testing/synctest"
	"time"

	"iop/gateway/admission"
)

// expects fails unless w is at that place and is expected to wait so long.
func expects(t *testing.T, w *admission.Waiter, place int, estimate time.Duration) {
	t.Helper()
	if n, d := w.Place(); n != place || d != estimate {
		t.Errorf("it is at %d and expected in %v, not at %d in %v", n, d, place, estimate)
	}
}

// An estimate is made of what runs took, what grants took, and what is being waited, whichever is longest.
func TestEstimates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{})
		defer c.Close()
		c.Offer("n", 1, 0, nil, offer(2, "m"))
		a, b := acquire(t, c, "m"), acquire(t, c, "m")
		expects(t, queue(t, c, admission.Request{Route: to("m")}), 1, 0) // nothing is known
		b.Served(admission.Sample{Duration: 12 * time.Second, Output: 9})
		first := queue(t, c, admission.Request{Route: to("m")})
		expects(t, first, 2, 12*time.Second) // two at once in 12 s
		time.Sleep(2 * time.Second)
		b.Release()
		expects(t, first, 1, 6*time.Second) // one went after 2 s, in the middle of a run
		second := queue(t, c, admission.Request{Route: to("m")})
		expects(t, second, 2, 12*time.Second)
		time.Sleep(20 * time.Second)
		expects(t, first, 1, 20*time.Second) // it has waited so long already
		expects(t, second, 2, 26*time.Second)
		expects(t, queue(t, c, admission.Request{Route: to("m")}), 3, 32*time.Second)
		a.Release()
		result(t, first)
		expects(t, second, 1, 20*time.Second) // as the last one
		c.Remove("n", 1)
		expects(t, second, 1, 0) // for nobody
	})
}

// Who is next and sees others go first is told no less than it has waited there.
func TestEstimateOfWhoIsPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := admission.New(admission.Config{})
		defer c.Close()
		c.Offer("n", 1, 0, nil, offer(1, "m"))
		ticket := acquire(t, c, "m")
		w := queue(t, c, admission.Request{Route: to("m")})
		w.Place()
		for range 10 {
			urgent := queue(t, c, admission.Request{Route: to("m"), Principal: admission.Principal{Priority: 1}})
			time.Sleep(time.Second)
			ticket.Release()
			ticket = result(t, urgent)
		}
		expects(t, w, 1, 10*time.Second)
		ticket.Release()
		result(t, w).Release()
	})
}
