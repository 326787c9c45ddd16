package tunnel

import (
	"testing"
	"testing/synctest"

	"iop/execution"
	"iop/tunnel/wire"
)

// A whole window that arrives in one message must not be kept by whoever reads on the session's goroutine: its credit
// would come back with the next message, which the Node has no credit to send.
func TestDirectGivesCreditBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p, s := e.node("n")
		run := open(t, s, nil)
		p.expect(wire.TypeOpen, nil)
		p.send(wire.TypeHead, 1, &wire.Head{Status: 200})
		synctest.Wait()
		run.Take()
		got := 0
		run.Direct(func() bool {
			data, _, ok := run.TakeData()
			got += len(data)
			return ok
		})
		consumer := make(chan struct{})
		go func() { // as a handler does: it takes until there is nothing, then waits
			defer close(consumer)
			for {
				b, ok := run.Take()
				if !ok {
					<-run.Ready()
					continue
				}
				got += len(b.Data)
				if b.End != nil {
					return
				}
			}
		}()
		synctest.Wait()
		message := p.frame(wire.TypeBody, 0, 1, make([]byte, wire.MaxPayload))
		message = append(message, p.frame(wire.TypeBody, 0, 1, make([]byte, wire.MaxPayload-2*wire.HeaderSize))...)
		p.raw(message)
		for f := p.expect(wire.TypeWindow, nil); f.Stream != 1; {
			f = p.expect(wire.TypeWindow, nil)
		}
		p.send(wire.TypeEnd, 1, &wire.End{Outcome: 1})
		<-consumer
		if want := 2*wire.MaxPayload - 2*wire.HeaderSize; got != want {
			t.Errorf("%d bytes came, not %d", got, want)
		}
		p.close()
		e.close()
	})
}

// TakeData is for the common case alone, and never lets a stream run dry.
func TestTakeData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p, s := e.node("n")
		run := open(t, s, nil)
		p.expect(wire.TypeOpen, nil)
		none := func(why string) {
			t.Helper()
			synctest.Wait()
			if data, _, ok := run.TakeData(); ok {
				t.Errorf("%s: %d bytes", why, len(data))
			}
		}
		none("nothing has come")
		p.send(wire.TypeHead, 1, &wire.Head{Status: 200})
		p.sendBytes(wire.TypeBody, 1, []byte("a"))
		none("there is a HEAD")
		if b, ok := run.Take(); !ok || b.Head == nil || string(b.Data) != "a" {
			t.Errorf("%+v", b)
		}
		p.raw(p.frame(wire.TypeBody, wire.FlagBorder, 1, []byte("b\n\n")))
		synctest.Wait()
		if data, border, ok := run.TakeData(); !ok || string(data) != "b\n\n" || !border {
			t.Errorf("%q, %v, %v", data, border, ok)
		}
		none("all of it is taken")
		// However it comes, what was taken comes back as credit: no more than a quarter of the window is ever missing
		// on top of the quarter that is not yet due.
		credit := streamWindowMin - 4
		for range 200 {
			for credit < 8000 {
				f := p.expect(wire.TypeWindow, nil)
				if n, err := wire.ParseWindow(f.payload); err == nil && f.Stream == 1 {
					credit += int(n)
				}
			}
			p.sendBytes(wire.TypeBody, 1, make([]byte, 8000))
			credit -= 8000
			synctest.Wait()
			if data, _, ok := run.TakeData(); !ok || len(data) != 8000 {
				t.Fatalf("%d bytes, %v", len(data), ok)
			}
		}
		p.sendBytes(wire.TypeBody, 1, []byte("z"))
		p.send(wire.TypeEnd, 1, &wire.End{Outcome: 1})
		none("the end has come")
		if _, body, end := collect(t, run); string(body) != "z" || end.Outcome != execution.Completed {
			t.Errorf("%q, %+v", body, end)
		}
		none("the run has ended")
		p.close()
		e.close()
	})
}
