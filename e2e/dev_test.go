package e2e

import (
	"context"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// development is a running `iop dev`, and what a newcomer reads of it.
type development struct {
	*process
	curl         string // the line to paste into a shell
	url, key     string
	listen, text string
}

func startDev(t *testing.T, args ...string) *development {
	t.Helper()
	listen := freePort(t)
	p := start(t, "dev", nil, append([]string{"dev", "--listen", listen, "--admin-listen", freePort(t)}, args...)...)
	d := &development{process: p, listen: listen, curl: strings.TrimSpace(p.line("curl -N ", 60*time.Second))}
	d.text = p.text()
	for name, field := range map[string]*string{"base URL": &d.url, "API key": &d.key} {
		m := regexp.MustCompile(name + ` +(\S+)`).FindStringSubmatch(d.text)
		if m == nil {
			t.Fatalf("it prints no %s:\n%s", name, d.text)
		}
		*field = m[1]
	}
	return d
}

// interrupt ends it as Ctrl-C does, and says how long that took.
func (d *development) interrupt(t *testing.T) (took time.Duration) {
	t.Helper()
	began := time.Now()
	d.signal(syscall.SIGINT)
	select {
	case <-d.done:
	case <-time.After(patience):
		t.Fatal("Ctrl-C does not end it")
	}
	took = time.Since(began)
	if code := d.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("it ended with status %d", code)
	}
	return took
}

// paste runs the printed line as a newcomer does.
func (d *development) paste(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("bash", "-c", d.curl)
	cmd.Env = cleanEnv()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", d.curl, err, out)
	}
	return string(out)
}

func checkPasted(t *testing.T, out string) {
	t.Helper()
	if !strings.HasSuffix(out, "data: [DONE]\n\n") || strings.Count(out, "chat.completion.chunk") < 5 || !strings.Contains(out, `"finish_reason":"stop"`) {
		t.Errorf("the curl line brings\n%s", tail(out, 2000))
	}
}

// TestDev is a newcomer's first minute: start, paste, Ctrl-C while much is going on. No engine listens on the default
// ports of this machine's engines, or the test would meet it instead of the simulator.
func TestDev(t *testing.T) {
	t.Parallel()
	fastest(t, 2*time.Second, func() time.Duration {
		d := startDev(t)
		checkPasted(t, d.paste(t))
		s := &stack{t: t, url: strings.TrimSuffix(d.url, "/v1"), key: d.key}
		models := s.models()
		if len(models) == 0 || !strings.Contains(d.curl, `"`+models[0]+`"`) && !strings.Contains(d.text, models[0]) {
			t.Errorf("models %q, printed\n%s", models, d.text)
		}
		var running []*answer
		for range 3 {
			a := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat(models[0], "tokens=100000,itl=20ms", true))
			a.reaches(t, 3, patience)
			running = append(running, a)
		}
		took := d.interrupt(t)
		for _, a := range running {
			if err := a.end(t, patience).broken(); err != nil {
				t.Error("a stream at the moment of Ctrl-C:", err)
			}
		}
		return took
	})
}

// TestDevWithProvider is the same with a provider given.
func TestDevWithProvider(t *testing.T) {
	t.Parallel()
	s := &stack{t: t}
	sim := s.startSim("--models", "mine-7b")
	d := startDev(t, "--provider", "sim="+sim.url)
	if !strings.Contains(d.curl, `"model":"mine-7b"`) || strings.Contains(d.text, "simulated") {
		t.Errorf("it prints\n%s", d.text)
	}
	checkPasted(t, d.paste(t))
	if st := sim.stats(t); st.Finished != 1 {
		t.Errorf("the provider has seen %+v", st)
	}
	s.url, s.key = strings.TrimSuffix(d.url, "/v1"), d.key
	a := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("mine-7b", "ttft=60s", true))
	sim.active(t, 1)
	d.interrupt(t)
	if a.end(t, patience); a.status == http.StatusOK {
		t.Errorf("a request without an answer at Ctrl-C: %s", a)
	}
	sim.active(t, 0) // nobody generates for nobody
}

// TestDevPortInUse starts a second one beside the first.
func TestDevPortInUse(t *testing.T) {
	t.Parallel()
	s := &stack{t: t}
	sim := s.startSim()
	listen := strings.TrimPrefix(sim.url, "http://")
	for _, args := range [][]string{{"--listen", listen, "--admin-listen", freePort(t)}, {"--listen", freePort(t), "--admin-listen", listen}} {
		cmd := exec.Command(binary, append([]string{"dev"}, args...)...)
		cmd.Env, cmd.Dir = cleanEnv(), t.TempDir()
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), listen) || !strings.Contains(string(out), "address already in use") || !strings.Contains(string(out), "--listen") {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}
