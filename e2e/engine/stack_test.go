//go:build engine

package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// iopBinary is the iop that every test runs, built once.
var iopBinary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "iop-engine-")
		if err != nil {
			fmt.Fprintln(os.Stderr, "engine:", err)
			return 1
		}
		defer os.RemoveAll(dir)
		iopBinary = filepath.Join(dir, "iop")
		if out, err := exec.Command("go", "build", "-o", iopBinary, "../../cmd/iop").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "engine: build iop: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// process is a running command whose output is kept. Nothing is lost between a look at the lines and the wait for more.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has exited and its output is read

	mu    sync.Mutex
	lines []string      // guarded by mu
	grown chan struct{} // guarded by mu; closed, and replaced, at each new line
}

func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(name, args...), done: make(chan struct{}), grown: make(chan struct{})}
	p.cmd.Env = cleanEnv()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	err = p.cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		t.Fatalf("%s: %v", name, err)
	}
	go p.read(r)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("---- the last lines of %s\n%s", filepath.Base(name), strings.Join(p.last(60), "\n"))
		}
	})
	return p
}

// cleanEnv is the environment without settings of IOP and of the engine, and without proxies.
func cleanEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return strings.HasPrefix(name, "IOP_") || strings.HasPrefix(name, "LLAMA_") || strings.HasSuffix(strings.ToLower(name), "_proxy")
	})
}

func (p *process) read(r io.ReadCloser) {
	defer close(p.done)
	defer func() { _ = p.cmd.Wait() }()
	defer r.Close()
	for lines := bufio.NewScanner(r); lines.Scan(); {
		p.mu.Lock()
		p.lines = append(p.lines, lines.Text())
		close(p.grown)
		p.grown = make(chan struct{})
		p.mu.Unlock()
	}
}

func (p *process) last(n int) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lines[max(0, len(p.lines)-n):])
}

// mark is a place in the output: what is awaited from there was not printed before.
func (p *process) mark() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lines)
}

// await returns the first line from mark on that holds text.
func (p *process) await(t *testing.T, mark int, text string, within time.Duration) string {
	t.Helper()
	limit := time.NewTimer(within)
	defer limit.Stop()
	for {
		p.mu.Lock()
		fresh, grown := p.lines[mark:], p.grown
		p.mu.Unlock()
		if i := slices.IndexFunc(fresh, func(l string) bool { return strings.Contains(l, text) }); i >= 0 {
			return fresh[i]
		}
		mark += len(fresh)
		select {
		case <-grown:
		case <-p.done:
			t.Fatalf("the process ended before it printed %q", text)
		case <-limit.C:
			t.Fatalf("no %q within %s", text, within)
		}
	}
}

// kill ends the process as a crash would. The engine gets nothing gentler: after SIGTERM it waits for its clients.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.done
}

// stack is an engine and, in front of it, `iop dev`: Edge, tunnel and Node.
type stack struct {
	t      *testing.T
	client *http.Client
	engine *process
	direct server // the engine itself
	iop    server // the Edge
}

// server is a base URL without /v1, and a key or none.
type server struct {
	t      *testing.T
	client *http.Client
	url    string
	key    string
}

func newStack(t *testing.T) *stack {
	t.Helper()
	return newStackWith(t, func(engine string) string { return engine })
}

// newStackWith lets provider say under which URL the Node finds the engine.
func newStackWith(t *testing.T, provider func(engine string) string) *stack {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{}, Timeout: 2 * time.Minute}
	t.Cleanup(client.CloseIdleConnections)
	s := &stack{t: t, client: client, direct: server{t: t, client: client, url: "http://" + freeAddress(t)}}
	s.startEngine()
	dev := start(t, iopBinary, "dev", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--provider", "engine="+provider(s.direct.url), "--log", "info", "--json")
	var ready struct {
		BaseURL string   `json:"base_url"`
		APIKey  string   `json:"api_key"`
		Models  []string `json:"models"`
	}
	if err := json.Unmarshal([]byte(dev.await(t, 0, `"base_url"`, 30*time.Second)), &ready); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(ready.Models, []string{model}) {
		t.Fatalf("iop dev offers %q, not what the engine has", ready.Models)
	}
	s.iop = server{t: t, client: client, url: strings.TrimSuffix(ready.BaseURL, "/v1"), key: ready.APIKey}
	return s
}

// startEngine starts the engine, or another one in the place of a dead one.
func (s *stack) startEngine() {
	s.t.Helper()
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(s.direct.url, "http://"))
	s.engine = start(s.t, "./run.sh", port)
	eventually(s.t, 30*time.Second, "the engine has loaded its model", func() bool {
		select {
		case <-s.engine.done:
			s.t.Fatal("the engine ended; was it prepared with setup.sh?")
		default:
		}
		res, err := s.client.Get(s.direct.url + "/health")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// body is a JSON object of a request.
type body map[string]any

// with returns b and more.
func (b body) with(more body) body {
	all := maps.Clone(b)
	maps.Copy(all, more)
	return all
}

// send posts b, an object or the text of one, and returns the answer with its body unread.
func (s server) send(path string, b any) *http.Response {
	s.t.Helper()
	res, err := s.client.Do(s.request(s.t.Context(), path, b))
	if err != nil {
		s.t.Fatalf("POST %s: %v", path, err)
	}
	s.t.Cleanup(func() { res.Body.Close() })
	return res
}

// request makes the request that send sends.
func (s server) request(ctx context.Context, path string, b any) *http.Request {
	s.t.Helper()
	text, ok := b.(string)
	if !ok {
		data, err := json.Marshal(b)
		if err != nil {
			s.t.Fatal(err)
		}
		text = string(data)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, strings.NewReader(text))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if s.key != "" {
		req.Header.Set("Authorization", "Bearer "+s.key)
	}
	return req
}

// post sends b and reads the whole answer.
func (s server) post(path string, b any) (status int, answer []byte) {
	s.t.Helper()
	res := s.send(path, b)
	data, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatalf("POST %s: %v", path, err)
	}
	return res.StatusCode, data
}

// get reads a whole resource; it returns nil unless that came with 200.
func (s server) get(path string) []byte {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.key != "" {
		req.Header.Set("Authorization", "Bearer "+s.key)
	}
	res, err := s.client.Do(req)
	if err != nil {
		s.t.Fatalf("GET %s: %v", path, err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatalf("GET %s: %v", path, err)
	}
	if res.StatusCode != http.StatusOK {
		return nil
	}
	return data
}

// models is what the server lists.
func (s server) models() []string {
	s.t.Helper()
	var list struct{ Data []struct{ ID string } }
	if err := json.Unmarshal(s.get("/v1/models"), &list); err != nil {
		s.t.Fatalf("/v1/models: %v", err)
	}
	ids := make([]string, 0, len(list.Data))
	for _, m := range list.Data {
		ids = append(ids, m.ID)
	}
	return ids
}

// run is what IOP says about one of its runs.
type run struct {
	State, Outcome, Code, Phase string
	Usage                       *struct {
		Input  int `json:"input_tokens"`
		Output int `json:"output_tokens"`
	}
}

// ended waits for the end of the run behind an answer.
func (s *stack) ended(res *http.Response, within time.Duration) run {
	s.t.Helper()
	id := res.Header.Get("X-Iop-Run-Id")
	var r run
	eventually(s.t, within, "run "+id+" has ended", func() bool {
		data := s.iop.get("/iop/v1/runs/" + id)
		if err := json.Unmarshal(data, &r); err != nil {
			s.t.Fatalf("run %s: %v in %s", id, err, data)
		}
		return r.State == "ended"
	})
	return r
}

// engineMetric reads one of the engine's own numbers.
func (s *stack) engineMetric(name string) float64 {
	s.t.Helper()
	for line := range strings.Lines(string(s.direct.get("/metrics"))) {
		if value, ok := strings.CutPrefix(line, "llamacpp:"+name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				s.t.Fatal(err)
			}
			return v
		}
	}
	s.t.Fatalf("the engine has no metric %s", name)
	return 0
}

// eventually polls a condition that other processes bring about.
func eventually(t *testing.T, within time.Duration, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(within); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}

// freeAddress returns a loopback address that was free a moment ago.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// events reads an event stream. Comments are skipped; a line that an event stream can't hold fails the test.
type events struct {
	t     *testing.T
	lines *bufio.Scanner
}

func eventsOf(t *testing.T, res *http.Response) *events {
	t.Helper()
	if res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		data, _ := io.ReadAll(res.Body)
		t.Fatalf("%s, %v, %s", res.Status, res.Header, data)
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	return &events{t, lines}
}

var errEnd = errors.New("end of the stream")

// next returns the data of the next event; errEnd where the stream ended cleanly.
func (e *events) next() (string, error) {
	for e.lines.Scan() {
		line := e.lines.Text()
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			return data, nil
		}
		if line != "" && line[0] != ':' && !strings.HasPrefix(line, "event: ") {
			e.t.Fatalf("a strange line in the stream: %q", line)
		}
	}
	if err := e.lines.Err(); err != nil {
		return "", err
	}
	return "", errEnd
}

// rest returns the data of all events to the end.
func (e *events) rest() (all []string) {
	e.t.Helper()
	for {
		data, err := e.next()
		if errors.Is(err, errEnd) {
			return all
		}
		if err != nil {
			e.t.Fatalf("the stream broke after %d events: %v", len(all), err)
		}
		all = append(all, data)
	}
}
