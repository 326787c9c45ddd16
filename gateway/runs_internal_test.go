package gateway

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestWaitSoFar: a run that waits shows how long it has, and afterwards what its waits took together.
func TestWaitSoFar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &record{started: time.Now()}
		shows := func(want int64) {
			t.Helper()
			if operator, caller := rec.operatorView().QueueMS, rec.view().QueueMS; operator != want || caller != want {
				t.Errorf("%d ms and %d ms, want %d", operator, caller, want)
			}
		}
		shows(0)
		rec.waits(time.Now())
		time.Sleep(50 * time.Second)
		shows(50_000)
		rec.waited(50 * time.Second)
		time.Sleep(time.Minute)
		shows(50_000)
		rec.waits(time.Now())
		time.Sleep(time.Second)
		shows(51_000)
	})
}
