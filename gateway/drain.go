package gateway

import (
	"time"

	"iop/execution/drainlog"
)

// logDrain logs what the drain waits for until the returned function is called, which must be.
func (s *Server) logDrain() func() {
	began := time.Now()
	_, queued := s.adm.Counts()
	stop := drainlog.Start(s.log, s.cfg.DrainTimeout, s.activeRuns, "queued", queued,
		"note", "no new requests; queued ones are refused, runs may finish; a second signal ends them at once")
	return func() {
		stop()
		s.log.Info("drained", "runs", s.runs.live.Load(), "took", time.Since(began).Round(time.Millisecond).String())
	}
}

// activeRuns is how many runs have left the queue and not ended.
func (s *Server) activeRuns() int64 {
	_, queued := s.adm.Counts()
	return s.runs.live.Load() - int64(queued)
}
