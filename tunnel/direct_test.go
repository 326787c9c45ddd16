package tunnel

import (
	"testing"
	"testing/synctest"

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
