package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Two right files, which differ in all but the names, and files that are wrong each in its own way.
const (
	reloadOne = `# one
routes:
  - model: chat
    aliases: [gpt-4o]
    targets: [{model: sim-small}]
`
	reloadTwo = `# two
defaults: {policy: lowest_wait}
routes:
  - model: gpt-4o
    aliases: [chat]
    rename_model: true
    groups:
      - targets: [{node: nobody, model: sim-small}]
      - targets: [{node: node-*, model: sim-large}]
  - model: another
    targets: [{model: sim-small}]
`
)

var reloadWrong = []struct{ yaml, where, says string }{
	{"routes:\n  - model: chat\n    polisy: weighted\n", ":3:5: routes[0].polisy: ", "did you mean policy?"},
	{"routes:\n  - model: chat\n  - model: chat\n", ":3:12: routes[1].model: ", "line 2"},
	{"routes:\n  - model: chat\n    targets: []\n", ":3:14: routes[0].targets", ""},
	{"routes: [\n", ":1: ", "YAML"},
	{"", ":1:1: the file holds no routes", "routes: []"},
	{"# routes:\n#   - model: chat\n", ":1:1: the file holds no routes", "routes: []"},
	{"{}\n", ":1:1: routes: ", "routes: []"},
	{"advertised_models: serve\n", ":1:1: routes: ", "routes: []"},
}

// load is a crowd that asks for both names until it is stopped.
type load struct {
	sent, failed atomic.Int64
	first        atomic.Pointer[string] // what went wrong first
	stop         func()
}

func (s *stack) startLoad(workers int) *load {
	l := &load{}
	ctx, cancel := context.WithCancel(context.Background())
	var crowd sync.WaitGroup
	for w := range workers {
		crowd.Go(func() {
			for i := w; ctx.Err() == nil; i++ {
				model, stream := []string{"chat", "gpt-4o"}[i%2], i%3 == 0
				a := s.askAs(context.Background(), s.key, "/v1/chat/completions", chat(model, "ttft=20ms,tokens=3,itl=5ms", stream), nil)
				<-a.done
				l.sent.Add(1)
				if a.err != nil || a.status != 200 || stream && a.whole() != nil {
					l.failed.Add(1)
					text := a.String()
					l.first.CompareAndSwap(nil, &text)
				}
			}
		})
	}
	l.stop = sync.OnceFunc(func() {
		cancel()
		crowd.Wait()
	})
	s.t.Cleanup(l.stop)
	return l
}

// unharmed stops the load, and fails if a request of it was lost.
func (l *load) unharmed(t *testing.T, least int64) {
	t.Helper()
	l.stop()
	if n := l.failed.Load(); n != 0 {
		t.Errorf("%d of %d requests were lost, the first: %s", n, l.sent.Load(), *l.first.Load())
	}
	if n := l.sent.Load(); n < least {
		t.Errorf("only %d requests: the load was none", n)
	}
	t.Logf("%d requests", l.sent.Load())
}

// TestReloadUnderLoad rewrites the file of routes while requests run and wait: no request is lost, and a wrong file
// changes nothing.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	s := newRouted(t, reloadOne)
	sim := s.startSim("--slots", "64")
	s.startNode("node-1", "--provider", "sim="+sim.url+",capacity=4") // eight workers: some of them wait
	one := s.config().Digest
	l := s.startLoad(8)

	writeRoutes(t, s.file, reloadTwo)
	s.configBecomes("the second file is in force", func(c configState) bool { return c.Digest != one })
	two := s.config()
	if two.Routes != 2 || two.Fault != nil {
		t.Errorf("in force is %+v", two)
	}
	s.wrongFiles(t, two.Digest)

	for i := range 300 { // as fast as an editor on fire
		switch rand.IntN(3) {
		case 0:
			writeRoutes(t, s.file, reloadOne)
		case 1:
			writeRoutes(t, s.file, reloadTwo)
		default:
			writeRoutes(t, s.file, reloadWrong[i%len(reloadWrong)].yaml)
		}
		if i%3 == 0 {
			s.edge.signal(syscall.SIGHUP)
		}
		<-time.After(5 * time.Millisecond)
	}
	writeRoutes(t, s.file, reloadOne)
	s.configBecomes("the first file is in force", func(c configState) bool { return c.Digest == one && c.Fault == nil })
	l.unharmed(t, 300)
	s.quiet()
}

func (s *stack) configBecomes(what string, is func(configState) bool) {
	s.t.Helper()
	eventually(s.t, patience, what, func() bool { return is(s.config()) })
}

// wrongFiles puts each wrong file in the place of the right one: the right one stays in force, and everybody who may
// know is told why.
func (s *routed) wrongFiles(t *testing.T, digest string) {
	t.Helper()
	for _, wrong := range reloadWrong {
		writeRoutes(t, s.file, wrong.yaml)
		s.edge.signal(syscall.SIGHUP)
		place := s.file + wrong.where
		s.configBecomes("the fault is known: "+wrong.where, func(c configState) bool {
			return c.Fault != nil && strings.Contains(c.Fault.Message, place) && strings.Contains(c.Fault.Message, wrong.says)
		})
		c := s.config()
		if c.Digest != digest || len(c.Fault.Faults) == 0 || c.Fault.Faults[0].Line < 1 {
			t.Errorf("with %q: %+v", wrong.yaml, c)
		}
		if out := iop(t, s.env, "status"); !strings.Contains(out, place) || !strings.Contains(out, digest) {
			t.Errorf("iop status with %q:\n%s", wrong.yaml, out)
		}
		if line := s.edge.line(place, patience); !strings.Contains(line, `"level":"ERROR"`) {
			t.Errorf("the log with %q: %s", wrong.yaml, line)
		}
	}
	if err := os.Remove(s.file); err != nil {
		t.Fatal(err)
	}
	s.configBecomes("the file is missed", func(c configState) bool { return c.Fault != nil && strings.Contains(c.Fault.Message, "no such file") })
	if c := s.config(); c.Digest != digest {
		t.Errorf("without a file: %+v", c)
	}
}

// TestReloadMovesWaiters: who waits goes on to wait by the new file, and runs where it says.
func TestReloadMovesWaiters(t *testing.T) {
	t.Parallel()
	s := newRouted(t, "routes:\n  - model: chat\n    targets: [{node: nobody, model: sim-small}]\n  - model: gone\n    targets: [{node: nobody, model: sim-small}]\n")
	s.startNodeBehind("node-1", "sim-small")
	var all []*answer
	for i := range 10 {
		all = append(all, s.chatLater("tokens=2", i%2 == 0))
	}
	gone := s.askAs(context.Background(), s.key, "/v1/chat/completions", chat("gone", "", false), nil)
	s.queued(11)
	writeRoutes(t, s.file, reloadOne)
	for i, a := range all {
		a.end(t, patience).ok(t, fmt.Sprintf("number %d", i))
	}
	gone.end(t, patience).refused(t, "of a route that is gone", 404, "model_not_found")
	s.quiet()
}

// startNodeBehind starts a Node with a simulator of its own and waits for its model, whatever routes there are.
func (s *stack) startNodeBehind(name, model string, simArgs ...string) *simulator {
	s.t.Helper()
	sim := s.startSim(simArgs...)
	s.launchNode(name, "--provider", "sim="+sim.url)
	s.serving(name, model)
	return sim
}

// TestReloadAtOnce: SIGHUP is heeded before the file would be looked at by itself, which needs two looks a second apart.
func TestReloadAtOnce(t *testing.T) {
	t.Parallel()
	s := newRouted(t, reloadOne)
	took := make([]time.Duration, 5)
	for i := range took {
		before := s.config().Digest
		writeRoutes(t, s.file, []string{reloadTwo, reloadOne}[i%2])
		began := time.Now()
		s.edge.signal(syscall.SIGHUP)
		s.configBecomes("the new file is in force", func(c configState) bool { return c.Digest != before })
		took[i] = time.Since(began)
	}
	t.Logf("in force after %s", took)
	if least := slices.Min(took); least > 700*time.Millisecond {
		t.Errorf("SIGHUP was not heeded at once: %s", took)
	}
}

// TestCheckConfig has --check-config say what is right and what is wrong, and an Edge that does not start with the wrong.
func TestCheckConfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "iop.yaml")
	check := func(yaml string) (code int, out, stderr string) {
		writeRoutes(t, file, yaml)
		out, stderr, err := tryIOP(t, nil, "edge", "--check-config", "--config", file, "--state", "sqlite://"+filepath.Join(dir, "iop.db"))
		return exitCode(t, err), out, stderr
	}
	for yaml, says := range map[string]string{reloadOne: "1 route", reloadTwo: "2 routes", "routes: []\n": "0 routes"} {
		if code, out, stderr := check(yaml); code != 0 || stderr != "" || !strings.Contains(out, file+": "+says) {
			t.Errorf("a right file: %d, %s%s", code, out, stderr)
		}
	}
	for _, wrong := range reloadWrong {
		if code, out, stderr := check(wrong.yaml); code != 1 || out != "" || !strings.Contains(stderr, file+wrong.where) || !strings.Contains(stderr, wrong.says) {
			t.Errorf("%q: %d, %s%s", wrong.yaml, code, out, stderr)
		}
	}
	many := "routes:\n  - model: chat\n    policy: fastest\n  - aliases: [chat]\n    queue_limit: -1\n"
	if _, _, stderr := check(many); len(strings.Split(strings.TrimSpace(stderr), "\n")) < 4 {
		t.Errorf("of four faults it tells\n%s", stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "iop.db")); err == nil {
		t.Error("it made a state")
	}
	if _, stderr, err := tryIOP(t, nil, "edge", "--check-config"); exitCode(t, err) != 2 || !strings.Contains(stderr, "--config") {
		t.Errorf("without a file: %v, %s", err, stderr)
	}
	if example, err := readFile(filepath.Join("..", "deploy", "iop.example.yaml")); err != nil {
		t.Error(err)
	} else if code, _, stderr := check(example); code != 0 {
		t.Errorf("the example: %d, %s", code, stderr)
	}
	refusedStart(t, file, many, ":3:13: routes[0].policy: ")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	refusedStart(t, file, "", "no such file")
}

// refusedStart fails if an Edge starts with this file, or without saying want; an empty one is not there.
func refusedStart(t *testing.T, file, yaml, want string) {
	t.Helper()
	if yaml != "" {
		writeRoutes(t, file, yaml)
	}
	began := time.Now()
	out, stderr, err := tryIOP(t, nil, "edge", "--config", file, "--listen", freePort(t), "--admin-listen", freePort(t),
		"--state", "sqlite://"+filepath.Join(t.TempDir(), "iop.db"))
	if code := exitCode(t, err); code != 1 || !strings.Contains(out+stderr, want) || time.Since(began) > 20*time.Second {
		t.Errorf("an Edge with a wrong file: %d after %s, %s%s", code, time.Since(began), out, stderr)
	}
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		t.Fatal(err)
	}
	return exit.ExitCode()
}
