package tunnel

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"iop/tunnel/wire"
)

// fakeLink stands between the two ends of a connection: a queue of so many bytes in each direction (the kernels' and
// proxies' buffers) in front of a wire of so many bytes a second. It is used as the Node's end.
type fakeLink struct {
	net.Conn      // the far side of the wire
	up, down fifo // towards the Edge, towards the Node
	pumps    sync.WaitGroup
	once     sync.Once
}

// newFakeLink starts a link over conn. rate 0 is as fast as it gets.
func newFakeLink(conn net.Conn, buffer, rate int) *fakeLink {
	l := &fakeLink{Conn: conn}
	for _, f := range []*fifo{&l.up, &l.down} {
		f.cond = sync.NewCond(&f.mu)
		f.size, f.rate = buffer, rate
	}
	l.pumps.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, err := l.up.read(buf)
			if err == nil {
				_, err = conn.Write(buf[:n])
			}
			if err != nil {
				l.up.close()
				return
			}
		}
	})
	l.pumps.Go(func() {
		buf := make([]byte, 16<<10)
		for {
			n, err := conn.Read(buf)
			if err == nil {
				err = l.down.write(buf[:n])
			}
			if err != nil {
				l.down.close()
				return
			}
		}
	})
	return l
}

func (l *fakeLink) Read(p []byte) (int, error)  { return l.down.read(p) }
func (l *fakeLink) Write(p []byte) (int, error) { return len(p), l.up.write(p) }

func (l *fakeLink) Close() error {
	l.once.Do(func() {
		l.up.close()
		l.down.close()
		_ = l.Conn.Close()
	})
	return nil
}

// setRate changes the wire's speed in both directions.
func (l *fakeLink) setRate(rate int) {
	l.up.setRate(rate)
	l.down.setRate(rate)
}

// stall stops the wire in both directions, as if a cable were out; nothing is lost. resume goes on.
func (l *fakeLink) stall()  { l.up.setStalled(true); l.down.setStalled(true) }
func (l *fakeLink) resume() { l.up.setStalled(false); l.down.setStalled(false) }

// fifo is one direction of a fakeLink.
type fifo struct {
	mu      sync.Mutex
	cond    *sync.Cond
	buf     []byte
	size    int
	rate    int
	stalled bool
	closed  bool
}

func (f *fifo) write(p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(p) > 0 {
		for len(f.buf) >= f.size && !f.closed {
			f.cond.Wait()
		}
		if f.closed {
			return io.ErrClosedPipe
		}
		n := min(len(p), f.size-len(f.buf))
		f.buf = append(f.buf, p[:n]...)
		p = p[n:]
		f.cond.Broadcast()
	}
	return nil
}

func (f *fifo) read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for (len(f.buf) == 0 || f.stalled) && !f.closed {
		f.cond.Wait()
	}
	if f.closed {
		return 0, io.EOF
	}
	n := min(len(p), len(f.buf), 4096)
	if f.rate == 0 {
		n = min(len(p), len(f.buf))
	} else {
		wait := time.Duration(n) * time.Second / time.Duration(f.rate)
		f.mu.Unlock()
		time.Sleep(wait) // the wire's time, not a way to synchronise
		f.mu.Lock()
	}
	copy(p, f.buf[:n])
	f.buf = append(f.buf[:0], f.buf[n:]...)
	f.cond.Broadcast()
	return n, nil
}

func (f *fifo) close() {
	f.mu.Lock()
	f.closed = true
	f.cond.Broadcast()
	f.mu.Unlock()
}

func (f *fifo) setRate(rate int) {
	f.mu.Lock()
	f.rate = rate
	f.mu.Unlock()
}

func (f *fifo) setStalled(stalled bool) {
	f.mu.Lock()
	f.stalled = stalled
	f.cond.Broadcast()
	f.mu.Unlock()
}

// frameProxy relays a tunnel message by message and edits its frames.
type frameProxy struct {
	// edit returns what is passed on of a frame: as it was, changed, or nothing (nil). Static.
	edit func(fromNode bool, h wire.FrameHeader, payload []byte) [][]byte

	net  *pipeNet // what the Node dials
	edge *pipeNet
	srv  *http.Server
	wg   sync.WaitGroup
}

// pass is a frame as it was.
func pass(h wire.FrameHeader, payload []byte) [][]byte {
	return [][]byte{wire.AppendFrame(nil, h, payload)}
}

func (p *frameProxy) start(_ testing.TB, edge *pipeNet) {
	p.net, p.edge = newPipeNet(), edge
	p.srv = &http.Server{Handler: http.HandlerFunc(p.serve)}
	p.wg.Go(func() { _ = p.srv.Serve(p.net) })
}

func (p *frameProxy) close() {
	_ = p.srv.Close()
	_ = p.net.Close()
	p.wg.Wait()
}

func (p *frameProxy) serve(w http.ResponseWriter, r *http.Request) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: p.edge.dial}
	edge, _, err := websocket.Dial(r.Context(), "ws://edge.test"+wire.Path, &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: transport}, Subprotocols: []string{wire.Subprotocol}, HTTPHeader: http.Header{"Authorization": r.Header["Authorization"]},
	})
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	node, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{wire.Subprotocol}})
	if err != nil {
		_ = edge.CloseNow()
		return
	}
	p.wg.Go(func() { p.relay(node, edge, true) })
	p.wg.Go(func() { p.relay(edge, node, false) })
}

func (p *frameProxy) relay(from, to *websocket.Conn, fromNode bool) {
	defer func() { _ = from.CloseNow() }()
	defer func() { _ = to.CloseNow() }()
	from.SetReadLimit(wire.MaxMessage)
	for {
		_, message, err := from.Read(context.Background())
		if err != nil {
			return
		}
		var out []byte
		for len(message) > 0 {
			h, payload, rest, err := wire.Next(message)
			if err != nil {
				return
			}
			message = rest
			for _, frame := range p.edit(fromNode, h, payload) {
				out = append(out, frame...)
			}
		}
		if len(out) > 0 && to.Write(context.Background(), websocket.MessageBinary, out) != nil {
			return
		}
	}
}
