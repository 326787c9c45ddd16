package nodeagent

import (
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
)

// TestSilence: eleven minutes without a byte pass, streaming or not; the route's own limits cut where they say.
func TestSilence(t *testing.T) {
	const silence = 11 * time.Minute
	tests := []struct {
		name        string
		stream      bool
		first, idle time.Duration
		script      func(net.Conn, *http.Request)
		code        execution.Code
		after       time.Duration
	}{
		{"unary", false, 0, 0, func(c net.Conn, _ *http.Request) {
			time.Sleep(silence)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}")
		}, 0, silence},
		{"before the head", true, 0, 0, func(c net.Conn, _ *http.Request) {
			time.Sleep(silence)
			io.WriteString(c, sseHead+firstChunk+doneEvent)
		}, 0, silence},
		{"before the first event and in the middle", true, 0, 0, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, sseHead)
			time.Sleep(silence)
			io.WriteString(c, firstChunk)
			time.Sleep(silence)
			io.WriteString(c, lastChunk+doneEvent)
		}, 0, 2 * silence},
		{"first byte limit, no head", true, 30 * time.Second, time.Minute, func(c net.Conn, _ *http.Request) {
			time.Sleep(silence)
		}, execution.CodeProviderTimeout, 30 * time.Second},
		{"first byte limit, head only", true, 30 * time.Second, 0, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, sseHead)
			time.Sleep(silence)
		}, execution.CodeProviderTimeout, 30 * time.Second},
		{"first byte limit, kept", true, 30 * time.Second, 0, func(c net.Conn, _ *http.Request) {
			time.Sleep(29 * time.Second)
			io.WriteString(c, sseHead+firstChunk)
			time.Sleep(silence)
			io.WriteString(c, doneEvent)
		}, 0, 29*time.Second + silence},
		{"idle limit, kept for long", true, 0, 10 * time.Second, func(c net.Conn, _ *http.Request) {
			time.Sleep(time.Minute)
			io.WriteString(c, sseHead)
			for range 100 {
				io.WriteString(c, firstChunk)
				time.Sleep(9 * time.Second)
			}
			io.WriteString(c, doneEvent)
		}, 0, time.Minute + 900*time.Second},
		{"idle limit, broken", true, 0, 10 * time.Second, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, sseHead+firstChunk)
			time.Sleep(7 * time.Second)
			io.WriteString(c, firstChunk)
			time.Sleep(silence)
		}, execution.CodeProviderTimeout, 17 * time.Second},
		{"unary, first byte limit, no head", false, 30 * time.Second, time.Minute, func(c net.Conn, _ *http.Request) {
			time.Sleep(silence)
		}, execution.CodeProviderTimeout, 30 * time.Second},
		{"unary, first byte limit, head only", false, 30 * time.Second, 0, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n")
			time.Sleep(silence)
		}, execution.CodeProviderTimeout, 30 * time.Second},
		{"unary, idle limit, broken", false, 30 * time.Second, 10 * time.Second, func(c net.Conn, _ *http.Request) {
			time.Sleep(29 * time.Second)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{")
			time.Sleep(silence)
		}, execution.CodeProviderTimeout, 39 * time.Second},
		{"unary, limits kept", false, 30 * time.Second, 10 * time.Second, func(c net.Conn, _ *http.Request) {
			time.Sleep(29 * time.Second)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{")
			time.Sleep(9 * time.Second)
			io.WriteString(c, "}")
		}, 0, 38 * time.Second},
		{"first byte limit, comments only", true, 30 * time.Second, 10 * time.Second, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, sseHead)
			comments(c, 40)
		}, execution.CodeProviderTimeout, 30 * time.Second},
		{"idle limit, comments only", true, 0, 10 * time.Second, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, sseHead+firstChunk)
			comments(c, 40)
		}, execution.CodeProviderTimeout, 10 * time.Second},
		{"idle limit, comments between", true, 0, 10 * time.Second, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, sseHead)
			for range 3 {
				comments(c, 9)
				io.WriteString(c, firstChunk)
			}
			io.WriteString(c, doneEvent)
		}, 0, 27 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := pipeProvider(t, tt.script)
				r := chatRun(tt.stream)
				r.req().FirstByteTimeoutMs = uint32(tt.first.Milliseconds())
				r.req().IdleTimeoutMs = uint32(tt.idle.Milliseconds())
				begin := time.Now()
				done := serveAsync(a, r, t.Context())
				<-r.ended
				took := time.Since(begin)
				<-done
				end := r.terminal(t)
				if end.Code != tt.code || tt.code == 0 && end.Outcome != execution.Completed {
					t.Errorf("ended as %+v, want %s", end, tt.code)
				}
				if took != tt.after {
					t.Errorf("ended after %s, want %s", took, tt.after)
				}
				a.closeIdle()
				time.Sleep(time.Hour) // the provider's script ends, too
			})
		})
	}
}

// comments keeps a connection for so many seconds.
func comments(c net.Conn, seconds int) {
	for range seconds {
		io.WriteString(c, ": processing\n\n")
		time.Sleep(time.Second)
	}
}

// TestSlowClientIsNotIdlenessBetweenComments: nor is the time in which the client takes no comments.
func TestSlowClientIsNotIdlenessBetweenComments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := make(chan struct{})
		a := pipeProvider(t, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, sseHead+firstChunk)
			time.Sleep(5 * time.Second)
			io.WriteString(c, ": processing\n\n")
			close(sent)
			time.Sleep(time.Minute + 4*time.Second)
			io.WriteString(c, lastChunk+doneEvent)
		})
		r := chatRun(true)
		r.req().IdleTimeoutMs = 10_000
		r.gate = make(chan struct{}, 1)
		r.gate <- struct{}{}
		done := serveAsync(a, r, t.Context())
		<-sent
		time.Sleep(time.Minute)
		close(r.gate)
		<-done
		if end := r.terminal(t); end.Outcome != execution.Completed {
			t.Errorf("ended as %+v", end)
		}
		a.closeIdle()
	})
}

// TestSlowClientIsNotIdleness: the provider has sent all there is to read, the client takes none of it.
func TestSlowClientIsNotIdleness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pipeProvider(t, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, sseHead+firstChunk)
			io.WriteString(c, lastChunk+doneEvent)
		})
		r := chatRun(true)
		r.req().IdleTimeoutMs = 1000
		r.gate = make(chan struct{})
		done := serveAsync(a, r, t.Context())
		time.Sleep(time.Minute)
		close(r.gate)
		<-done
		if end := r.terminal(t); end.Outcome != execution.Completed {
			t.Errorf("ended as %+v", end)
		}
		a.closeIdle()
	})
}
