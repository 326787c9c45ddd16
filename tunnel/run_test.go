package tunnel

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// openCounted opens a run and counts its releases.
func openCounted(t testing.TB, s *NodeSession, body []byte) (*Run, *atomic.Int32) {
	t.Helper()
	var released atomic.Int32
	run, err := s.Open(OpenSpec{Open: tunnelOpen(), Body: body, Released: func() { released.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	return run, &released
}

// The capacity place is released exactly once, at the right moment, however the run goes.
func TestReleasedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p, s := e.node("n")
		id := uint32(0)
		start := func() (*Run, *atomic.Int32) {
			run, released := openCounted(t, s, nil)
			id++
			p.expect(wire.TypeOpen, nil)
			return run, released
		}
		check := func(what string, released *atomic.Int32, want int32) {
			t.Helper()
			synctest.Wait()
			if n := released.Load(); n != want {
				t.Errorf("%s: released %d times, want %d", what, n, want)
			}
		}
		end := func() { p.send(wire.TypeEnd, id, &wire.End{Outcome: 1}) }

		run, released := start()
		check("open", released, 0)
		end()
		check("END", released, 1)
		collect(t, run)

		run, released = start()
		p.sendBytes(wire.TypePhase, id, []byte{byte(execution.PhaseProviderDone)})
		check("provider_done", released, 1)
		p.sendBytes(wire.TypePhase, id, []byte{byte(execution.PhaseProviderDone)})
		end()
		check("provider_done, then END", released, 1)
		collect(t, run)

		run, released = start()
		run.Cancel(execution.CodeClientGone, "gone")
		check("CANCEL", released, 0)
		end()
		check("END after CANCEL", released, 1)

		run, released = start()
		run.Abandon(execution.CodeClientGone, "gone")
		p.sendBytes(wire.TypePhase, id, []byte{byte(execution.PhaseProviderDone)})
		check("provider_done of an abandoned run", released, 1)
		end()
		check("its END", released, 1)

		run, released = start()
		run.Cancel(execution.CodeCancelledByOperator, "stop")
		began := time.Now()
		_, _, terminal := collect(t, run)
		if d := time.Since(began); d != 10*time.Second || terminal.Outcome != execution.Cancelled || terminal.Code != execution.CodeCancelTimeout {
			t.Errorf("CANCEL unanswered, after %v: %+v", d, terminal)
		}
		check("the Edge gave it up", released, 0)
		if s.OpenRuns() != 1 {
			t.Errorf("%d runs are open", s.OpenRuns())
		}
		end()
		check("its late END", released, 1)
		if b, ok := run.Take(); ok {
			t.Errorf("after the end: %+v", b)
		}

		run, released = start()
		run.Cancel(execution.CodeClientGone, "gone")
		time.Sleep(11 * time.Second)
		check("given up", released, 0)
		s.Fence(execution.CodeSessionSuperseded, "over")
		check("the session's end", released, 1)
		if _, _, terminal := collect(t, run); terminal.Code != execution.CodeCancelTimeout {
			t.Errorf("it has another terminal: %+v", terminal)
		}
		p.close()
		e.close()
	})
}

// PHASE is heard, and only rises.
func TestPhases(t *testing.T) {
	e := newEdgeRig(t, nil)
	p, s := e.node("n")
	run := open(t, s, nil)
	p.expect(wire.TypeOpen, nil)
	if ph := run.Phase(); ph != execution.PhaseDispatched {
		t.Errorf("phase %s", ph)
	}
	for _, step := range []struct{ say, want execution.Phase }{
		{execution.PhaseAdmitted, execution.PhaseAdmitted},
		{execution.PhaseProviderCalled, execution.PhaseProviderCalled},
		{execution.PhaseAdmitted, execution.PhaseProviderCalled},
		{execution.PhaseProviderDone, execution.PhaseProviderDone},
		{execution.PhaseStreaming, execution.PhaseProviderDone},
	} {
		p.sendBytes(wire.TypePhase, 1, []byte{byte(step.say)})
		if err := s.Probe(context.Background()); err != nil {
			t.Fatal(err)
		}
		if ph := run.Phase(); ph != step.want {
			t.Errorf("after %s: %s, want %s", step.say, ph, step.want)
		}
	}
	p.send(wire.TypeEnd, 1, &wire.End{Outcome: 2, Phase: uint32(execution.PhaseAdmitted)})
	if _, _, end := collect(t, run); end.Phase != execution.PhaseProviderDone {
		t.Errorf("the terminal's phase is %s", end.Phase)
	}
	p.close()
	e.close()
}

// What one Take gives: what has arrived, the border, the end with the last of the data.
func TestTake(t *testing.T) {
	e := newEdgeRig(t, nil)
	p, s := e.node("n")
	run := open(t, s, nil)
	p.expect(wire.TypeOpen, nil)
	seen := func() {
		t.Helper()
		if err := s.Probe(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := run.Take(); ok {
		t.Error("something of nothing")
	}
	p.send(wire.TypeHead, 1, &wire.Head{Status: 201, Headers: []*wire.Header{{Name: "x", Value: "y"}}})
	p.sendBytes(wire.TypeBody, 1, []byte("data: a"))
	seen()
	b, ok := run.Take()
	if !ok || b.Head.GetStatus() != 201 || string(b.Data) != "data: a" || b.AtBorder || b.End != nil {
		t.Errorf("%+v", b)
	}
	p.raw(p.frame(wire.TypeBody, wire.FlagBorder, 1, []byte("\n\n")))
	seen()
	if b, ok = run.Take(); !ok || b.Head != nil || string(b.Data) != "\n\n" || !b.AtBorder {
		t.Errorf("%+v", b)
	}
	if b, ok = run.Take(); ok || !b.AtBorder {
		t.Errorf("nothing new, at a border still: %+v", b)
	}
	p.sendBytes(wire.TypeBody, 1, []byte("tail"))
	p.send(wire.TypeEnd, 1, &wire.End{Outcome: 1, Detail: strings.Repeat("d", 600), Usage: &wire.Usage{Input: 3, Output: 4, Cached: 1, Reasoning: 2, Estimated: true}, ProviderUs: 5000, Told: true})
	seen()
	b, ok = run.Take()
	if !ok || string(b.Data) != "tail" || b.AtBorder || b.End == nil {
		t.Fatalf("%+v", b)
	}
	if u := b.End.Usage; u != (execution.Usage{Input: 3, Output: 4, Cached: 1, Reasoning: 2, Known: true, Estimated: true}) || len(b.End.Detail) != wire.MaxDetail || b.End.Timings.Provider != 5*time.Millisecond {
		t.Errorf("end %+v", b.End)
	}
	if b.End.Told {
		t.Error("told of a failure that there was not")
	}
	if _, ok = run.Take(); ok {
		t.Error("something after the end")
	}
	run.Cancel(execution.CodeClientGone, "too late")
	run.Abandon(execution.CodeClientGone, "too late")
	if s.OpenRuns() != 0 {
		t.Error("a cancel after the end opened something")
	}
	p.close()
	e.close()
}

// A backlog is what arrived and was not consumed, be it taken or not.
func TestBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p, s := e.node("n")
		run, err := s.Open(OpenSpec{Open: tunnelOpen(), Released: func() {}})
		if err != nil {
			t.Fatal(err)
		}
		p.expect(wire.TypeOpen, nil)
		want := func(what string, bytes int, place bool) {
			t.Helper()
			synctest.Wait()
			if b := run.Backlog(); b != (Backlog{Bytes: bytes, Window: streamWindowMin, Place: place}) {
				t.Errorf("%s: %+v", what, b)
			}
		}
		want("open", 0, true)
		p.send(wire.TypeHead, 1, &wire.Head{Status: 200})
		p.sendBytes(wire.TypeBody, 1, []byte("first"))
		want("arrived", 5, true)
		run.Take()
		want("taken, not consumed", 5, true)
		p.sendBytes(wire.TypeBody, 1, []byte("second"))
		want("more behind it", 11, true)
		p.sendBytes(wire.TypePhase, 1, []byte{byte(execution.PhaseProviderDone)})
		want("the provider is done", 11, false)
		run.Take()
		run.Take()
		want("consumed", 0, false)
		p.send(wire.TypeEnd, 1, &wire.End{Outcome: 1})
		collect(t, run)
		p.close()
		e.close()
	})
}

// An abandoned run's bytes go nowhere, and its sender is not stuck.
func TestAbandon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false, flood(8<<20))
		s := r.session()
		run, released := openCounted(t, s, nil)
		awaitBytes(t, run, 100<<10)
		run.Abandon(execution.CodeClientGone, "the client left")
		synctest.Wait()
		if released.Load() != 1 || s.OpenRuns() != 0 {
			t.Errorf("released %d, %d open", released.Load(), s.OpenRuns())
		}
		if b, ok := run.Take(); ok && len(b.Data) > 0 {
			t.Errorf("%d bytes of an abandoned run", len(b.Data))
		}
		r.close()
		r.checkEmpty()
	})
}

// The request's body: whole at once if it is small, or as it comes.
func TestRequestBody(t *testing.T) {
	type result struct {
		whole bool
		body  []byte
		err   error
	}
	results := make(chan result, 1)
	arrived := make(chan struct{})
	h := func(_ context.Context, run *NodeRun) {
		defer run.End(execution.Terminal{Outcome: execution.Completed})
		if run.Open().BodyLength > 64<<10 {
			if _, ok := run.Body(); ok {
				t.Error("Body gave a body that is not there yet")
			}
			body, err := io.ReadAll(run)
			if _, ok := run.Body(); ok {
				t.Error("Body after Read")
			}
			results <- result{body: body, err: err}
			return
		}
		<-arrived
		body, ok := run.Body()
		rest, err := io.ReadAll(run)
		results <- result{whole: ok, body: append(bytes.Clone(body), rest...), err: err}
	}
	n := newNodeRig(t, h, nil)
	p := n.online(1)
	id := uint32(0)
	start := func(size int) {
		id++
		spec := tunnelOpen()
		spec.BodyLength = uint64(size)
		p.send(wire.TypeOpen, id, spec)
	}
	for _, size := range []int{0, 1, 64 << 10} {
		arrived = make(chan struct{})
		start(size)
		for sent := 0; sent < size; sent += wire.MaxPayload {
			p.sendBytes(wire.TypeBody, id, bytes.Repeat([]byte{'b'}, min(wire.MaxPayload, size-sent)))
		}
		p.send(wire.TypeHeartbeat, 0, &wire.Heartbeat{Id: 1})
		p.expect(wire.TypeHeartbeatAck, nil)
		close(arrived)
		if r := <-results; !r.whole || len(r.body) != size || r.err != nil {
			t.Errorf("%d bytes: %v, %d bytes, %v", size, r.whole, len(r.body), r.err)
		}
		p.expect(wire.TypeEnd, nil)
	}
	// In pieces, and with credit coming back.
	start(300 << 10)
	credit := streamWindowMin
	for left := 300 << 10; left > 0; {
		for k := min(left, credit, 10_000); k > 0; k = min(left, credit, 10_000) {
			p.sendBytes(wire.TypeBody, id, make([]byte, k))
			left, credit = left-k, credit-k
		}
		if left > 0 {
			f := p.expect(wire.TypeWindow, nil)
			if c, err := wire.ParseWindow(f.payload); err == nil && f.Stream == id {
				credit += int(c)
			}
		}
	}
	if r := <-results; len(r.body) != 300<<10 || r.err != nil {
		t.Errorf("%d bytes, %v", len(r.body), r.err)
	}
	p.close()
	n.close()
}

// Read is interrupted by whatever ends the run.
func TestReadIsInterrupted(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(p *fakePeer)
		want execution.Code
	}{
		"CANCEL":       {func(p *fakePeer) { p.send(wire.TypeCancel, 1, &wire.Cancel{Code: uint32(execution.CodeClientGone)}) }, execution.CodeClientGone},
		"the session":  {func(p *fakePeer) { p.send(wire.TypeGoodbye, 0, &wire.Goodbye{Code: "shutdown"}) }, execution.CodeSessionLost},
		"the deadline": {func(*fakePeer) { time.Sleep(time.Minute) }, execution.CodeDeadline},
		"unknown to Edge": {func(p *fakePeer) {
			p.expect(wire.TypeHeartbeat, nil)
			p.send(wire.TypeHeartbeatAck, 0, &wire.HeartbeatAck{Id: 1, UnknownStreams: []uint32{1, 2}})
		}, execution.CodeSessionLost},
	} {
		synctest.Test(t, func(t *testing.T) {
			causes := make(chan error, 1)
			n := newNodeRig(t, func(ctx context.Context, run *NodeRun) {
				_, err := io.ReadAll(run)
				if cause := context.Cause(ctx); !errors.Is(err, cause) {
					t.Errorf("%s: Read says %v, the context %v", name, err, cause)
				}
				causes <- err
			}, nil)
			p := n.online(1)
			p.hush()
			spec := tunnelOpen()
			spec.BodyLength = 100
			spec.TimeoutMs = 40_000
			p.send(wire.TypeOpen, 1, spec)
			p.sendBytes(wire.TypeBody, 1, make([]byte, 10))
			c.end(p)
			var cancelled *CancelError
			if err := <-causes; !errors.As(err, &cancelled) || cancelled.Code != c.want {
				t.Errorf("%s: %v", name, err)
			}
			p.close()
			n.close()
		})
	}
}

// A handler that forgets, panics or hangs still gives the run its one end.
func TestHandlersThatMisbehave(t *testing.T) {
	hang := make(chan struct{})
	r := newRig(t, false, byProvider(map[string]handlerFunc{
		"forgets": func(context.Context, *NodeRun) {},
		"panics":  func(context.Context, *NodeRun) { panic("boom") },
		"twice": func(_ context.Context, run *NodeRun) {
			run.End(execution.Terminal{Outcome: execution.Completed})
			run.End(execution.Terminal{Outcome: execution.Failed, Code: execution.CodeInternal})
		},
		"no head": func(_ context.Context, run *NodeRun) {
			err := run.Write([]byte("x"), false)
			run.End(execution.Terminal{Outcome: execution.Failed, Detail: err.Error()})
		},
		"two heads": func(_ context.Context, run *NodeRun) {
			_ = run.Head(&wire.Head{Status: 200})
			err := run.Head(&wire.Head{Status: 200})
			run.End(execution.Terminal{Outcome: execution.Failed, Detail: err.Error()})
		},
		"large head": func(_ context.Context, run *NodeRun) {
			err := run.Head(&wire.Head{Status: 200, Headers: []*wire.Header{{Name: "x", Value: strings.Repeat("y", wire.MaxHead)}}})
			run.End(execution.Terminal{Outcome: execution.Failed, Detail: err.Error()})
		},
		"after": func(_ context.Context, run *NodeRun) {
			_ = run.Head(&wire.Head{Status: 200})
			run.End(execution.Terminal{Outcome: execution.Completed})
			if run.Write([]byte("x"), false) == nil || run.Head(&wire.Head{}) == nil {
				t.Error("something was taken after the end")
			}
			run.Phase(execution.PhaseProviderDone)
		},
		"not UTF-8": func(_ context.Context, run *NodeRun) {
			run.End(execution.Terminal{Outcome: execution.Failed, Code: execution.CodeProviderError, Detail: "bad \xff byte" + strings.Repeat("ü", 400)})
		},
	}))
	defer r.close()
	defer close(hang)
	s := r.session()
	for provider, want := range map[string]execution.Terminal{
		"forgets":    {Outcome: execution.Failed, Code: execution.CodeInternal, Detail: "without ending"},
		"panics":     {Outcome: execution.Failed, Code: execution.CodeInternal, Detail: "without ending"},
		"twice":      {Outcome: execution.Completed},
		"no head":    {Outcome: execution.Failed, Detail: "before HEAD"},
		"two heads":  {Outcome: execution.Failed, Detail: "already sent"},
		"large head": {Outcome: execution.Failed, Detail: "over 24576"},
		"after":      {Outcome: execution.Completed},
		"not UTF-8":  {Outcome: execution.Failed, Code: execution.CodeProviderError, Detail: "bad \uFFFD byteüü"},
	} {
		_, body, end := collect(t, openFor(t, s, provider, nil))
		if end.Outcome != want.Outcome || end.Code != want.Code || !strings.Contains(end.Detail, want.Detail) || len(body) > 0 || len(end.Detail) > wire.MaxDetail {
			t.Errorf("%s: %+v", provider, end)
		}
	}
}

// HTTP lets a header carry any bytes: an odd one is replaced, and costs no run.
func TestHeadersThatAreNotUTF8(t *testing.T) {
	r := newRig(t, false, func(_ context.Context, run *NodeRun) {
		asked := run.Open().GetProviderTunnel()
		_ = run.Head(&wire.Head{Status: 200, Headers: append(asked.Headers, &wire.Header{Name: "x-answer", Value: "caf\xe9"})})
		run.End(execution.Terminal{Outcome: execution.Completed})
	})
	s := r.session()
	spec := tunnelOpen()
	spec.SessionId = "odd\xff"
	spec.GetProviderTunnel().Headers = []*wire.Header{{Name: "x-question", Value: "\xfcber"}}
	run, err := s.Open(OpenSpec{Open: spec})
	if err != nil {
		t.Fatal(err)
	}
	head, _, end := collect(t, run)
	if end.Outcome != execution.Completed || len(head.GetHeaders()) != 2 || head.Headers[0].Value != "\uFFFDber" || head.Headers[1].Value != "caf\uFFFD" {
		t.Errorf("%v, %+v", head, end)
	}
	if spec.SessionId != "odd\xff" {
		t.Error("the caller's message was changed")
	}
	r.close()
	r.checkEmpty()
}

// A handler that does not stop when it is told: the Node ends the run for it, in less time than the Edge waits.
func TestHandlerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		r := newRig(t, false, func(context.Context, *NodeRun) { <-hang })
		s := r.session()
		run, released := openCounted(t, s, nil)
		synctest.Wait()
		began := time.Now()
		run.Cancel(execution.CodeClientGone, "the client \xff left")
		_, _, end := collect(t, run)
		if d := time.Since(began); d != terminalGrace || end.Outcome != execution.Cancelled || end.Code != execution.CodeClientGone || end.Detail != "the client \uFFFD left" {
			t.Errorf("after %v: %+v", d, end)
		}
		synctest.Wait()
		if released.Load() != 1 {
			t.Errorf("released %d times", released.Load())
		}
		close(hang)
		r.close()
		r.checkEmpty()
	})
}

// The deadline passes when the handler has said its last word, and the client has not yet taken all: what it gets is
// short, and its end says so.
func TestDeadlineCutsTheTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false, func(_ context.Context, run *NodeRun) {
			_ = run.Head(&wire.Head{Status: 200})
			_ = run.Write(make([]byte, streamWindowMin+1), true)
			run.End(execution.Terminal{Outcome: execution.Completed})
		})
		s := r.session()
		spec := tunnelOpen()
		spec.TimeoutMs = 1500
		run, err := s.Open(OpenSpec{Open: spec})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if _, body, end := collect(t, run); len(body) != streamWindowMin || end.Outcome != execution.Cancelled || end.Code != execution.CodeDeadline {
			t.Errorf("%d bytes, %+v", len(body), end)
		}
		r.close()
		r.checkEmpty()
	})
}

// The deadline that OPEN carries is the Node's to keep.
func TestRunDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false, func(ctx context.Context, run *NodeRun) {
			_ = run.Head(&wire.Head{Status: 200})
			for run.Write(make([]byte, 8192), false) == nil { // the client takes nothing
			}
		})
		s := r.session()
		spec := tunnelOpen()
		spec.TimeoutMs = 1500
		began := time.Now()
		run, err := s.Open(OpenSpec{Open: spec})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second) // a full window of BODY waits; END came behind it
		_, _, end := collect(t, run)
		if end.Outcome != execution.Cancelled || end.Code != execution.CodeDeadline {
			t.Errorf("after %v: %+v", time.Since(began), end)
		}
		r.close()
		r.checkEmpty()
	})
}

// END waits behind its own BODY, unless the run is cancelled: then what is unsent is dropped.
func TestEndAndUnsentBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false, func(_ context.Context, run *NodeRun) {
			_ = run.Head(&wire.Head{Status: 200})
			_ = run.Write(make([]byte, streamWindowMin+sendBufferLimit), false)
			run.End(execution.Terminal{Outcome: execution.Completed, Usage: execution.Usage{Output: 9, Known: true}})
		})
		s := r.session()
		whole := open(t, s, nil)
		cut, released := openCounted(t, s, nil)
		synctest.Wait()
		if s.OpenRuns() != 2 {
			t.Errorf("%d runs are open", s.OpenRuns())
		}
		cut.Cancel(execution.CodeClientGone, "gone")
		synctest.Wait()
		if released.Load() != 1 {
			t.Error("END did not come at once")
		}
		// What was cut off does not pass for complete; the usage stands.
		if _, body, end := collect(t, cut); len(body) != streamWindowMin || end.Outcome != execution.Cancelled || end.Code != execution.CodeClientGone || !end.Usage.Known {
			t.Errorf("cut: %d bytes, %+v", len(body), end)
		}
		if _, body, end := collect(t, whole); len(body) != streamWindowMin+sendBufferLimit || end.Outcome != execution.Completed {
			t.Errorf("whole: %d bytes, %+v", len(body), end)
		}
		r.close()
		r.checkEmpty()
	})
}

// A Node name, an answer's headers and a token never make a run's error for clients: what Open refuses, it explains.
func TestOpenErrors(t *testing.T) {
	e := newEdgeRig(t, nil)
	p := fakeDial(t, e.net)
	p.register("n")
	var s *NodeSession
	eventually(t, "the session is registered", func() bool {
		if all := e.acc.all(); len(all) == 1 {
			s = all[0]
		}
		return s != nil
	})
	if _, err := s.Open(OpenSpec{Open: tunnelOpen()}); !errors.Is(err, ErrDraining) {
		t.Errorf("before READY: %v", err)
	}
	p.close()
	<-s.Done()
	if _, err := s.Open(OpenSpec{Open: tunnelOpen()}); !errors.Is(err, ErrSessionClosed) {
		t.Errorf("after the end: %v", err)
	}
	e.close()
	rec := &countingWriter{header: http.Header{}}
	e.acc.ServeHTTP(rec, &http.Request{Header: http.Header{}})
	if rec.status != http.StatusServiceUnavailable {
		t.Errorf("a closed Acceptor answers %d", rec.status)
	}
}

type countingWriter struct {
	header http.Header
	status int
}

func (w *countingWriter) Header() http.Header         { return w.header }
func (w *countingWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w *countingWriter) WriteHeader(status int)      { w.status = status }
