package nodeagent

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"iop/execution"
)

// TestFirstChunkAtOnce: whatever a stream calls itself, its first event goes on before the second is written.
func TestFirstChunkAtOnce(t *testing.T) {
	for _, kind := range []string{
		"text/event-stream", "text/event-stream; charset=utf-8", "TEXT/EVENT-STREAM;charset=UTF-8", "text/plain", "application/x-ndjson",
		"application/json", "application/octet-stream", "",
	} {
		t.Run(kind, func(t *testing.T) {
			next := make(chan struct{})
			a := testAgent(t, rawProvider(t, func(c net.Conn, _ *http.Request) {
				head := "HTTP/1.1 200 OK\r\nConnection: close\r\n"
				if kind != "" {
					head += "Content-Type: " + kind + "\r\n"
				}
				io.WriteString(c, head+"\r\n"+firstChunk)
				<-next
				io.WriteString(c, lastChunk+doneEvent)
			}))
			r := chatRun(true)
			done := serveAsync(a, r, context.Background())
			r.awaitWrite(t)
			r.mu.Lock()
			got := r.out.String()
			r.mu.Unlock()
			close(next)
			await(t, "ServeRun", done)
			if got != firstChunk {
				t.Errorf("sent %q before the second event", got)
			}
			if end := r.terminal(t); end.Outcome != execution.Completed || r.out.String() != firstChunk+lastChunk+doneEvent {
				t.Errorf("ended as %+v with %q", end, r.out.String())
			}
		})
	}
}

// TestReset: a provider that dies with a TCP reset, before and in its answer.
func TestReset(t *testing.T) {
	reset := func(c net.Conn) { c.(*net.TCPConn).SetLinger(0) }
	t.Run("before", func(t *testing.T) {
		a := testAgent(t, rawProvider(t, func(c net.Conn, _ *http.Request) { reset(c) }))
		if end := serveNow(t, a, chatRun(true)); end.Code != execution.CodeProviderError {
			t.Errorf("ended as %+v", end)
		}
	})
	t.Run("within", func(t *testing.T) {
		sent := make(chan struct{})
		a := testAgent(t, rawProvider(t, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, sseHead+firstChunk)
			<-sent
			reset(c)
		}))
		r := chatRun(true)
		done := serveAsync(a, r, context.Background())
		r.awaitWrite(t)
		close(sent)
		await(t, "ServeRun", done)
		if end := r.terminal(t); end.Code != execution.CodeProviderTruncated || r.out.String() != firstChunk {
			t.Errorf("ended as %+v with %q", end, r.out.String())
		}
	})
}

// TestStorm cancels, times out and completes runs at random: each has one terminal, the sums are right, and no place
// stays taken.
func TestStorm(t *testing.T) {
	const runs, workers = 2000, 32
	spec := httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for range rand.IntN(5) {
			io.WriteString(w, firstChunk)
			w.(http.Flusher).Flush()
		}
		switch rand.IntN(4) {
		case 0:
			<-r.Context().Done() // hangs until it is cancelled
		case 1: // ends without its terminal
		default:
			io.WriteString(w, lastChunk+doneEvent)
		}
	})
	spec.Capacity = workers / 2
	a := testAgent(t, spec)
	var completed, failed, cancelled, rejected atomic.Int64
	count := map[execution.Outcome]*atomic.Int64{
		execution.Completed: &completed, execution.Failed: &failed, execution.Cancelled: &cancelled, execution.Rejected: &rejected,
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range runs / workers {
				ctx, cancel := cancellable()
				timer := time.AfterFunc(time.Duration(rand.IntN(5000))*time.Microsecond, func() { cancel(execution.CodeClientGone) })
				r := chatRun(true)
				if rand.IntN(4) == 0 {
					r.req().FirstByteTimeoutMs, r.req().IdleTimeoutMs = 1, 1
				}
				end := serveUntil(t, a, r, ctx)
				timer.Stop()
				cancel(execution.CodeNone)
				count[end.Outcome].Add(1)
				if end.Outcome == execution.Cancelled && end.Code != execution.CodeClientGone {
					t.Errorf("cancelled as %s", end.Code)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("completed %d, failed %d, cancelled %d, rejected %d", completed.Load(), failed.Load(), cancelled.Load(), rejected.Load())
	if sum := completed.Load() + failed.Load() + cancelled.Load() + rejected.Load(); sum != runs/workers*workers {
		t.Errorf("%d terminals", sum)
	}
	if n := a.only().inUse.Load(); n != 0 {
		t.Errorf("%d places are still taken", n)
	}
}
