package tunnel

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"
	"google.golang.org/protobuf/proto"

	"iop/execution"
	"iop/tunnel/wire"
)

// benchChunks lets each of so many runs answer with chunks of a size, b.N chunks in all, and measures both ends.
func benchChunks(b *testing.B, streams, size int) {
	var left atomic.Int64
	chunk := bytes.Repeat([]byte{'x'}, size)
	r := newRig(b, true, func(_ context.Context, run *NodeRun) {
		_ = run.Head(&wire.Head{Status: 200})
		for left.Add(-1) >= 0 {
			if run.Write(chunk, true) != nil {
				return
			}
		}
		run.End(execution.Terminal{Outcome: execution.Completed})
	})
	s := r.session()
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for range streams {
		run := open(b, s, nil)
		wg.Go(func() {
			for {
				batch, ok := run.Take()
				if !ok {
					<-run.Ready()
				}
				if batch.End != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	m := r.sup.cfg.Metrics
	b.ReportMetric(float64(m.FramesSent.Load())/float64(m.MessagesSent.Load()), "frames/msg")
	r.close()
}

func BenchmarkChunks(b *testing.B) {
	for _, streams := range []int{1, 64, 1000} {
		for _, size := range []int{64, 220, 4096, 16384} {
			b.Run(fmt.Sprintf("streams=%d/size=%d", streams, size), func(b *testing.B) { benchChunks(b, streams, size) })
		}
	}
}

// BenchmarkRuns measures small runs from OPEN to END, so many at once: a request of 200 bytes, an answer of as many.
func BenchmarkRuns(b *testing.B) {
	for _, at := range []int{1, 64} {
		b.Run(fmt.Sprintf("at-once=%d", at), func(b *testing.B) {
			answer := bytes.Repeat([]byte{'a'}, 200)
			r := newRig(b, true, func(_ context.Context, run *NodeRun) {
				if _, ok := run.Body(); !ok {
					_, _ = io.Copy(io.Discard, run)
				}
				run.Phase(execution.PhaseProviderCalled)
				_ = run.Head(&wire.Head{Status: 200})
				_ = run.Write(answer, true)
				run.Phase(execution.PhaseProviderDone)
				run.End(execution.Terminal{Outcome: execution.Completed})
			})
			s := r.session()
			body := bytes.Repeat([]byte{'q'}, 200)
			b.ReportAllocs()
			b.ResetTimer()
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			for range at {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						collect(b, open(b, s, body))
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "runs/s")
			r.close()
		})
	}
}

// BenchmarkFill measures what the writer does for one chunk, without a socket.
func BenchmarkFill(b *testing.B) {
	var l link
	l.init(messageConn{}, nil, nil, &Metrics{}, newBudget())
	l.credit.limit = 1 << 40
	streams := make([]stream, 64)
	for i := range streams {
		initStream(&streams[i], &l, uint32(i+1))
		streams[i].tx.credit = 1 << 40
	}
	chunk := make([]byte, 220)
	buf := make([]byte, 0, wire.MaxMessage)
	b.ReportAllocs()
	for b.Loop() {
		for i := range streams {
			streams[i].appendDataLocked(wire.TypeBody, chunk, true)
		}
		if message, _ := l.fillLocked(buf); len(message) == 0 {
			b.Fatal("nothing to send")
		}
		l.credit.inFlight = 0
	}
}

// idleSessions registers n fake Nodes at an Edge over loopback, and leaves them idle. Their own ends cost as little as
// a connection can: what is measured is the Edge's.
func idleSessions(tb testing.TB, n int) (perSession uint64, closeAll func()) {
	r := newRig(tb, true, echo)
	r.session()
	url := r.sup.cfg.URL
	before := memoryInUse()
	conns := make([]*websocket.Conn, n)
	transport := &http.Transport{}
	for i := range conns {
		ws, _, err := websocket.Dial(context.Background(), url, &websocket.DialOptions{
			HTTPClient: &http.Client{Transport: transport}, Subprotocols: []string{wire.Subprotocol},
		})
		if err != nil {
			tb.Fatal(err)
		}
		conns[i] = ws
		for seq, m := range []proto.Message{
			&wire.RegisterRequest{ProtocolVersions: []uint32{1}, NodeName: fmt.Sprint("n", i), BootId: "b"}, &wire.NodeReadyRequest{},
		} {
			payload, err := proto.Marshal(m)
			if err != nil {
				tb.Fatal(err)
			}
			typ := [...]wire.Type{wire.TypeRegister, wire.TypeReady}[seq]
			frame := wire.AppendFrame(nil, wire.FrameHeader{Type: typ, Seq: uint32(seq)}, payload)
			if err := ws.Write(context.Background(), websocket.MessageBinary, frame); err != nil {
				tb.Fatal(err)
			}
		}
		<-r.dir.online
	}
	perSession = (memoryInUse() - before) / uint64(n)
	return perSession, func() {
		for _, ws := range conns {
			_ = ws.CloseNow()
		}
		transport.CloseIdleConnections()
		r.close()
	}
}

// memoryInUse is what the heap and the stacks hold after a collection.
func memoryInUse() uint64 {
	var m runtime.MemStats
	// Twice: pools give up what they hold at the second.
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// BenchmarkIdleSessions reports what an idle session costs, both ends of its connection together.
func BenchmarkIdleSessions(b *testing.B) {
	for b.Loop() {
		per, closeAll := idleSessions(b, 1000)
		b.ReportMetric(float64(per), "B/session")
		b.StopTimer()
		closeAll()
		b.StartTimer()
	}
}

// An idle session holds no message buffers: far less than 60 KiB at both ends together.
func TestIdleSessionsAreSmall(t *testing.T) {
	per, closeAll := idleSessions(t, 100)
	defer closeAll()
	if per > 48<<10 {
		t.Errorf("an idle session takes %d bytes", per)
	}
}

// BenchmarkLeasedRuns is BenchmarkRuns with a lease of a usual size, sealed in no time: what its way costs.
func BenchmarkLeasedRuns(b *testing.B) {
	var ks keepers
	sealed := bytes.Repeat([]byte{'l'}, 1600)
	r := newRigWith(b, withLease, rigOptions{tcp: true, supervisor: ks.config})
	s := r.session()
	body := bytes.Repeat([]byte{'q'}, 200)
	b.ReportAllocs()
	b.ResetTimer()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				collect(b, leased(b, s, body, func(context.Context) ([]byte, error) { return sealed, nil }))
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "runs/s")
	r.close()
}
