package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binary is the iop that every test runs, built once.
var binary string

// atOnce is how many parallel tests run at once: what they mostly do is wait. What needs the machine for itself is no
// parallel test.
const atOnce = "16"

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", atOnce); err != nil {
			panic(err)
		}
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "iop-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "iop")
		build := exec.Command("go", "build", "-o", binary, "../cmd/iop")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "e2e: build iop: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// patience is how long a test waits for what takes a moment on an idle machine, and else does not come at all. No more:
// providers that are silent for a minute must not end it. What is promised within a time is held to it by what a test says
// beside that, and to the millisecond, in synthetic time, by the packages' own tests.
const patience = 40 * time.Second

// process is one running command. Its output is kept, shown when the test fails, and searched for secrets at the end.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has exited

	mu     sync.Mutex
	output bytes.Buffer   // guarded by mu
	waits  []*awaitedLine // guarded by mu
	err    error          // guarded by mu; set before done is closed
}

type awaitedLine struct {
	match func(string) bool
	found chan string
}

// start runs the binary with args. The process is ended with SIGTERM when the test ends, and must then exit cleanly
// unless the test ended it before.
func start(t *testing.T, name string, env []string, args ...string) *process {
	t.Helper()
	return startCommand(t, name, env, exec.Command(binary, args...))
}

func startCommand(t *testing.T, name string, env []string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: cmd, done: make(chan struct{})}
	cmd.Env = append(cleanEnv(), env...)
	if cmd.Dir == "" {
		cmd.Dir = t.TempDir()
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	w.Close()
	go p.read(r)
	t.Cleanup(func() {
		p.stop(patience)
		if t.Failed() {
			t.Logf("---- output of %s\n%s", name, tail(p.text(), 12<<10))
		}
	})
	return p
}

// cleanEnv is the environment without settings of IOP and proxies.
func cleanEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "IOP_") || strings.HasSuffix(strings.ToLower(name), "_proxy") {
			continue
		}
		env = append(env, kv)
	}
	return env
}

func (p *process) read(r io.ReadCloser) {
	defer r.Close()
	lines := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := lines.ReadString('\n')
		p.mu.Lock()
		p.output.WriteString(line)
		for _, w := range p.waits {
			if w.match(line) {
				select {
				case w.found <- line:
				default:
				}
			}
		}
		p.mu.Unlock()
		if err != nil {
			break
		}
	}
	err := p.cmd.Wait()
	p.mu.Lock()
	p.err = err
	p.mu.Unlock()
	close(p.done)
}

// text is everything that the process has printed so far.
func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// line waits for the first line, printed before or from now on, that holds text.
func (p *process) line(text string, within time.Duration) string {
	p.t.Helper()
	w := &awaitedLine{match: func(l string) bool { return strings.Contains(l, text) }, found: make(chan string, 1)}
	p.mu.Lock()
	for l := range strings.Lines(p.output.String()) {
		if w.match(l) {
			p.mu.Unlock()
			return l
		}
	}
	p.waits = append(p.waits, w)
	p.mu.Unlock()
	select {
	case l := <-w.found:
		return l
	case <-p.done:
		p.t.Fatalf("%s exited before it printed %q:\n%s", p.name, text, tail(p.text(), 4<<10))
	case <-time.After(within):
		p.t.Fatalf("%s did not print %q in %s:\n%s", p.name, text, within, tail(p.text(), 4<<10))
	}
	return ""
}

// jsonLine waits for the first line that is a JSON object with the field, and decodes it into v.
func (p *process) jsonLine(field string, within time.Duration, v any) {
	p.t.Helper()
	line := p.line(`"`+field+`":`, within)
	if err := json.Unmarshal([]byte(line), v); err != nil {
		p.t.Fatalf("%s printed %q: %v", p.name, line, err)
	}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("%s: signal %v: %v", p.name, s, err)
	}
}

// stop ends the process with SIGTERM, with SIGKILL after patience, and returns how it exited.
func (p *process) stop(patience time.Duration) error {
	select {
	case <-p.done:
	default:
		p.thaw()
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(patience):
			p.t.Errorf("%s did not exit in %s after SIGTERM", p.name, patience)
			_ = p.cmd.Process.Kill()
			<-p.done
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// kill ends the process as a crash would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// iop runs one command to its end and returns what it printed on standard output.
func iop(t *testing.T, env []string, args ...string) string {
	t.Helper()
	out, stderr, err := tryIOP(t, env, args...)
	if err != nil {
		t.Fatalf("iop %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr)
	}
	return out
}

func tryIOP(t *testing.T, env []string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = append(cleanEnv(), env...)
	cmd.Dir = t.TempDir()
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return o.String(), e.String(), err
}

// portsGiven are the addresses that freePort has returned to any test.
var portsGiven sync.Map

// freePort returns an address that nobody listens on, and that no other test was given. It lies below the ports that the
// system gives to connections of any process: one of those could take the port before it is used here, or while its
// process is started anew.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(10000+rand.IntN(22000)))
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			if _, taken := portsGiven.LoadOrStore(address, true); !taken {
				return address
			}
		}
	}
	t.Fatal("found no free port in a hundred tries")
	return ""
}

func tail(s string, n int) string {
	if len(s) > n {
		return "[...]" + s[len(s)-n:]
	}
	return s
}

// eventually polls a condition that other processes bring about.
func eventually(t *testing.T, within time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not in %s: %s", within, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
