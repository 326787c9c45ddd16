package tunnel

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"iop/tunnel/wire"
)

// timedLog keeps each line of at least the level info, with the time since it began.
type timedLog struct {
	slog.Handler
	began time.Time

	mu    sync.Mutex
	lines []string        // guarded by mu
	at    []time.Duration // guarded by mu
}

func newTimedLog() *timedLog { return &timedLog{Handler: slog.DiscardHandler, began: time.Now()} }

func (l *timedLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (l *timedLog) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		b.WriteString(" " + a.String())
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines, l.at = append(l.lines, b.String()), append(l.at, time.Since(l.began))
	return nil
}

// with returns when the lines that begin so were logged, and the first of them.
func (l *timedLog) with(begin string) (at []time.Duration, first string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, line := range l.lines {
		if strings.HasPrefix(line, begin) {
			if at = append(at, l.at[i]); first == "" {
				first = line
			}
		}
	}
	return at, first
}

// listenTo runs a Supervisor with that network for a while, in virtual time.
func listenTo(t *testing.T, d time.Duration, dial func(context.Context, string, string) (net.Conn, error)) *timedLog {
	t.Helper()
	l := newTimedLog()
	sup, err := NewSupervisor(SupervisorConfig{
		URL: "ws://edge.test", Node: "n", Handler: handlerFunc(echo), Logger: slog.New(l), Describe: func() *NodeInfo { return nil },
		Token: func() (string, error) { return "njt-secret", nil }, DialContext: dial,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan struct{})
	go func() { defer close(ran); _ = sup.Run(ctx) }()
	time.Sleep(d)
	stop()
	<-ran
	return l
}

// TestDroppedPacketsAreSaid: a port that drops what is sent to it has a line within 5 s, each fault is said when it begins, and
// then ever more seldom.
func TestDroppedPacketsAreSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listenTo(t, 40*time.Minute, func(context.Context, string, string) (net.Conn, error) {
			time.Sleep(dialTime) // a net.Dialer's timeout
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: context.DeadlineExceeded}
		})
		time.Sleep(dialTime) // the last dial ends by itself
		if at, _ := l.with("tunnel: connecting edge=ws://edge.test/tunnel/v1"); len(at) != 1 || at[0] != 0 {
			t.Errorf("began at %v: %q", at, l.lines)
		}
		for begin, first := range map[string]time.Duration{"tunnel: no answer yet": slowDial, "tunnel: not connected": dialTime} {
			at, line := l.with(begin)
			// Once, then after 1, 2, 4, 8 and 15 minutes: six lines in 40 minutes, each late by one dial and one pause at most.
			if len(at) < 5 || len(at) > 6 || at[0] != first || at[1]-at[0] < time.Minute || at[1]-at[0] > 2*time.Minute {
				t.Errorf("%s at %v", begin, at)
			}
			if !strings.Contains(line, "nothing answers at edge.test:80") || !strings.Contains(line, "allow TCP to edge.test:80") {
				t.Errorf("%q", line)
			}
		}
		if at, _ := l.with("tunnel: no answer yet"); at[0] > 5*time.Second {
			t.Errorf("said after %v", at[0])
		}
	})
}

// TestNoReplacementIsSaidCalmly: a Node whose Edge restarts logs the fault once with what to do, and that it is not connected when
// it stops trying to replace the session.
func TestNoReplacementIsSaidCalmly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTimedLog()
		n := newNodeRig(t, echo, func(cfg *SupervisorConfig) { cfg.Logger = slog.New(l) })
		p := n.online(1)
		_ = n.net.Close() // nobody listens any more
		p.send(wire.TypeDrain, 0, &wire.Drain{TryForMs: 90_000, DeadlineMs: 3_600_000})
		time.Sleep(3 * time.Minute)
		at, first := l.with("tunnel: no replacement yet")
		if len(at) != 2 || at[1]-at[0] < time.Minute {
			t.Errorf("said at %v", at)
		}
		if !strings.Contains(first, " found=") || !strings.Contains(first, " do=") {
			t.Errorf("%q", first)
		}
		if at, _ := l.with("tunnel: not connected"); len(at) != 2 || at[0] < 90*time.Second || at[0] > 95*time.Second {
			t.Errorf("not connected: said at %v", at)
		}
		p.close()
		n.close()
	})
}

// TestChangedFaultsAreSaidAtOnce: a fault that takes the place of another one is news.
func TestChangedFaultsAreSaidAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newPipeNet()
		status := make(chan int, 1)
		status <- http.StatusNotFound
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			now := <-status
			status <- now
			w.WriteHeader(now)
		})}
		served := make(chan struct{})
		go func() { defer close(served); _ = srv.Serve(network) }()
		time.AfterFunc(40*time.Second, func() { <-status; status <- http.StatusBadGateway })
		l := listenTo(t, 100*time.Second, network.dial)
		if at, line := l.with("tunnel: not connected"); len(at) != 2 || at[1] < 40*time.Second || !strings.Contains(line, "is not an Edge") || !strings.Contains(line, "do=") {
			t.Errorf("%v: %q", at, line)
		}
		for _, line := range l.lines {
			if strings.Contains(line, "njt-secret") {
				t.Errorf("the token: %q", line)
			}
		}
		_ = srv.Close()
		_ = network.Close()
		<-served
	})
}

// TestForeignRefusalsAreNoEdges: a server that speaks OpenAI's errors has not refused this Node.
func TestForeignRefusalsAreNoEdges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newPipeNet()
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error":{"message":"no key","type":"invalid_request_error","code":"invalid_api_key"}}`))
		})}
		served := make(chan struct{})
		go func() { defer close(served); _ = srv.Serve(network) }()
		l := listenTo(t, time.Second, network.dial)
		if _, line := l.with("tunnel: not connected"); !strings.Contains(line, "answered 401 and is not an Edge") {
			t.Errorf("%q", l.lines)
		}
		_ = srv.Close()
		_ = network.Close()
		<-served
	})
}
