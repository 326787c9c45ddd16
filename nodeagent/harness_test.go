package nodeagent

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"iop/execution"
	"iop/openai"
	"iop/tunnel"
	"iop/tunnel/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen; only a failing test waits that long.
const patience = 20 * time.Second

// cancelTime is how long what takes milliseconds, a cancel's way to the provider, may take on a machine that is busy. What
// else could end a run comes later.
const cancelTime = 10 * time.Second

// fakeRun is a run without a tunnel. Its fields are set before the run is served.
type fakeRun struct {
	open *wire.Open
	body []byte
	late bool            // the body has not arrived whole: Read brings it
	feed io.Reader       // with late, where Read reads from; default body
	gate chan struct{}   // or nil; each Write of body bytes takes one token or waits for the context
	ctx  context.Context // of the run, set by serve

	keeper *keeper // nil without a lease
	lease  []byte

	mu     sync.Mutex
	phases []execution.Phase
	head   *wire.Head
	out    bytes.Buffer
	writes []int // offsets in out where writes ended
	border []int // offsets in out at event borders
	ends   []execution.Terminal
	wrote  chan struct{} // one token for each Write
	ended  chan struct{} // closed by the first End
}

func newRun(op string, body string) *fakeRun {
	return &fakeRun{
		open: &wire.Open{
			RunId:      "run_test",
			BodyLength: uint64(len(body)),
			Kind: &wire.Open_ProviderTunnel{ProviderTunnel: &wire.ProviderTunnelRequest{
				Provider: "p", Model: "m", Operation: op,
				Headers: []*wire.Header{{Name: "content-type", Value: "application/json"}},
			}},
		},
		body: []byte(body), wrote: make(chan struct{}, 1<<16), ended: make(chan struct{}),
	}
}

// chatRun is a run of a chat completion; streaming ones ask for it.
func chatRun(stream bool) *fakeRun {
	r := newRun("chat.completions", `{"model":"m","messages":[]}`)
	r.req().Stream = stream
	return r
}

func (r *fakeRun) req() *wire.ProviderTunnelRequest { return r.open.GetProviderTunnel() }

func (r *fakeRun) Open() *wire.Open { return r.open }

func (r *fakeRun) Body() ([]byte, bool) {
	if r.late {
		return nil, false
	}
	return r.body, true
}

func (r *fakeRun) Read(p []byte) (int, error) {
	if r.feed == nil {
		r.feed = bytes.NewReader(r.body)
	}
	return r.feed.Read(p)
}

func (r *fakeRun) Keeper() tunnel.Keeper {
	if r.keeper == nil {
		return nil
	}
	return r.keeper
}

func (r *fakeRun) Lease(context.Context) ([]byte, error) {
	if r.lease == nil {
		return nil, errors.New("no lease")
	}
	return r.lease, nil
}

func (r *fakeRun) Phase(p execution.Phase) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phases = append(r.phases, p)
}

func (r *fakeRun) Head(h *wire.Head) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.head = h
	return nil
}

func (r *fakeRun) Write(p []byte, border bool) error {
	if r.gate != nil {
		select {
		case <-r.gate:
		case <-r.ctx.Done():
			return context.Cause(r.ctx)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out.Write(p)
	r.writes = append(r.writes, r.out.Len())
	if border {
		r.border = append(r.border, r.out.Len())
	}
	select {
	case r.wrote <- struct{}{}:
	default:
	}
	return nil
}

// Events takes events as Write takes bytes.
func (r *fakeRun) Events(p []byte) error { return r.Write(p, true) }

func (r *fakeRun) End(t execution.Terminal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ends = append(r.ends, t); len(r.ends) == 1 {
		close(r.ended)
	}
}

// header returns a header of the head that was sent, empty if it has none.
func (r *fakeRun) header(name string) string {
	for _, h := range r.head.GetHeaders() {
		if h.Name == name {
			return h.Value
		}
	}
	return ""
}

// awaitWrite waits until a piece of the answer was sent.
func (r *fakeRun) awaitWrite(t *testing.T) {
	t.Helper()
	select {
	case <-r.wrote:
	case <-time.After(patience):
		t.Fatal("nothing was sent to the Edge")
	}
}

// testAgent is an agent without an Edge: its runs are served by hand.
func testAgent(t testing.TB, specs ...ProviderSpec) *Agent {
	t.Helper()
	providers, err := makeProviders(specs)
	if err != nil {
		t.Fatal(err)
	}
	a := &Agent{log: slog.New(slog.DiscardHandler), refresh: func() {}}
	a.providers.Store(&providers)
	t.Cleanup(a.closeIdle)
	return a
}

func (a *Agent) only() *provider { return (*a.providers.Load())["p"] }

// serveNow serves a run to its end and returns its one terminal.
func serveNow(t *testing.T, a *Agent, r *fakeRun) execution.Terminal {
	t.Helper()
	return serveUntil(t, a, r, context.Background())
}

func serveUntil(t *testing.T, a *Agent, r *fakeRun, ctx context.Context) execution.Terminal {
	t.Helper()
	<-serveAsync(a, r, ctx)
	return r.terminal(t)
}

// serveAsync serves a run on a goroutine of its own; the channel is closed when ServeRun has returned.
func serveAsync(a *Agent, r *fakeRun, ctx context.Context) <-chan struct{} {
	r.ctx = ctx
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.serve(ctx, r)
	}()
	return done
}

func (r *fakeRun) terminal(t *testing.T) execution.Terminal {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.ends) != 1 {
		t.Fatalf("the run has %d terminals, want 1", len(r.ends))
	}
	return r.ends[0]
}

// await waits for a channel to be closed.
func await(t *testing.T, what string, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(patience):
		t.Fatal("still waiting for " + what)
	}
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			t.Fatal("still waiting for " + what)
		}
		time.Sleep(time.Millisecond)
	}
}

// httpProvider is a provider served by net/http. It has none of the paths that the Node looks for: what h gets are runs.
func httpProvider(t *testing.T, h http.HandlerFunc) ProviderSpec {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && r.ContentLength == int64(len(probeBody)) {
			http.NotFound(w, r)
			return
		}
		h(w, r)
	}))
	t.Cleanup(s.Close)
	return ProviderSpec{ID: "p", URL: s.URL, Capacity: 64}
}

// rawProvider is a provider that answers each request with the bytes that script writes; conn is closed after it.
func rawProvider(t *testing.T, script func(conn net.Conn, r *http.Request)) ProviderSpec {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { serveConn(conn, script) })
		}
	})
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { l.Close() })
	return ProviderSpec{ID: "p", URL: "http://" + l.Addr().String(), Capacity: 64}
}

// serveConn reads one request and lets script answer it.
func serveConn(conn net.Conn, script func(net.Conn, *http.Request)) {
	defer conn.Close()
	req, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return
	}
	io.Copy(io.Discard, req.Body)
	script(conn, req)
}

// respond is a script that writes one answer.
func respond(answer string) func(net.Conn, *http.Request) {
	return func(conn net.Conn, _ *http.Request) { io.WriteString(conn, answer) }
}

// cancellable is the context of a run, and what ends it as the tunnel does.
func cancellable() (context.Context, func(execution.Code)) {
	ctx, cancel := context.WithCancelCause(context.Background())
	return ctx, func(code execution.Code) { cancel(&tunnel.CancelError{Code: code, Reason: "by the test"}) }
}

// models makes a list of the named models.
func models(names ...string) string {
	list := make([]openai.Model, len(names))
	for i, n := range names {
		list[i].ID = n
	}
	return string(openai.AppendModelList(nil, list))
}

const (
	unaryAnswer = `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}`
	firstChunk  = `data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":"你好"},"finish_reason":null}]}` + "\n\n"
	lastChunk   = `data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	usageChunk  = `data: {"id":"x","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}` + "\n\n"
	doneEvent   = "data: [DONE]\n\n"
	sseHead     = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nConnection: close\r\n\r\n"
)

func hdr(name, value string) *wire.Header { return &wire.Header{Name: name, Value: value} }

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
