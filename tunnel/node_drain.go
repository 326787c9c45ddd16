package tunnel

import (
	"context"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// seenTime bounds the wait for the Edge's word that it has read DRAIN.
const seenTime = 5 * time.Second

// finish drains the session for as long as patience lasts, then ends it. ctx ends it at once.
func (s *nodeSession) finish(ctx, patience context.Context) {
	left := time.Hour
	if deadline, ok := patience.Deadline(); ok {
		left = time.Until(deadline)
	}
	s.sayDrain(left)
	s.waitSeen(ctx, patience)
	select {
	case <-s.whenIdle():
		s.link.fail(&EndError{Code: goodbyeDrained, Message: "the Node has drained"})
		return
	case <-s.link.done:
		return
	case <-ctx.Done():
		return
	case <-patience.Done():
	}
	s.cancelRuns(execution.CodeDrainDeadline, "the Node's drain deadline passed")
	// Their ENDs go out before GOODBYE does.
	late := time.NewTimer(farewellTime)
	defer late.Stop()
	select {
	case <-s.whenIdle():
	case <-s.link.done:
	case <-late.C:
	case <-ctx.Done():
	}
	s.link.fail(&EndError{Code: goodbyeDeadline, Message: "the Node's drain deadline passed", Run: execution.CodeDrainDeadline})
}

// waitSeen waits until the Edge has read DRAIN: from then on no OPEN is on its way. An Edge that does not answer is
// not waited for long.
func (s *nodeSession) waitSeen(ctx, patience context.Context) {
	seen, cancel := context.WithTimeout(ctx, seenTime)
	defer cancel()
	defer context.AfterFunc(patience, cancel)()
	// Whatever comes of it: what matters is that there was time for an answer.
	_ = s.link.probe(seen)
}

// sayDrain tells the Edge that this Node takes no new runs.
func (s *nodeSession) sayDrain(deadline time.Duration) {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	if s.link.end != nil || s.draining {
		return
	}
	s.draining = true
	s.link.urgentLocked(wire.TypeDrain, nil, &wire.Drain{Reason: "the Node is stopping", DeadlineMs: millis(deadline)})
}

// cancelRuns ends every run now: what is unsent is dropped, END is not.
func (s *nodeSession) cancelRuns(code execution.Code, reason string) {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	for _, r := range s.runs {
		r.cancelRunLocked(code, reason)
		r.endRunLocked(execution.Terminal{Outcome: execution.Cancelled, Code: code, Detail: reason})
	}
}
