package tunnel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/execution"
	"iop/tunnel/wire"
)

// sampleEvents has one event of each kind with each of its fields.
// TestDateThatIsNone: a provider may write its date in milliseconds; the event is one nevertheless.
func TestDateThatIsNone(t *testing.T) {
	var e execution.Event
	odd := AppendRunEvent(nil, &execution.Event{Kind: execution.EventStarted, Started: &execution.Started{ID: "x", Created: time.Unix(1764410400000, 0)}})
	if n, err := ParseRunEvent(odd, &e); n != len(odd) || err != nil || e.Started.ID != "x" || !e.Started.Created.IsZero() {
		t.Errorf("%d of %d: %v, %+v", n, len(odd), err, e.Started)
	}
}

func sampleEvents() []execution.Event {
	return []execution.Event{
		{Kind: execution.EventStarted, Started: &execution.Started{
			ID: "chatcmpl-1", Model: "m", Created: time.Unix(1700000000, 0), Usage: execution.Usage{Input: 9, Cached: 4, Known: true},
		}},
		{Kind: execution.EventStarted, Started: &execution.Started{}},
		{Kind: execution.EventReasoning, Text: "hm", Signature: "sig"},
		{Kind: execution.EventReasoning, Redacted: "opaque", Choice: 1},
		{Kind: execution.EventText, Text: "Hello \u2028 \u00e9", Logprobs: []byte(`[{"token":"Hello"}]`)},
		{Kind: execution.EventText, Text: strings.Repeat("long ", 100), Choice: 127},
		{Kind: execution.EventText},
		{Kind: execution.EventToolCall, Call: execution.ToolCallDelta{Index: 3, ID: "call_1", Name: "f", Arguments: `{"x"`}},
		{Kind: execution.EventRefusal, Text: "no"},
		{Kind: execution.EventAnnotation, Annotation: []byte(`{"type":"url_citation"}`)},
		{Kind: execution.EventUsage, Usage: &execution.Usage{Input: 1 << 40, Output: 2, Cached: 3, Reasoning: 4, Known: true, Estimated: true}},
		{Kind: execution.EventFinish, Finish: execution.Finish{Reason: execution.FinishStopWord, StopWord: "END"}},
		{Kind: execution.EventFailure, Failure: &execution.Failure{
			Status: 429, Type: "rate", Code: "slow", Param: "messages[1].content[0]", Message: "too much", RetryAfter: 3 * time.Second, Unsupported: true,
		}},
	}
}

// What is written is what is read, and what any implementation of protocol buffers reads and writes.
func TestRunEventsTravel(t *testing.T) {
	for _, want := range sampleEvents() {
		data := AppendRunEvent([]byte("before"), &want)
		data = data[len("before"):]
		var got execution.Event
		n, err := ParseRunEvent(append(slices.Clone(data), "behind"...), &got)
		if err != nil || n != len(data) || !reflect.DeepEqual(got, want) {
			t.Errorf("%d bytes of %d, %v:\n%+v\nwant %+v", n, len(data), err, got, want)
		}
		size, prefix, err := eventLength(data)
		if err != nil || prefix+size != len(data) {
			t.Fatalf("%d + %d bytes, %v", prefix, size, err)
		}
		var m wire.RunEvent
		if err := proto.Unmarshal(data[prefix:], &m); err != nil || len(m.ProtoReflect().GetUnknown()) > 0 || m.Kind == nil {
			t.Errorf("%+v: %v %v", want, &m, err)
		}
		again, err := proto.MarshalOptions{Deterministic: true}.Marshal(&m)
		if err != nil {
			t.Fatal(err)
		}
		var other execution.Event
		if err := parseEvent(again, &other); err != nil || !reflect.DeepEqual(other, want) {
			t.Errorf("of protobuf's own: %v\n%+v", err, other)
		}
		for cut := range data {
			if n, err := ParseRunEvent(data[:cut], &got); n != 0 || err != nil {
				t.Errorf("of %d bytes of %d: %d, %v", cut, len(data), n, err)
			}
		}
	}
}

// Text that is none and JSON of several lines become what may travel; what is no event appends nothing.
func TestRunEventsAreMadeFit(t *testing.T) {
	var got execution.Event
	data := AppendRunEvent(nil, &execution.Event{Kind: execution.EventText, Text: "a\xffb", Logprobs: []byte("[1,\r\n 2]")})
	if _, err := ParseRunEvent(data, &got); err != nil || got.Text != "a\uFFFDb" || string(got.Logprobs) != "[1,2]" {
		t.Errorf("%+v, %v", got, err)
	}
	for _, kind := range []execution.EventKind{0, 200} {
		if out := AppendRunEvent([]byte("x"), &execution.Event{Kind: kind}); string(out) != "x" {
			t.Errorf("kind %d: %q", kind, out)
		}
	}
}

// What is not in the contract is refused, never dropped in silence.
func TestRunEventsAreRefused(t *testing.T) {
	msg := func(m *wire.RunEvent) []byte {
		p, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	text := &wire.RunEvent{Kind: &wire.RunEvent_Text{Text: &wire.TextDelta{Text: "x"}}}
	for name, p := range map[string][]byte{
		"of no kind":                 {},
		"a choice alone":             {7 << 3, 1},
		"of two kinds":               append(msg(text), msg(&wire.RunEvent{Kind: &wire.RunEvent_Refusal{Refusal: &wire.TextDelta{}}})...),
		"a kind twice":               append(msg(text), msg(text)...),
		"an unknown kind":            {11<<3 | 2, 0},
		"a field over 63":            append(msg(text), 0x82, 0x04, 0),
		"an unknown field":           {1<<3 | 2, 2, 9 << 3, 1},
		"a signature of text":        msg(&wire.RunEvent{Kind: &wire.RunEvent_Text{Text: &wire.TextDelta{Signature: "s"}}}),
		"logprobs of a thought":      msg(&wire.RunEvent{Kind: &wire.RunEvent_Reasoning{Reasoning: &wire.TextDelta{Logprobs: []byte("[]")}}}),
		"no UTF-8":                   {1<<3 | 2, 3, 1<<3 | 2, 1, 0xff},
		"a choice too far":           append(msg(text), 7<<3, 128, 1),
		"a tool too far":             msg(&wire.RunEvent{Kind: &wire.RunEvent_ToolCall{ToolCall: &wire.ToolCallDelta{Index: execution.MaxToolCalls}}}),
		"no reason":                  msg(&wire.RunEvent{Kind: &wire.RunEvent_Finish{Finish: &wire.Finish{Reason: "tired"}}}),
		"negative usage":             msg(&wire.RunEvent{Kind: &wire.RunEvent_Usage{Usage: &wire.Usage{Input: -1}}}),
		"a negative date":            msg(&wire.RunEvent{Kind: &wire.RunEvent_Started{Started: &wire.Started{CreatedUnix: -1}}}),
		"a status of 600":            msg(&wire.RunEvent{Kind: &wire.RunEvent_Failure{Failure: &wire.Failure{Status: 600}}}),
		"an annotation of text":      msg(&wire.RunEvent{Kind: &wire.RunEvent_Annotation{Annotation: []byte("x")}}),
		"an annotation in two lines": msg(&wire.RunEvent{Kind: &wire.RunEvent_Annotation{Annotation: []byte("{\n}")}}),
		"logprobs of no JSON":        msg(&wire.RunEvent{Kind: &wire.RunEvent_Text{Text: &wire.TextDelta{Logprobs: []byte("[")}}}),
		"a number as a text":         {1 << 3, 1},
		"a fixed field":              {1<<3 | 5, 0, 0, 0, 0},
		"torn":                       {1<<3 | 2, 9, 0},
	} {
		data := append([]byte{byte(len(p))}, p...)
		if n, err := ParseRunEvent(data, &execution.Event{}); err == nil {
			t.Errorf("%s: %d bytes taken", name, n)
		}
	}
	large := []byte{0x81, 0x80, 0x40} // 1 MiB + 1
	if _, err := ParseRunEvent(large, &execution.Event{}); !errors.Is(err, ErrEventTooLarge) {
		t.Errorf("over the limit: %v", err)
	}
	endless := bytes.Repeat([]byte{0xff}, 5)
	if _, err := ParseRunEvent(endless, &execution.Event{}); !errors.Is(err, ErrEventTooLarge) {
		t.Errorf("a length without end: %v", err)
	}
}

// However the bytes are cut, the reader gives the same events, and holds no more than one.
func TestEventReaderPieces(t *testing.T) {
	events := sampleEvents()
	var data []byte
	for i := range events {
		data = AppendRunEvent(data, &events[i])
	}
	for size := 1; size < 300; size += 7 {
		var r EventReader
		var got []execution.Event
		for piece := range slices.Chunk(data, size) {
			if err := r.Push(piece, func(e *execution.Event) error { got = append(got, *e); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		if len(r.held) != 0 || !reflect.DeepEqual(got, events) {
			t.Fatalf("in pieces of %d: %+v", size, got)
		}
	}
	stop := errors.New("stop")
	var r EventReader
	if err := r.Push(data, func(*execution.Event) error { return stop }); err != stop {
		t.Errorf("%v", err)
	}
}

func FuzzParseRunEvent(f *testing.F) {
	for _, e := range sampleEvents() {
		f.Add(AppendRunEvent(nil, &e))
	}
	f.Add([]byte{0})
	f.Add([]byte{0x81, 0x80, 0x40})
	f.Fuzz(func(t *testing.T, data []byte) {
		var e execution.Event
		n, err := ParseRunEvent(data, &e)
		if err != nil || n == 0 {
			return
		}
		again := AppendRunEvent(nil, &e)
		var second execution.Event
		if m, err := ParseRunEvent(again, &second); err != nil || m != len(again) || !reflect.DeepEqual(e, second) {
			t.Errorf("%+v\nbecame %+v, %v", e, second, err)
		}
		var m wire.RunEvent
		size, prefix, _ := eventLength(data)
		if err := proto.Unmarshal(data[prefix:prefix+size], &m); err != nil {
			t.Errorf("protobuf does not take it: %v", err)
		}
	})
}

func normalizedOpen() *wire.Open {
	return &wire.Open{RunId: string(execution.NewRunID()), Kind: &wire.Open_Run{Run: &wire.RunRequest{Provider: "p", Model: "m", Stream: true}}}
}

func openNormalized(t testing.TB, s *NodeSession, body []byte) *Run {
	t.Helper()
	run, err := s.Open(OpenSpec{Open: normalizedOpen(), Body: body})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// collectEvents takes a normalized run to its end.
func collectEvents(t testing.TB, run *Run) (events []execution.Event, end execution.Terminal) {
	t.Helper()
	var r EventReader
	for {
		b, ok := run.Take()
		if !ok {
			<-run.Ready()
			continue
		}
		if b.Head != nil {
			t.Error("a head")
		}
		if err := r.Push(b.Data, func(e *execution.Event) error { events = append(events, *e); return nil }); err != nil {
			t.Error(err)
		}
		if b.End != nil {
			if b.End.Outcome == execution.Completed && (len(r.held) != 0 || !b.AtBorder) {
				t.Error("complete, within an event")
			}
			return events, *b.End
		}
	}
}

// A normalized run brings its events in order, whatever their size, and phase streaming with the first.
func TestEventsRelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := sampleEvents()
		big := execution.Event{Kind: execution.EventText, Text: strings.Repeat("b", MaxEvent-100)}
		events = append(events, big, events[0])
		gate := make(chan struct{})
		r := newRig(t, false, func(_ context.Context, run *NodeRun) {
			body, ok := run.Body()
			if !ok || string(body) != "input" || run.Open().GetRun() == nil {
				t.Errorf("%q, %v", body, ok)
			}
			run.Phase(execution.PhaseProviderCalled)
			<-gate
			for i := range events {
				if err := run.Events(AppendRunEvent(nil, &events[i])); err != nil {
					t.Error(err)
				}
			}
			run.End(execution.Terminal{Outcome: execution.Completed})
		})
		defer r.close()
		run := openNormalized(t, r.session(), []byte("input"))
		synctest.Wait()
		if p := run.Phase(); p != execution.PhaseProviderCalled {
			t.Errorf("phase %s before the first event", p)
		}
		close(gate)
		synctest.Wait()
		if p := run.Phase(); p != execution.PhaseStreaming {
			t.Errorf("phase %s with the first event", p)
		}
		got, end := collectEvents(t, run)
		if end.Outcome != execution.Completed || !reflect.DeepEqual(got, events) {
			t.Errorf("%d events, %+v", len(got), end)
		}
	})
}

// Each kind of run has its own frames, on the Node's side of its own accord, on the Edge's whatever the Node does.
func TestEventsAndBodiesDoNotMix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := AppendRunEvent(nil, &execution.Event{Kind: execution.EventText, Text: "x"})
		r := newRig(t, false, func(_ context.Context, run *NodeRun) {
			head, event := run.Head(&wire.Head{Status: 200}), run.Events(text)
			body := run.Write([]byte("x"), true)
			normalized := run.Open().GetRun() != nil
			if (head != nil) != normalized || (body != nil) != normalized || (event == nil) != normalized {
				t.Errorf("normalized %v: HEAD %v, BODY %v, EVENT %v", normalized, head, body, event)
			}
			if err := run.Events(text[:len(text)-1]); err == nil {
				t.Error("a torn event was taken")
			}
			if err := run.Events([]byte{0x81, 0x80, 0x40}); !errors.Is(err, ErrEventTooLarge) {
				t.Errorf("an event over the limit: %v", err)
			}
			run.End(execution.Terminal{Outcome: execution.Completed})
		})
		defer r.close()
		s := r.session()
		if _, end := collectEvents(t, openNormalized(t, s, nil)); end.Outcome != execution.Completed {
			t.Errorf("%+v", end)
		}
		if _, _, end := collect(t, open(t, s, nil)); end.Outcome != execution.Completed {
			t.Errorf("%+v", end)
		}
	})
	end, err := proto.Marshal(&wire.End{Outcome: uint32(execution.Completed)})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		open  *wire.Open
		typ   wire.Type
		flags wire.Flags
		load  []byte
		then  []byte // END behind it
	}{
		"HEAD in a normalized run": {normalizedOpen(), wire.TypeHead, 0, []byte{8, 200, 1}, nil},
		"BODY in a normalized run": {normalizedOpen(), wire.TypeBody, 0, []byte("x"), nil},
		"EVENT in a raw run":       {tunnelOpen(), wire.TypeEvent, 0, text(), nil},
		"EVENT of an Ollama call":  {ollamaOpen(), wire.TypeEvent, 0, text(), nil},
		"an event without its end": {normalizedOpen(), wire.TypeEvent, wire.FlagContinued, text()[:2], end},
	} {
		t.Run(name, func(t *testing.T) { testMixed(t, c.open, c.typ, c.flags, c.load, c.then) })
	}
}

func text() []byte {
	return AppendRunEvent(nil, &execution.Event{Kind: execution.EventText, Text: "x"})
}

func ollamaOpen() *wire.Open {
	return &wire.Open{RunId: string(execution.NewRunID()), Kind: &wire.Open_Ollama{Ollama: &wire.OllamaRequest{Provider: "p", Operation: "tags"}}}
}

func testMixed(t *testing.T, spec *wire.Open, typ wire.Type, flags wire.Flags, payload, end []byte) {
	synctest.Test(t, func(t *testing.T) {
		r := newEdgeRig(t, nil)
		defer r.close()
		p := rawDial(t, r.net)
		defer p.close()
		p.send(wire.TypeRegister, 0, &wire.RegisterRequest{ProtocolVersions: []uint32{1}, NodeName: "node", BootId: "boot"})
		p.send(wire.TypeReady, 0, &wire.NodeReadyRequest{})
		s := <-r.dir.online
		run, err := s.Open(OpenSpec{Open: spec})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		p.frame(typ, flags, 1, 0, payload)
		if end != nil {
			p.frame(wire.TypeEnd, wire.FlagLast, 1, 0, end)
		}
		synctest.Wait()
		for {
			b, ok := run.Take()
			if !ok {
				t.Fatal("no end")
			}
			if b.End != nil {
				if b.End.Outcome != execution.Failed || b.End.Code != execution.CodeProtocol {
					t.Errorf("%+v", b.End)
				}
				break
			}
		}
		select {
		case <-s.Done():
			t.Error("the session ended")
		default:
		}
	})
}

// A Node is held to its credit for events as for a body, and one that waits for it goes on when it is given.
func TestEventsWaitForCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, count = 1000, 500
		sent := 0
		r := newRig(t, false, func(_ context.Context, run *NodeRun) {
			for i := range count {
				text := fmt.Sprintf("%0*d", size, i)
				if err := run.Events(AppendRunEvent(nil, &execution.Event{Kind: execution.EventText, Text: text})); err != nil {
					t.Error(err)
					return
				}
				sent++
			}
			run.End(execution.Terminal{Outcome: execution.Completed})
		})
		defer r.close()
		run := openNormalized(t, r.session(), nil)
		synctest.Wait()
		if sent*size > streamWindowMin+sendBufferLimit || sent*size < streamWindowMin {
			t.Errorf("%d bytes were taken of a Node whose Edge takes none", sent*size)
		}
		got, end := collectEvents(t, run)
		if len(got) != count || end.Outcome != execution.Completed {
			t.Fatalf("%d events, %+v", len(got), end)
		}
		for i, e := range got {
			if e.Text != fmt.Sprintf("%0*d", size, i) {
				t.Fatalf("event %d is out of order", i)
			}
		}
	})
}

// A token's event is appended without an allocation, and read with the one of its text.
func TestRunEventAllocations(t *testing.T) {
	e := &execution.Event{Kind: execution.EventText, Text: "token"}
	buf := make([]byte, 0, 256)
	if n := testing.AllocsPerRun(100, func() { buf = AppendRunEvent(buf[:0], e) }); n > 0 {
		t.Errorf("%v allocations to append", n)
	}
	var got execution.Event
	if n := testing.AllocsPerRun(100, func() { _, _ = ParseRunEvent(buf, &got) }); n > 1 {
		t.Errorf("%v allocations to parse", n)
	}
}

func BenchmarkAppendRunEvent(b *testing.B) {
	e := &execution.Event{Kind: execution.EventText, Text: " token"}
	buf := make([]byte, 0, 256)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendRunEvent(buf[:0], e)
	}
}

func BenchmarkParseRunEvent(b *testing.B) {
	data := AppendRunEvent(nil, &execution.Event{Kind: execution.EventText, Text: " token"})
	var e execution.Event
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseRunEvent(data, &e); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEvents lets each of so many normalized runs answer with events of a token, b.N in all, and measures both ends
// with the reading of each: to be compared with BenchmarkChunks of size 220, which is the same token in a chunk of chat.
func BenchmarkEvents(b *testing.B) {
	for _, streams := range []int{1, 64} {
		b.Run(fmt.Sprintf("streams=%d", streams), func(b *testing.B) { benchEvents(b, streams) })
	}
}

func benchEvents(b *testing.B, streams int) {
	var left atomic.Int64
	e := &execution.Event{Kind: execution.EventText, Text: " token"}
	r := newRig(b, true, func(_ context.Context, run *NodeRun) {
		buf := make([]byte, 0, 64)
		for left.Add(-1) >= 0 {
			buf = AppendRunEvent(buf[:0], e)
			if run.Events(buf) != nil {
				return
			}
		}
		run.End(execution.Terminal{Outcome: execution.Completed})
	})
	s := r.session()
	b.ReportAllocs()
	b.ResetTimer()
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for range streams {
		run := openNormalized(b, s, nil)
		wg.Go(func() {
			var reader EventReader
			for {
				batch, ok := run.Take()
				if !ok {
					<-run.Ready()
				}
				if err := reader.Push(batch.Data, func(*execution.Event) error { return nil }); err != nil {
					b.Error(err)
				}
				if batch.End != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	r.close()
}

// What a Node sends can be told apart by who holds nothing: a frame without the flag ends where an event ends, one with
// it is gone on with, and the payloads make the events.
func TestEventFrames(t *testing.T) {
	big := execution.Event{Kind: execution.EventText, Text: strings.Repeat("b", 50_000)}
	small := execution.Event{Kind: execution.EventText, Text: "s"}
	n := newNodeRig(t, func(_ context.Context, run *NodeRun) {
		if err := run.Events(AppendRunEvent(AppendRunEvent(nil, &small), &big)); err != nil {
			t.Error(err)
		}
		if err := run.Events(AppendRunEvent(nil, &small)); err != nil {
			t.Error(err)
		}
		run.End(execution.Terminal{Outcome: execution.Completed})
	}, nil)
	p := n.online(1)
	p.send(wire.TypeOpen, 1, normalizedOpen())
	var data []byte
	frames := 0
	for f := range p.frames {
		if f.Type == wire.TypeEnd {
			break
		}
		if f.Type != wire.TypeEvent {
			continue
		}
		frames++
		data = append(data, f.payload...)
		if whole := wholeEvents(data) == nil; whole == (f.Flags&wire.FlagContinued != 0) || f.Flags&^wire.FlagContinued != 0 {
			t.Errorf("frame %d of %d bytes has flags %d, whole %v", frames, len(f.payload), f.Flags, whole)
		}
	}
	if frames < 3 || wholeEvents(data) != nil || len(data) < 50_000 {
		t.Errorf("%d frames, %d bytes", frames, len(data))
	}
	p.close()
	n.close()
}

// What a Node still sends of a run that was decided without it is dropped: it is no fault, however much it is, and the
// session goes on, with its credit.
func TestEventsAfterTheDecision(t *testing.T) {
	for name, typ := range map[string]wire.Type{"events": wire.TypeEvent, "bodies": wire.TypeBody} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEdgeRig(t, nil)
				p, s := e.node("n")
				var released atomic.Int32
				run, err := s.Open(OpenSpec{Open: normalizedOpen(), Released: func() { released.Add(1) }})
				if err != nil {
					t.Fatal(err)
				}
				p.expect(wire.TypeOpen, nil)
				run.Cancel(execution.CodeClientGone, "gone")
				p.expect(wire.TypeCancel, nil)
				if _, end := collectEvents(t, run); end.Code != execution.CodeCancelTimeout {
					t.Fatalf("%+v", end)
				}
				const frames = 64
				piece := AppendRunEvent(nil, &execution.Event{Kind: execution.EventText, Text: strings.Repeat("x", 4<<10)})
				for range frames {
					p.sendBytes(typ, 1, piece)
				}
				granted := 0
				for granted < frames*len(piece)-sessionGrantStep {
					if f := p.expect(wire.TypeWindow, nil); f.Stream == 0 {
						n, err := wire.ParseWindow(f.payload)
						if err != nil {
							t.Fatal(err)
						}
						granted += int(n)
					} else {
						t.Fatal("credit for a run that is over")
					}
				}
				synctest.Wait() // the last frames cost no credit yet
				if m := e.acc.Metrics(); m.StreamErrors.Load() != 0 || m.FramesDropped.Load() != frames || s.OpenRuns() != 1 || released.Load() != 0 {
					t.Errorf("%d faults, %d frames dropped, %d runs, released %d", m.StreamErrors.Load(), m.FramesDropped.Load(), s.OpenRuns(), released.Load())
				}
				if b, ok := run.Take(); ok {
					t.Errorf("after the end: %+v", b)
				}
				p.send(wire.TypeEnd, 1, &wire.End{Outcome: 1})
				synctest.Wait()
				if s.OpenRuns() != 0 || released.Load() != 1 {
					t.Errorf("%d runs, released %d", s.OpenRuns(), released.Load())
				}
				p.close()
				e.close()
			})
		})
	}
}
