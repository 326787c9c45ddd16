package nodeagent

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"iop/execution"
)

// TestRechunked pushes one stream through every way of cutting it in two, and byte by byte: what comes out is what went
// in, and a border is only ever marked between events.
func TestRechunked(t *testing.T) {
	stream := ": note\n\n" + firstChunk + strings.ReplaceAll(firstChunk, "你好", "🎉é\\u0041") +
		"data:{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\r\n\r\n" + lastChunk + doneEvent
	for cut := range len(stream) + 1 {
		pieces := []string{stream[:cut], stream[cut:]}
		if cut == len(stream) {
			pieces = strings.Split(stream, "")
		}
		r := pipeRun(t, pieces)
		if got := r.out.String(); got != stream {
			t.Fatalf("cut at %d: body is %q", cut, got)
		}
		for _, at := range r.border {
			if before := stream[:at]; !strings.HasSuffix(before, "\n\n") && !strings.HasSuffix(before, "\r\n\r\n") {
				t.Fatalf("cut at %d: a border is marked at %d, after %q", cut, at, before)
			}
		}
		if n := len(r.border); n == 0 || r.border[n-1] != len(stream) {
			t.Fatalf("cut at %d: the end is no border", cut)
		}
	}
}

// pipeRun serves a streaming run whose answer's body is read in exactly these pieces.
func pipeRun(t *testing.T, pieces []string) *fakeRun {
	t.Helper()
	spec := ProviderSpec{ID: "p", URL: "http://127.0.0.1:1", Capacity: 1}
	a := testAgent(t, spec)
	a.only().transport = roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: 200, Status: "200 OK", ContentLength: -1,
			Header: http.Header{"Content-Type": {"text/event-stream"}},
			Body:   io.NopCloser(&pieceReader{pieces: pieces}),
		}, nil
	})
	r := chatRun(true)
	if end := serveNow(t, a, r); end.Outcome != execution.Completed {
		t.Fatalf("ended as %+v", end)
	}
	return r
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type pieceReader struct{ pieces []string }

func (r *pieceReader) Read(p []byte) (int, error) {
	for len(r.pieces) > 0 && r.pieces[0] == "" {
		r.pieces = r.pieces[1:]
	}
	if len(r.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.pieces[0])
	r.pieces[0] = r.pieces[0][n:]
	return n, nil
}

// TestCancel ends runs in every phase. Each time the provider's request must end, the terminal says
// cancelled, and the place is free.
func TestCancel(t *testing.T) {
	gone := make(chan struct{}, 1)
	hang := func(conn net.Conn) {
		io.Copy(io.Discard, conn) // returns when the Node has closed the connection
		gone <- struct{}{}
	}
	tests := []struct {
		name   string
		stream bool
		script func(net.Conn, *http.Request)
		ready  func(*testing.T, *fakeRun, <-chan struct{})
		phase  execution.Phase
	}{
		{"waiting for the head", false, func(c net.Conn, _ *http.Request) { hang(c) }, nil, execution.PhaseProviderCalled},
		{"waiting for the first byte", true, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, sseHead)
			hang(c)
		}, nil, execution.PhaseProviderCalled},
		{"streaming", true, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, sseHead+firstChunk)
			hang(c)
		}, func(t *testing.T, r *fakeRun, _ <-chan struct{}) { r.awaitWrite(t) }, execution.PhaseStreaming},
		{"in a unary body", false, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
			hang(c)
		}, func(t *testing.T, r *fakeRun, _ <-chan struct{}) { r.awaitWrite(t) }, execution.PhaseStreaming},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			called := make(chan struct{})
			a := testAgent(t, rawProvider(t, func(c net.Conn, r *http.Request) {
				close(called)
				tt.script(c, r)
			}))
			ctx, cancel := cancellable()
			r := chatRun(tt.stream)
			done := serveAsync(a, r, ctx)
			await(t, "the call", called)
			if tt.ready != nil {
				tt.ready(t, r, called)
			}
			at := time.Now()
			cancel(execution.CodeClientGone)
			await(t, "ServeRun", done)
			await(t, "the provider's connection to end", gone)
			if took := time.Since(at); took > cancelTime {
				t.Errorf("it took %s", took)
			}
			end := r.terminal(t)
			if end.Outcome != execution.Cancelled || end.Code != execution.CodeClientGone || end.Phase != tt.phase {
				t.Errorf("ended as %+v, want cancelled in phase %s", end, tt.phase)
			}
			if a.only().inUse.Load() != 0 {
				t.Error("the place is still taken")
			}
			if produced := (execution.Usage{Output: 1, Known: true, Estimated: true}); tt.name == "streaming" && end.Usage != produced {
				t.Errorf("usage is %+v, want the one event that was produced", end.Usage)
			}
		})
	}
}

// TestCancelWhileBlocked cancels a run whose Write is blocked, and one whose body never arrives.
func TestCancelWhileBlocked(t *testing.T) {
	t.Run("in Write", func(t *testing.T) {
		gone := make(chan struct{})
		a := testAgent(t, rawProvider(t, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, sseHead+firstChunk)
			io.Copy(io.Discard, c)
			close(gone)
		}))
		ctx, cancel := cancellable()
		r := chatRun(true)
		r.gate = make(chan struct{})
		done := serveAsync(a, r, ctx)
		eventually(t, "the head", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.head != nil
		})
		cancel(execution.CodeCancelledByCaller)
		await(t, "ServeRun", done)
		await(t, "the provider's connection to end", gone)
		if end := r.terminal(t); end.Outcome != execution.Cancelled || end.Code != execution.CodeCancelledByCaller {
			t.Errorf("ended as %+v", end)
		}
	})
	for _, size := range []int{100, 1 << 20} { // awaited whole, and streamed
		t.Run(fmt.Sprintf("in Read of %d bytes", size), func(t *testing.T) {
			a := testAgent(t, httpProvider(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
			ctx, cancel := cancellable()
			r := newRun("embeddings", strings.Repeat("x", size))
			reading := make(chan struct{}, 1)
			r.late, r.feed = true, readerFunc(func(p []byte) (int, error) {
				select {
				case reading <- struct{}{}:
				default:
				}
				<-ctx.Done()
				return 0, context.Cause(ctx)
			})
			done := serveAsync(a, r, ctx)
			await(t, "the body to be read", reading)
			cancel(execution.CodeDeadline)
			await(t, "ServeRun", done)
			if end := r.terminal(t); end.Outcome != execution.Cancelled || end.Code != execution.CodeDeadline {
				t.Errorf("ended as %+v", end)
			}
		})
	}
}

// TestUploadAnsweredEarly: a provider refuses before it has read the body. Its answer passes, and the run's Read is not
// touched after ServeRun has returned.
func TestUploadAnsweredEarly(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		conn.Read(make([]byte, 1024))
		io.WriteString(conn, "HTTP/1.1 413 Content Too Large\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
		io.Copy(io.Discard, conn)
	}()
	a := testAgent(t, ProviderSpec{ID: "p", URL: "http://" + l.Addr().String(), Capacity: 1})
	r := newRun("embeddings", strings.Repeat("x", 1<<20))
	var over atomic.Bool
	first := true
	r.late, r.feed = true, readerFunc(func(p []byte) (int, error) {
		if over.Load() {
			t.Error("Read after ServeRun returned")
		}
		if first {
			first = false
			return copy(p, "some"), nil
		}
		<-r.ended // as the tunnel: a Read that waits ends with the run
		return 0, io.ErrClosedPipe
	})
	end := serveNow(t, a, r)
	over.Store(true)
	if end.Outcome != execution.Completed || r.head.GetStatus() != 413 {
		t.Errorf("ended as %+v with %v", end, r.head)
	}
}

// TestConnectionsAreReused: unary answers and streams that end in [DONE] give their connection back.
func TestConnectionsAreReused(t *testing.T) {
	var conns atomic.Int64
	spec := httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "embeddings") {
			io.WriteString(w, "{}")
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, firstChunk)
		w.(http.Flusher).Flush()
		io.WriteString(w, lastChunk+doneEvent)
		w.(http.Flusher).Flush() // the chunked body's end comes after [DONE], alone
	})
	a := testAgent(t, spec)
	p := a.only()
	p.transport = countingTransport(p, &conns)
	for i := range 20 {
		r := chatRun(true)
		if i%2 == 1 {
			r = newRun("embeddings", "{}")
		}
		if end := serveNow(t, a, r); end.Outcome != execution.Completed {
			t.Fatalf("ended as %+v", end)
		}
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections for 20 runs, want 1", n)
	}
}

func countingTransport(p *provider, conns *atomic.Int64) http.RoundTripper {
	tr := p.transport.(*http.Transport)
	dial := tr.DialContext
	tr.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conns.Add(1)
		return dial(ctx, network, address)
	}
	return tr
}

// TestEndDoesNotWaitForTheProvider: after [DONE] the run ends while the provider keeps its connection open.
func TestEndDoesNotWaitForTheProvider(t *testing.T) {
	gone := make(chan struct{})
	a := testAgent(t, rawProvider(t, func(c net.Conn, _ *http.Request) {
		io.WriteString(c, sseHead+firstChunk+doneEvent)
		io.Copy(io.Discard, c)
		close(gone)
	}))
	r := chatRun(true)
	done := serveAsync(a, r, context.Background())
	await(t, "END", r.ended)
	if a.only().inUse.Load() != 0 {
		t.Error("the place is still taken after END")
	}
	await(t, "the provider's connection to be given up", gone)
	await(t, "ServeRun", done)
}

// TestEndAtTheTerminalEvent: a stream whose protocol knows no [DONE] ends with its terminal event, too; a chat's
// finish_reason is none, as usage may follow.
func TestEndAtTheTerminalEvent(t *testing.T) {
	serve := func(op, events string) (*fakeRun, <-chan struct{}, func(execution.Code)) {
		a := testAgent(t, rawProvider(t, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, sseHead+events)
			io.Copy(io.Discard, c)
		}))
		r := chatRun(true)
		r.req().Operation = op
		ctx, cancel := cancellable()
		return r, serveAsync(a, r, ctx), cancel
	}
	completed := "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":7,\"output_tokens\":3}}}\n\n"
	r, done, _ := serve("responses", completed)
	await(t, "END", r.ended)
	await(t, "ServeRun", done)
	if end := r.terminal(t); end.Outcome != execution.Completed || end.Usage != (execution.Usage{Input: 7, Output: 3, Known: true}) {
		t.Errorf("ended as %+v", end)
	}
	r, done, cancel := serve("chat.completions", lastChunk)
	r.awaitWrite(t)
	select {
	case <-r.ended:
		t.Error("a chat ended at its finish_reason")
	default:
	}
	cancel(execution.CodeClientGone)
	await(t, "ServeRun", done)
}

// TestPlaceIsFreeBeforeEnd: the provider is done, more than the Edge's window is still to be taken.
func TestPlaceIsFreeBeforeEnd(t *testing.T) {
	a := testAgent(t, httpProvider(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write(bytes.Repeat([]byte(" "), 200<<10))
	}))
	r := newRun("embeddings", "{}")
	serveNow(t, a, r)
	if n := len(r.phases); n != 2 || r.phases[1] != execution.PhaseProviderDone {
		t.Errorf("phases are %v, want provider_called and provider_done", r.phases)
	}
	small := newRun("embeddings", "{}")
	small.req().Operation = "chat.completions"
	a2 := testAgent(t, httpProvider(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "{}") }))
	serveNow(t, a2, small)
	if len(small.phases) != 1 {
		t.Errorf("phases of a small answer are %v, want one frame only", small.phases)
	}
}

// TestCapacity: places are counted exactly, whatever the order in which runs end.
func TestCapacity(t *testing.T) {
	release := make(chan struct{})
	var inside, most atomic.Int64
	spec := httpProvider(t, func(w http.ResponseWriter, _ *http.Request) {
		n := inside.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-release
		inside.Add(-1)
		io.WriteString(w, "{}")
	})
	spec.Capacity = 3
	a := testAgent(t, spec)
	var running []<-chan struct{}
	for range 3 {
		running = append(running, serveAsync(a, chatRun(false), context.Background()))
	}
	eventually(t, "three runs", func() bool { return inside.Load() == 3 })
	for range 5 {
		if end := serveNow(t, a, chatRun(false)); end.Code != execution.CodeCapacity {
			t.Errorf("ended as %+v, want rejected for capacity", end)
		}
	}
	close(release)
	for _, done := range running {
		await(t, "a run", done)
	}
	if end := serveNow(t, a, chatRun(false)); end.Outcome != execution.Completed {
		t.Errorf("after them all: %+v", end)
	}
	if most.Load() != 3 {
		t.Errorf("%d runs at once, want 3", most.Load())
	}
}

// pipeProvider is a provider at the other end of net.Pipe, for time that is not real.
func pipeProvider(t *testing.T, script func(net.Conn, *http.Request)) *Agent {
	a := testAgent(t, ProviderSpec{ID: "p", URL: "http://127.0.0.1:1", Capacity: 4})
	p := a.only()
	tr := p.transport.(*http.Transport)
	tr.DialContext = func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go serveConn(theirs, script)
		return ours, nil
	}
	return a
}

// TestProviderClosesIdleConnections: a provider that says keep-alive and closes right after its answer, as real ones
// do, costs no run.
func TestProviderClosesIdleConnections(t *testing.T) {
	for _, kind := range []string{"unary", "large upload"} {
		t.Run(kind, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						defer c.Close()
						req, err := http.ReadRequest(bufio.NewReader(c))
						if err != nil {
							return
						}
						if _, err := io.Copy(io.Discard, req.Body); err != nil {
							return
						}
						io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}")
					}()
				}
			}()
			a := testAgent(t, ProviderSpec{ID: "p", Engine: OpenAIEngine, URL: "http://" + l.Addr().String()})
			body := "{}"
			if kind == "large upload" {
				body = `{"input":"` + strings.Repeat("x", 200<<10) + `"}`
			}
			for i := range 50 {
				r := newRun("embeddings", body)
				if kind == "large upload" {
					r.late = true
				}
				if end := serveNow(t, a, r); end.Outcome != execution.Completed {
					t.Fatalf("run %d ended as %+v", i, end)
				}
			}
		})
	}
}
