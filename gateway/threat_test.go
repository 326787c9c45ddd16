package gateway_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"iop/gateway"
	"iop/state"
)

// TestThreat48CompressedBody: a body that would have to be unpacked first is refused unread.
//
// Seen to fail with the look at Content-Encoding taken out of readBody: the answer was 400.
func TestThreat48CompressedBody(t *testing.T) {
	e := newEdge(t, nil)
	for _, encoding := range []string{"gzip", "br", "identity, gzip"} {
		req := e.request(http.MethodPost, chat, "\x1f\x8b\x08")
		req.Header.Set("Content-Encoding", encoding)
		resp := e.do(req)
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnsupportedMediaType {
			t.Errorf("%s: %d", encoding, resp.StatusCode)
		}
	}
}

// TestThreat50SlowHead: a connection that does not finish its head is closed after ten seconds, also one that begins as
// HTTP/2 in the clear.
//
// Seen to fail with ReadHeaderTimeout taken out of httpServer: HTTP/1.1 was still open after a minute. (The preface of
// HTTP/2 has a limit of net/http's own as well.)
func TestThreat50SlowHead(t *testing.T) {
	for name, begin := range map[string]string{
		"HTTP/1.1": "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n",
		"HTTP/2":   "PRI * HTTP/2.0\r\n\r\nSM",
	} {
		store, err := state.Open(t.Context(), "sqlite::memory:")
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		synctest.Test(t, func(t *testing.T) {
			public, private := newPipes(), newPipes()
			server, err := gateway.NewOn(gateway.Config{Store: store, Listen: "-", AdminListen: "-", Logger: slog.New(slog.DiscardHandler)}, public, private)
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() { defer close(done); _ = server.Run(ctx) }()
			conn, err := public.dial(ctx, "", "")
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			go func() { _, _ = io.WriteString(conn, begin) }()
			_ = conn.SetReadDeadline(began.Add(time.Minute))
			if _, err := io.Copy(io.Discard, conn); err != nil {
				t.Errorf("%s: after %v: %v", name, time.Since(began), err)
			}
			conn.Close()
			stop()
			<-done
		})
	}
}
