package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// answer is one request under way, as its client sees it.
type answer struct {
	done chan struct{} // closed when the answer has ended, however it did

	mu       sync.Mutex
	status   int         // 0 before the head
	header   http.Header // nil before the head
	events   []string    // what stood behind `data:`
	arrived  []time.Time // of each event
	comments []time.Time
	body     strings.Builder
	err      error // why it broke off; nil at a clean end
}

// ask sends a request and reads its answer until it ends or ctx does. It returns at once.
func (s *stack) ask(ctx context.Context, client *http.Client, path string, body any) *answer {
	s.t.Helper()
	a := &answer{done: make(chan struct{})}
	req := s.request("POST", path, body, nil).WithContext(ctx)
	go func() {
		defer close(a.done)
		res, err := client.Do(req)
		if err != nil {
			a.note(func() { a.err = err })
			return
		}
		defer res.Body.Close()
		a.note(func() { a.status, a.header = res.StatusCode, res.Header })
		a.read(res.Body)
	}()
	return a
}

func (a *answer) note(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

func (a *answer) read(body io.Reader) {
	lines := bufio.NewReaderSize(body, 64<<10)
	for {
		line, err := lines.ReadString('\n')
		a.note(func() {
			a.body.WriteString(line)
			text := strings.TrimRight(line, "\r\n")
			if data, ok := strings.CutPrefix(text, "data:"); ok {
				a.events, a.arrived = append(a.events, strings.TrimPrefix(data, " ")), append(a.arrived, time.Now())
			} else if strings.HasPrefix(text, ":") {
				a.comments = append(a.comments, time.Now())
			}
			if err != nil && !errors.Is(err, io.EOF) {
				a.err = err
			}
		})
		if err != nil {
			return
		}
	}
}

// count is how many events have come.
func (a *answer) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.events)
}

// reaches waits until n events have come.
func (a *answer) reaches(t *testing.T, n int, within time.Duration) {
	t.Helper()
	eventually(t, within, fmt.Sprintf("%d events", n), func() bool {
		select {
		case <-a.done:
			if a.count() < n {
				t.Fatalf("the answer ended after %d events, not %d: %s", a.count(), n, a)
			}
		default:
		}
		return a.count() >= n
	})
}

// end waits for the end of the answer.
func (a *answer) end(t *testing.T, within time.Duration) *answer {
	t.Helper()
	select {
	case <-a.done:
	case <-time.After(within):
		t.Fatalf("no end in %s: %s", within, a)
	}
	return a
}

func (a *answer) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Sprintf("status %d, %d events, %d comments, error %v, body %q", a.status, len(a.events), len(a.comments), a.err, tail(a.body.String(), 600))
}

// finished says whether the text claims to be whole: a finish_reason that is not null, or [DONE].
func finished(events []string) bool {
	for _, e := range events {
		var chunk struct {
			Choices []struct {
				FinishReason any `json:"finish_reason"`
			}
		}
		if e == "[DONE]" {
			return true
		}
		if json.Unmarshal([]byte(e), &chunk) == nil {
			for _, c := range chunk.Choices {
				if c.FinishReason != nil {
					return true
				}
			}
		}
	}
	return false
}

// whole says what is wrong with an event stream that should have ended well.
func (a *answer) whole() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := len(a.events)
	switch {
	case a.err != nil:
		return fmt.Errorf("broke off: %w", a.err)
	case a.status != http.StatusOK:
		return fmt.Errorf("status %d: %s", a.status, tail(a.body.String(), 300))
	case n == 0 || a.events[n-1] != "[DONE]" || !finished(a.events[:n-1]):
		return fmt.Errorf("%d events, the last %q", n, tail(strings.Join(a.events[max(0, n-2):], "\n"), 600))
	}
	return nil
}

// errorObject is the error of the OpenAI family, as a body or as an event.
type errorObject struct {
	Error *struct {
		Message, Type string
		Code          any
	}
}

// broken says what is wrong with an event stream that should have ended in an error of the protocol.
func (a *answer) broken() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := len(a.events)
	switch {
	case a.err != nil:
		return fmt.Errorf("broke off without a word: %w", a.err)
	case a.status != http.StatusOK || n == 0:
		return fmt.Errorf("status %d, %d events: %s", a.status, n, tail(a.body.String(), 300))
	case finished(a.events):
		return fmt.Errorf("it claims to be whole: %q", tail(a.body.String(), 800))
	}
	var e errorObject
	if err := json.Unmarshal([]byte(a.events[n-1]), &e); err != nil || e.Error == nil || e.Error.Message == "" || e.Error.Type == "" {
		return fmt.Errorf("the last event is no error: %q", a.events[n-1])
	}
	for _, event := range a.events[:n-1] {
		if json.Unmarshal([]byte(event), &e) != nil || strings.HasPrefix(event, `{"error"`) {
			return fmt.Errorf("before the end stands %q", event)
		}
	}
	return nil
}

// caller is a client with one connection of its own, which it can leave in different ways.
type caller struct {
	*http.Client
	context.Context
	leave func()
}

// How a client can go.
var leavings = []string{"FIN", "RST", "HTTP/2 reset"}

func newCaller(t *testing.T, way string) *caller {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var conn *net.TCPConn // set before the request is sent, read after it was seen elsewhere
	var mu sync.Mutex
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err == nil {
			mu.Lock()
			conn = c.(*net.TCPConn)
			mu.Unlock()
		}
		return c, err
	}}
	if way == "HTTP/2 reset" {
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	c := &caller{Client: &http.Client{Transport: transport}, Context: ctx}
	c.leave = func() {
		mu.Lock()
		defer mu.Unlock()
		switch way {
		case "FIN":
			_ = conn.CloseWrite()
		case "RST":
			_ = conn.SetLinger(0)
			_ = conn.Close()
		default:
			cancel()
		}
	}
	t.Cleanup(func() { cancel(); transport.CloseIdleConnections() })
	return c
}

// operator reads from the admin API.
func (s *stack) operator(path string, v any) {
	s.t.Helper()
	req, err := http.NewRequest("GET", s.admin+"/admin/v1"+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.adminToken())
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(v); err != nil || res.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %s, %v", path, res.Status, err)
	}
}

// nodeState is a Node as the operator sees it.
type nodeState struct {
	Node, State string
	LastCause   string `json:"last_cause"`
	Sessions    []struct {
		Generation uint64
		Current    bool
		State      string
		OpenRuns   int    `json:"open_runs"`
		JoinToken  string `json:"join_token"`
		Providers  []struct {
			ID, Health string
			InFlight   int `json:"in_flight"`
			Models     []string
		}
	}
}

// generation is that of the current session; 0 without one.
func (n nodeState) generation() uint64 {
	for _, session := range n.Sessions {
		if session.Current {
			return session.Generation
		}
	}
	return 0
}

// node returns a Node's state; the zero value if the Edge has not heard of it.
func (s *stack) node(name string) nodeState {
	s.t.Helper()
	var list struct{ Data []nodeState }
	s.operator("/nodes", &list)
	for _, n := range list.Data {
		if n.Node == name {
			return n
		}
	}
	return nodeState{}
}

// online waits until the Node is, with a model, and returns its generation.
func (s *stack) online(name string, within time.Duration) uint64 {
	s.t.Helper()
	var n nodeState
	eventually(s.t, within, name+" is online", func() bool {
		n = s.node(name)
		return n.State == "online" && len(s.models()) > 0
	})
	return n.generation()
}

// runState is a run as the operator sees it.
type runState struct {
	ID, Model, State, Phase, Outcome, Code, Node string
	Status, Attempts                             int
	Generation                                   uint64
	Usage                                        *struct {
		Input  int64 `json:"input_tokens"`
		Output int64 `json:"output_tokens"`
		Cached int64 `json:"cached_tokens"`
	}
}

func (s *stack) runs() []runState {
	s.t.Helper()
	var list struct{ Data []runState }
	s.operator("/runs?limit=1000", &list)
	return list.Data
}

// run returns one run; it must be there.
func (s *stack) run(id string) runState {
	s.t.Helper()
	for _, r := range s.runs() {
		if r.ID == id {
			return r
		}
	}
	s.t.Fatalf("no run %q", id)
	return runState{}
}

// quiet waits until nothing runs, and nothing is held.
func (s *stack) quiet() {
	s.t.Helper()
	s.settled()
	eventually(s.t, patience, "no place is taken", func() bool { return s.metric("iop_places_taken") == 0 })
}

// outcomes are the requests that have ended, by outcome.
func (s *stack) outcomes() map[string]float64 {
	s.t.Helper()
	res, err := http.Get(s.admin + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	sums := map[string]float64{}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), "iop_requests_total{")
		if !ok {
			continue
		}
		_, rest, _ = strings.Cut(rest, `outcome="`)
		outcome, _, _ := strings.Cut(rest, `"`)
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			s.t.Fatalf("%q: %v", lines.Text(), err)
		}
		sums[outcome] += v
	}
	return sums
}

// noFalseAlarm fails if a session was taken for dead, or a frame broke the contract.
func (s *stack) noFalseAlarm() {
	s.t.Helper()
	for _, name := range []string{"iop_heartbeat_timeouts_total", "iop_protocol_errors_total", "iop_stream_errors_total", "iop_lost_runs_total", "iop_panics_total"} {
		if n := s.metric(name); n != 0 {
			s.t.Errorf("%s is %v", name, n)
		}
	}
	for _, p := range append([]*process{s.edge}, s.nodes...) {
		if strings.Contains(p.text(), "heartbeat_timeout") {
			s.t.Errorf("%s speaks of a heartbeat_timeout", p.name)
		}
	}
}

// simStats are the simulator's counts of inference requests.
type simStats struct {
	Started, Reading, Queued, Active, Finished, Cancelled, Rejected int64
}

func (s *simulator) stats(t *testing.T) (st simStats) {
	t.Helper()
	s.control(t, "GET", "/sim/stats", nil, &st)
	return st
}

// active waits until n inference requests run in the simulator.
func (s *simulator) active(t *testing.T, n int64) {
	t.Helper()
	eventually(t, patience, fmt.Sprintf("%d requests are with the provider", n), func() bool { return s.stats(t).Active == n })
}

// cpu is the processor time that the process has used.
func (p *process) cpu() time.Duration {
	p.t.Helper()
	data, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid()) + "/stat")
	if err != nil {
		p.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	ticks := 0
	for _, f := range fields[11:13] { // utime, stime; a tick is 10 ms
		n, err := strconv.Atoi(f)
		if err != nil {
			p.t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// memory is a line of the process's status, such as VmHWM, in bytes.
func (p *process) memory(line string) int64 {
	p.t.Helper()
	data, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid()) + "/status")
	if err != nil {
		p.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), line+":")
	rest, _, _ = strings.Cut(rest, "kB")
	n, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
	if err != nil {
		p.t.Fatalf("%s: %v", line, err)
	}
	return n << 10
}
