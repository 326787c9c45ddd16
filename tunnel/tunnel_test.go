package tunnel

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"iop/execution"
	"iop/tunnel/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEcho(t *testing.T) {
	for _, size := range []int{0, 1, 100, 64 << 10, 3 << 20} {
		r := newRig(t, true, echo)
		s := r.session()
		body := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
		released := make(chan struct{})
		run, err := s.Open(OpenSpec{Open: tunnelOpen(), Body: body, Released: func() { close(released) }})
		if err != nil {
			t.Fatal(err)
		}
		head, got, end := collect(t, run)
		if head == nil || head.Status != 200 || !bytes.Equal(got, body) || end.Outcome != execution.Completed {
			t.Fatalf("size %d: head %v, %d bytes, end %+v", size, head, len(got), end)
		}
		if end.Usage != (execution.Usage{Input: 1, Output: 2, Known: true}) {
			t.Fatalf("usage %+v", end.Usage)
		}
		<-released
		info := s.Info()
		if len(info.Models) != 1 || info.Models[0].ID != "m" || info.Labels["site"] != "lab" || info.Providers[0].Capacity != 4 {
			t.Fatalf("info %+v", info)
		}
		r.close()
		if n := r.acc.Metrics().Streams.Load(); n != 0 {
			t.Fatalf("%d streams left", n)
		}
	}
}

// A body in pieces arrives as one, with a lease or without; empty pieces are none.
func TestBodyInPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ks keepers
		r := newRigWith(t, func(ctx context.Context, run *NodeRun) {
			if run.ExpectsLease() {
				withLease(ctx, run)
			} else {
				echo(ctx, run)
			}
		}, rigOptions{supervisor: ks.config})
		defer r.close()
		s := r.session()
		large := bytes.Repeat([]byte("0123456789abcdef"), 20<<10)
		for name, c := range map[string]struct {
			body []byte
			more [][]byte
		}{
			"one":         {large, nil},
			"only more":   {nil, [][]byte{[]byte("a"), large, []byte("b")}},
			"both":        {[]byte("a"), [][]byte{large, large[:1], large}},
			"empty":       {nil, [][]byte{nil, {}}},
			"empty ones":  {nil, [][]byte{nil, []byte("a"), {}, []byte("b"), nil}},
			"empty first": {[]byte{}, [][]byte{[]byte("a")}},
		} {
			want := append(bytes.Clone(c.body), bytes.Join(c.more, nil)...)
			spec := OpenSpec{Open: tunnelOpen(), Body: c.body, More: c.more}
			for _, lease := range []string{"", "a lease"} {
				if lease != "" {
					spec.Open = tunnelOpen()
					spec.Open.Lease = &wire.LeaseBinding{Principal: "alice", Slot: "s"}
					spec.Lease = token(lease)
				}
				run, err := s.Open(spec)
				if err != nil {
					t.Fatal(err)
				}
				if _, got, end := collect(t, run); string(got) != lease+string(want) || end.Outcome != execution.Completed {
					t.Errorf("%s, lease %q: %d bytes of %d, %+v", name, lease, len(got), len(want), end)
				}
			}
		}
	})
}

func TestManyRunsAtOnce(t *testing.T) {
	r := newRig(t, true, echo)
	defer r.close()
	s := r.session()
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			body := bytes.Repeat([]byte{byte(i)}, 1000*i)
			run, err := s.Open(OpenSpec{Open: tunnelOpen(), Body: body})
			if err != nil {
				t.Error(err)
				return
			}
			if _, got, end := collect(t, run); end.Outcome != execution.Completed || !bytes.Equal(got, body) {
				t.Errorf("run %d: %d bytes, %+v", i, len(got), end)
			}
		})
	}
	wg.Wait()
}

func TestElevenMinutesOfSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false, func(ctx context.Context, run *NodeRun) {
			time.Sleep(11 * time.Minute)
			_ = run.Head(&wire.Head{Status: 200})
			_ = run.Write([]byte("late"), true)
			run.End(execution.Terminal{Outcome: execution.Completed})
		})
		s := r.session()
		run, err := s.Open(OpenSpec{Open: tunnelOpen()})
		if err != nil {
			t.Fatal(err)
		}
		_, body, end := collect(t, run)
		if string(body) != "late" || end.Outcome != execution.Completed {
			t.Fatalf("%q, %+v", body, end)
		}
		if n := r.acc.Metrics().HeartbeatTimeouts.Load(); n != 0 {
			t.Fatalf("%d heartbeat timeouts", n)
		}
		if r.sup.Status().State != StateOnline || r.sup.Status().Generation != s.Generation() {
			t.Fatalf("status %+v", r.sup.Status())
		}
		r.close()
	})
}

func TestCancel(t *testing.T) {
	r := newRig(t, true, func(ctx context.Context, run *NodeRun) {
		_ = run.Head(&wire.Head{Status: 200})
		<-ctx.Done()
		cause := context.Cause(ctx).(*CancelError)
		run.End(execution.Terminal{Outcome: execution.Cancelled, Code: cause.Code, Detail: cause.Reason})
	})
	defer r.close()
	s := r.session()
	run, err := s.Open(OpenSpec{Open: tunnelOpen()})
	if err != nil {
		t.Fatal(err)
	}
	for {
		<-run.Ready()
		if b, _ := run.Take(); b.Head != nil {
			break
		}
	}
	run.Cancel(execution.CodeClientGone, "the client left")
	_, _, end := collect(t, run)
	if end.Outcome != execution.Cancelled || end.Code != execution.CodeClientGone || end.Detail != "the client left" {
		t.Fatalf("end %+v", end)
	}
	if s.OpenRuns() != 0 {
		t.Fatal("the run is still open")
	}
}
