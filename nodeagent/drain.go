package nodeagent

import (
	"sync"
	"time"
)

// drainNews is how often a drain looks whether what it waits for has changed; a change is one line.
const drainNews = 2 * time.Second

// openRuns is how many runs take a place of a provider.
func (a *Agent) openRuns() (n int64) {
	for _, p := range *a.providers.Load() {
		n += p.inUse.Load()
	}
	return n
}

// sayDraining logs what the drain waits for, and again as that changes. What it returns ends that; it must be called.
func (a *Agent) sayDraining() (stop func()) {
	until, runs := time.Now().Add(a.cfg.DrainTimeout), a.openRuns()
	a.log.Info("draining", "runs", runs, "timeout", a.cfg.DrainTimeout.String(), "until", until.Format(time.RFC3339),
		"note", "no new runs; open ones may finish; a second signal ends them at once")
	var watch sync.WaitGroup
	done := make(chan struct{})
	watch.Go(func() {
		tick := time.NewTicker(drainNews)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			if now := a.openRuns(); now != runs {
				runs = now
				a.log.Info("still draining", "runs", runs, "left", max(0, time.Until(until)).Round(time.Second).String())
			}
		}
	})
	return func() {
		close(done)
		watch.Wait()
	}
}
