package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// managedLoad is callers that go on and on, beside streams that last: neither may notice a rotation.
type managedLoad struct {
	*managed
	stop    context.CancelFunc
	all     sync.WaitGroup
	streams []*answer
	ok      atomic.Int64

	mu  sync.Mutex
	bad []string // guarded by mu
}

// newManagedLoad starts callers of short runs, half of them streams, and long streams of that many tokens, 10 ms apart.
func newManagedLoad(m *managed, callers, streams, tokens int) *managedLoad {
	ctx, stop := context.WithCancel(context.Background())
	l := &managedLoad{managed: m, stop: stop}
	for range streams {
		l.streams = append(l.streams, m.askAs(context.Background(), m.key, "/v1/chat/completions", chat("chat", fmt.Sprintf("tokens=%d,itl=10ms", tokens), true), nil))
	}
	for i := range callers {
		l.all.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				a := m.askAs(context.Background(), m.key, "/v1/chat/completions", chat("chat", "tokens=4,itl=2ms", n%2 == 0), nil)
				<-a.done
				err := a.err
				if err == nil && n%2 == 0 {
					err = a.whole()
				}
				if err == nil && a.status == http.StatusOK {
					l.ok.Add(1)
					continue
				}
				l.mu.Lock()
				l.bad = append(l.bad, a.String())
				l.mu.Unlock()
			}
		})
	}
	for _, a := range l.streams {
		a.reaches(m.t, 3, 30*time.Second)
	}
	return l
}

// goesOn waits until callers have got some more answers.
func (l *managedLoad) goesOn(t *testing.T) {
	t.Helper()
	before := l.ok.Load()
	eventually(t, patience, "runs go on", func() bool { return l.ok.Load() >= before+20 })
}

// end fails if a run failed or a stream was cut.
func (l *managedLoad) end(t *testing.T, within time.Duration) {
	t.Helper()
	for i, a := range l.streams {
		if err := a.end(t, within).whole(); err != nil {
			t.Errorf("stream %d: %v", i, err)
		}
	}
	l.stop()
	l.all.Wait()
	if len(l.bad) > 0 {
		t.Errorf("%d of %d runs failed, the first: %s", len(l.bad), l.ok.Load()+int64(len(l.bad)), l.bad[0])
	}
	t.Logf("%d runs and %d streams, no failure among them: %v", l.ok.Load(), len(l.streams), len(l.bad) == 0)
}

// renewed waits until the Node's session is a later one than that of before.
func (m *managed) renewed(t *testing.T, node string, before uint64) uint64 {
	t.Helper()
	var now uint64
	eventually(t, patience, node+" has a new session", func() bool { now = m.node(node).generation(); return now > before })
	return now
}

// TestManagedRotation changes certificates of Node and Edge, the authority, and the master key under load.
func TestManagedRotation(t *testing.T) {
	t.Parallel()
	m := newManaged(t, managedRoutes())
	node := m.join("gpu-1", "openai")
	l := newManagedLoad(m, 6, 4, 1500)
	generation := m.node("gpu-1").generation()

	m.issue(m.ca, "node", "gpu-1")
	node.signal(syscall.SIGHUP)
	generation = m.renewed(t, "gpu-1", generation)
	l.goesOn(t)
	m.issue(m.ca, "edge", "main")
	m.edge.signal(syscall.SIGHUP)
	generation = m.renewed(t, "gpu-1", generation)
	l.goesOn(t)

	iop(t, nil, "master-key", "add", m.path("master-key"))
	m.edge.signal(syscall.SIGHUP)
	eventually(t, patience, "the slot is sealed under the new master key", func() bool {
		out, _, err := tryIOP(t, m.env, "master-key", "rewrap", "--master-key-file", m.path("master-key"))
		return err == nil && strings.Contains(out, "resealed")
	})
	l.goesOn(t)
	m.rotateAuthority(t, l, node, generation)
	l.end(t, 60*time.Second)
	m.quiet()
	m.noFalseAlarm()
}

// rotateAuthority brings a second authority in beside the first, has everyone take a certificate of it, and lets the first
// leave.
func (m *managed) rotateAuthority(t *testing.T, l *managedLoad, node *process, generation uint64) {
	both := func() {
		m.edge.signal(syscall.SIGHUP)
		node.signal(syscall.SIGHUP)
	}
	roots := func(n int) {
		eventually(t, patience, fmt.Sprintf("the Edge believes %d authorities", n), func() bool {
			var is struct{ Roots int }
			m.operator("/identity", &is)
			return is.Roots == n
		})
	}
	second := m.path("ca-2")
	m.initCA(second)
	m.writeBundle(m.ca, second)
	both()
	roots(2)
	node.line(`"roots":2`, patience)
	l.goesOn(t)
	m.issue(second, "edge", "main")
	m.edge.signal(syscall.SIGHUP)
	generation = m.renewed(t, "gpu-1", generation)
	m.issue(second, "node", "gpu-1")
	node.signal(syscall.SIGHUP)
	generation = m.renewed(t, "gpu-1", generation)
	l.goesOn(t)
	// What still runs on sessions of the old certificate has to end first: the last step cuts it.
	for i, a := range l.streams {
		if err := a.end(t, 60*time.Second).whole(); err != nil {
			t.Errorf("stream %d: %v", i, err)
		}
	}
	eventually(t, patience, "the drained sessions are gone", func() bool { return len(m.node("gpu-1").Sessions) == 1 })
	m.writeBundle(second)
	both()
	roots(1)
	l.goesOn(t)
	if now := m.node("gpu-1").generation(); now != generation {
		t.Errorf("the old authority's end cost the session: %d, then %d", generation, now)
	}
}

// keyed is a provider that takes several keys, and notes which it got runs with. The Node's looks at it, which have none,
// it refuses as a hosted service does, and does not count.
type keyed struct {
	*httptest.Server
	mu   sync.Mutex
	good map[string]bool // guarded by mu
	seen []string        // guarded by mu
}

func newKeyed(t *testing.T, keys ...string) *keyed {
	k := &keyed{good: map[string]bool{}}
	for _, key := range keys {
		k.good[key] = true
	}
	k.Server = httptest.NewServer(k)
	t.Cleanup(k.Close)
	return k
}

func (k *keyed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	k.mu.Lock()
	good := k.good[key]
	if r.Method == http.MethodPost {
		k.seen = append(k.seen, key)
	}
	k.mu.Unlock()
	if !good {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for range 20 {
		fmt.Fprint(w, `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"x"}}]}`+"\n\n")
		w.(http.Flusher).Flush()
		time.Sleep(5 * time.Millisecond)
	}
	fmt.Fprint(w, `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
}

// after returns what was seen from the n-th request on, and how many there were.
func (k *keyed) after(n int) (seen []string, count int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]string(nil), k.seen[n:]...), len(k.seen)
}

// looked asks for the models, without a key.
func (k *keyed) looked(t *testing.T) {
	t.Helper()
	res, err := http.Get(k.URL + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a key the models are answered with %s", res.Status)
	}
}

// TestManagedSlotRotation gives a slot another value under load: no run fails, and a run that begins after the answer has
// the new value.
//
// Seen to fail with keys of all requests noted, those of the Node's looks among them: they have none.
func TestManagedSlotRotation(t *testing.T) {
	t.Parallel()
	const next = "sk-provider-two-Xe41TnVb7"
	k := newKeyed(t, firstValue, next)
	m := newManaged(t, managedRoutes())
	m.change("PUT", "/profiles/keyed", map[string]any{"header": "authorization-bearer", "base_urls": []string{k.URL}}, nil)
	m.change("PUT", "/slots/openai", map[string]string{"profile": "keyed", "value": firstValue}, nil)
	m.allow("gpu-1", "openai")
	m.launch("gpu-1", "--provider", fmt.Sprintf("k:openai=%s,capacity=64,models=sim-small,slots=openai", k.URL))
	eventually(t, patience, "gpu-1 is online", func() bool { return m.node("gpu-1").State == "online" })
	var bad, good atomic.Int64
	load := func() (stop func()) { // stop waits for the runs under way
		var all sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for range 8 {
			all.Go(func() {
				for ctx.Err() == nil {
					a := m.askAs(context.Background(), m.key, "/v1/chat/completions", chat("chat", "", true), nil)
					<-a.done
					if err := a.whole(); err != nil {
						t.Errorf("%v", err)
						bad.Add(1)
						return
					}
					good.Add(1)
				}
			})
		}
		return func() { cancel(); all.Wait() }
	}
	stop := load()
	reach := func(n int64) {
		from := good.Load()
		eventually(t, patience, "runs go on", func() bool { return bad.Load() > 0 || good.Load() >= from+n })
	}
	reach(20)
	var change slotChange
	m.change("POST", "/slots/openai/rotate", map[string]string{"value": next}, &change)
	began := time.Now()
	if change.State == "pending" && (change.Until == nil || change.Until.After(began.Add(2*time.Minute))) {
		t.Errorf("%+v", change)
	}
	if change.Runs != 0 {
		t.Errorf("a rotation cancelled %d runs", change.Runs)
	}
	stopNew := load()
	stop() // whatever was on its way has arrived
	_, n := k.after(0)
	k.looked(t) // as the Node does every 2 s
	reach(20)
	seen, _ := k.after(n)
	for _, key := range seen {
		if key != next {
			t.Errorf("after the rotation a run has the key %q", key)
			break
		}
	}
	stopNew()
	t.Logf("%d runs over a rotation (%s), %d failed", good.Load(), change.State, bad.Load())
	m.quiet()
}
