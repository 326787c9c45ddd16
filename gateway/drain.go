package gateway

import (
	"sync"
	"time"
)

// drainNews is how often a drain looks whether what it waits for has changed; a change is one line.
const drainNews = 2 * time.Second

// sayDraining logs what the drain waits for, and again as that changes. What it returns ends that; it must be called.
func (s *Server) sayDraining() (stop func()) {
	began, until := time.Now(), time.Now().Add(s.cfg.DrainTimeout)
	_, queued := s.adm.Counts()
	runs := s.runs.live.Load()
	s.log.Info("draining", "runs", runs-int64(queued), "queued", queued, "timeout", s.cfg.DrainTimeout.String(), "until", until.Format(time.RFC3339),
		"note", "no new requests; queued ones are refused, runs may finish; a second signal ends them at once")
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
			if now := s.runs.live.Load(); now != runs {
				runs = now
				s.log.Info("still draining", "runs", runs, "left", max(0, time.Until(until)).Round(time.Second).String())
			}
		}
	})
	return func() {
		close(done)
		watch.Wait()
		s.log.Info("drained", "runs", s.runs.live.Load(), "took", time.Since(began).Round(time.Millisecond).String())
	}
}
