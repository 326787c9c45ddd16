package tunnel

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// replacedTime is how long a session that another one replaced may keep its runs before the Node ends it. The Edge does
// that much sooner; this is for one that forgets.
const replacedTime = time.Hour

// Rotate puts a new session in the place of the present one: dialed anew, so with the certificate of the day, and with
// a fresh Keeper. The old session keeps its runs and gets no new ones once the new one is ready; until then it works as
// before, however often the new one fails. Where there is no session the next attempt comes at once. It never blocks;
// a call while a dial that began before it is under way leads to one more.
func (s *Supervisor) Rotate() { poke(s.rotate) }

// renew opens the session that is to replace old.
func (s *Supervisor) renew(ctx context.Context, old *nodeSession) (*nodeSession, error) {
	began := time.Now()
	for attempt := 0; ; attempt++ {
		session, err := s.connect(ctx)
		if err == nil {
			s.cfg.Metrics.Rotations.Add(1)
			s.wg.Go(func() { s.outlive(old, replacedTime) })
			return session, nil
		}
		wait := fullJitter(attempt, time.Since(began))
		if r, ok := errors.AsType[*Refusal](err); ok {
			wait = refusedPause(r)
		}
		s.sayNoReplacement(slog.LevelWarn, err, "generation", uint64(old.generation), "retry_in", wait.Round(time.Millisecond).String())
		if !s.pauseBeside(ctx, old, wait) {
			return s.hold(ctx, old) // which sees what came about
		}
	}
}

// pauseBeside waits before the next attempt to replace old. It reports whether there is to be one: not if something else
// has become of the old session.
func (s *Supervisor) pauseBeside(ctx context.Context, old *nodeSession, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.rotate:
		return true
	case <-old.link.done:
	case <-old.drainAsked:
	case <-s.draining.Done():
	case <-ctx.Done():
	}
	return false
}
