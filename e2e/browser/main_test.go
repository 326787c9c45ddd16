package browser

import (
	"bytes"
	"encoding/json"
	"fmt"
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

// binary is the iop that every test runs, built once; chromium is the browser, axe the script that checks a page.
var binary, chromium, axe string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if err := prepare(); err != nil {
			fmt.Fprintln(os.Stderr, "browser:", err)
			return 1
		}
		dir, err := os.MkdirTemp("", "iop-browser-")
		if err != nil {
			fmt.Fprintln(os.Stderr, "browser:", err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "iop")
		build := exec.Command("go", "build", "-o", binary, "../../cmd/iop")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "browser: build iop: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// prepare finds what setup.sh installs.
func prepare() error {
	names := []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}
	if named := os.Getenv("IOP_CHROMIUM"); named != "" {
		names = []string{named}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			chromium = path
			break
		}
	}
	if chromium == "" {
		return fmt.Errorf("none of %q is here: run e2e/browser/setup.sh", names)
	}
	script, err := os.ReadFile(filepath.FromSlash("../../.cache/axe/node_modules/axe-core/axe.min.js"))
	if err != nil {
		return fmt.Errorf("%w: run e2e/browser/setup.sh", err)
	}
	axe = string(script)
	return nil
}

// patience bounds every wait for something that is to come. It is long: a machine may have much else to do.
const patience = 2 * time.Minute

// process is one running command, whose output is shown when the test fails.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has exited

	mu     sync.Mutex
	output bytes.Buffer // guarded by mu
}

// Write implements io.Writer.
func (p *process) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.Write(data)
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// start runs the binary with args until the test ends.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	return startCommand(t, name, exec.Command(binary, args...))
}

func startCommand(t *testing.T, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: cmd, done: make(chan struct{})}
	p.cmd.Env, p.cmd.Dir = cleanEnv(), t.TempDir()
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // how it ended is asked of its ProcessState
	}()
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			text := p.text()
			t.Logf("---- output of %s\n%s", name, text[max(0, len(text)-8<<10):])
		}
	})
	return p
}

// stop ends the process as an operator does.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // one that has ended takes none
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Errorf("%s does not end", p.name)
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// line waits for the first whole line that holds text.
func (p *process) line(text string) string {
	p.t.Helper()
	var found string
	eventually(p.t, fmt.Sprintf("%s prints %q", p.name, text), func() bool {
		select {
		case <-p.done:
			p.t.Fatalf("%s has ended", p.name)
		default:
		}
		for l := range strings.Lines(p.text()) {
			if strings.HasSuffix(l, "\n") && strings.Contains(l, text) {
				found = l
				return true
			}
		}
		return false
	})
	return found
}

// eventually polls what other processes bring about.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("not in %s: %s", patience, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// iop runs one command to its end and returns what it printed.
func iop(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env, cmd.Dir = append(cleanEnv(), env...), t.TempDir()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("iop %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// startSim starts a simulator and returns its URL.
func startSim(t *testing.T, name string, args ...string) string {
	t.Helper()
	p := start(t, name, append([]string{"sim", "--listen", "127.0.0.1:0", "--json"}, args...)...)
	var ready struct{ URL string }
	if err := json.Unmarshal([]byte(p.line(`"url"`)), &ready); err != nil {
		t.Fatal(err)
	}
	return ready.URL
}

// cleanEnv is the environment without settings of IOP and proxies.
func cleanEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "IOP_") && !strings.HasSuffix(strings.ToLower(name), "_proxy") {
			env = append(env, kv)
		}
	}
	return env
}

// freePort returns an address that nobody listens on, below the ports that connections are given.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(10000+rand.IntN(22000)))
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			return address
		}
	}
	t.Fatal("found no free port in a hundred tries")
	return ""
}
