// Package drainlog logs what a process that is stopping still waits for, in the same words on Edge and Node.
package drainlog

import (
	"log/slog"
	"sync"
	"time"
)

// interval is how often the number of open runs is read; a change is one line.
const interval = 2 * time.Second

// Start logs that the drain waits for open() runs, for timeout at most, and logs the number again each time it has changed. attrs
// go with the first line. open is called from another goroutine, which stop ends and waits for; stop must be called once.
func Start(log *slog.Logger, timeout time.Duration, open func() int64, attrs ...any) (stop func()) {
	until, runs := time.Now().Add(timeout), open()
	log.Info("draining", append([]any{"runs", runs, "timeout", timeout.String(), "until", until.Format(time.RFC3339)}, attrs...)...)
	var watch sync.WaitGroup
	done := make(chan struct{})
	watch.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			if now := open(); now != runs {
				runs = now
				log.Info("still draining", "runs", runs, "left", max(0, time.Until(until)).Round(time.Second).String())
			}
		}
	})
	return func() {
		close(done)
		watch.Wait()
	}
}
