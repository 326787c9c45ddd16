package tunnel

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// What one end forgot, the other ends: reconciliation by HEARTBEAT, both ways.
func TestLostEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var drop atomic.Bool
		proxy := &frameProxy{edit: func(fromNode bool, h wire.FrameHeader, payload []byte) [][]byte {
			if fromNode && h.Type == wire.TypeEnd && drop.Load() {
				return nil
			}
			return pass(h, payload)
		}}
		r := newRigWith(t, echo, rigOptions{through: proxy})
		s := r.session()
		synctest.Wait()
		drop.Store(true)
		lost, released := openCounted(t, s, nil)
		synctest.Wait()
		drop.Store(false)
		began := time.Now()
		if _, _, end := collect(t, open(t, s, []byte("hi"))); end.Outcome != execution.Completed {
			t.Errorf("the other run: %+v", end)
		}
		_, _, end := collect(t, lost)
		if d := time.Since(began); end.Outcome != execution.Failed || end.Code != execution.CodeLostByNode || d != time.Minute {
			t.Errorf("after %v: %+v", d, end)
		}
		synctest.Wait()
		if released.Load() != 1 || s.OpenRuns() != 0 || r.acc.Metrics().LostRuns.Load() != 1 {
			t.Errorf("released %d, %d open", released.Load(), s.OpenRuns())
		}
		r.close()
		r.checkEmpty()
	})
}

func TestLostOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proxy := &frameProxy{edit: func(fromNode bool, h wire.FrameHeader, payload []byte) [][]byte {
			if h.Type == wire.TypeOpen && h.Stream == 1 {
				return nil
			}
			return pass(h, payload)
		}}
		r := newRigWith(t, untilGate(nil), rigOptions{through: proxy})
		s := r.session()
		synctest.Wait()
		lost := open(t, s, nil)
		time.Sleep(5 * time.Minute)
		if s.OpenRuns() != 1 {
			t.Error("a run that the Node can't know of yet was given up")
		}
		living := open(t, s, nil)
		if _, _, end := collect(t, lost); end.Code != execution.CodeLostByNode {
			t.Errorf("end %+v", end)
		}
		time.Sleep(5 * time.Minute)
		if s.OpenRuns() != 1 {
			t.Errorf("%d runs are open", s.OpenRuns())
		}
		living.Cancel(execution.CodeClientGone, "enough")
		collect(t, living)
		r.close()
		r.checkEmpty()
	})
}

func TestEdgeForgot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := make(chan error, 1)
		r := newRig(t, false, func(ctx context.Context, run *NodeRun) {
			<-ctx.Done()
			cause <- context.Cause(ctx)
		})
		s := r.session()
		run := open(t, s, nil)
		synctest.Wait()
		began := time.Now()
		// The Edge loses it, by a fault that it should not have.
		s.link.mu.Lock()
		run.finishLocked(&execution.Terminal{Outcome: execution.Failed, Code: execution.CodeInternal})
		run.forgetLocked()
		s.link.unlock()
		var c *CancelError
		if err := <-cause; !errors.As(err, &c) || c.Code != execution.CodeSessionLost {
			t.Errorf("cause %v", err)
		}
		if d := time.Since(began); d > 30*time.Second {
			t.Errorf("after %v", d)
		}
		synctest.Wait()
		if n := r.sup.cfg.Metrics.Streams.Load(); n != 0 {
			t.Errorf("%d streams at the Node", n)
		}
		r.close()
		r.checkEmpty()
	})
}
