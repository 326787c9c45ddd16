package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/sim"
)

// startSim serves the simulator to the end of the test, and returns its URL.
func startSim(t *testing.T) *sim.Server {
	t.Helper()
	config := sim.DefaultConfig()
	config.Listen = "127.0.0.1:0"
	server, err := sim.New(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Listen(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	ctx := t.Context() // ends right before the cleanups
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() { <-done })
	return server
}

func beginDev(t *testing.T, args ...string) (*command, devReady) {
	t.Helper()
	c := begin(t, append([]string{"dev", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--json"}, args...)...)
	var ready devReady
	c.object("base_url", &ready)
	return c, ready
}

func TestDevWithProvider(t *testing.T) {
	server := startSim(t)
	_, ready := beginDev(t, "--provider", "mine="+server.URL())
	if !slices.Contains(ready.Models, "sim-small") {
		t.Fatalf("models %q", ready.Models)
	}
	streamed(t, chat(t, ready.BaseURL, ready.APIKey, "sim-small", "tokens=5"))
	if server.Stats().Started == 0 {
		t.Error("the provider that was given never got a request")
	}
	status, stdout, stderr := execute(t, "nodes", "--admin-url", ready.AdminURL, "--admin-token", ready.AdminToken)
	if status != exitOK || !strings.Contains(stdout, "mine") {
		t.Errorf("nodes: status %d, %s%s", status, stdout, stderr)
	}
}

// TestDevWithRoutes: a file says what model names mean here too.
func TestDevWithRoutes(t *testing.T) {
	server := startSim(t)
	path := writeFile(t, "iop.yaml", "advertised_models: refuse\nroutes:\n  - model: chat\n    aliases: [gpt-4o]\n    targets: [{model: sim-small}]\n")
	_, ready := beginDev(t, "--provider", "mine="+server.URL(), "--config", path)
	if !slices.Equal(ready.Models, []string{"chat", "gpt-4o"}) {
		t.Errorf("models %q", ready.Models)
	}
	streamed(t, chat(t, ready.BaseURL, ready.APIKey, "gpt-4o", "tokens=5"))
	status, stdout, stderr := execute(t, "routes", "--admin-url", ready.AdminURL, "--admin-token", ready.AdminToken)
	if status != exitOK || !strings.Contains(stdout, "sim-small") || !strings.Contains(stdout, "chat") {
		t.Errorf("routes: status %d, %s%s", status, stdout, stderr)
	}
}

// endTime is more than what is to take a second or two ever takes, and less than what waits for runs, or to drain.
const endTime = 15 * time.Second

// TestDevByItself: with nothing given, it finds something or starts the simulator; there is a model either way.
func TestDevByItself(t *testing.T) {
	c, ready := beginDev(t)
	if len(ready.Models) == 0 || ready.APIKey == "" || ready.AdminToken == "" || ready.PID == 0 {
		t.Errorf("ready %+v", ready)
	}
	if took := c.end(); took > endTime {
		t.Errorf("an idle dev took %v to end", took)
	}
}

// TestDevEndsWithRunsInFlight: a stream under way is cut with an error that its client can tell from an end, and the
// provider's request is gone, all without waiting for it.
func TestDevEndsWithRunsInFlight(t *testing.T) {
	server := startSim(t)
	c, ready := beginDev(t, "--provider", "mine="+server.URL())
	slow := chat(t, ready.BaseURL, ready.APIKey, "sim-small", "tokens=1000,itl=50ms")
	body := bufio.NewReader(slow.Body)
	if _, err := body.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if took := c.end(); took > endTime {
		t.Errorf("it took %v to end", took)
	}
	rest, err := io.ReadAll(body)
	if strings.Contains(string(rest), "[DONE]") || err == nil && !strings.Contains(string(rest), `"error"`) {
		t.Errorf("the client can't tell that its stream was cut: %v, %s", err, tail(rest))
	}
	eventually(t, "the provider's request is gone", func() bool { return server.Stats().Busy == 0 })
}

func TestDevPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	status, _, stderr := execute(t, "dev", "--listen", taken.Addr().String(), "--admin-listen", "127.0.0.1:0")
	if status != exitFailed || !strings.Contains(stderr, taken.Addr().String()) || !strings.Contains(stderr, "--listen") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
}

func TestDevPrints(t *testing.T) {
	ready := devReady{BaseURL: "http://127.0.0.1:8480/v1", APIKey: "sk-iop_x", AdminURL: "http://127.0.0.1:8481", AdminToken: "adm-iop_y", Models: []string{"a-embed", "b"}}
	var out strings.Builder
	if err := ready.print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{ready.BaseURL, ready.APIKey, ready.AdminURL + "/admin/", ready.AdminToken, "a-embed, b", `"model":"b"`, "curl -N http://127.0.0.1:8480/v1/chat/completions"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
}

func TestChatModel(t *testing.T) {
	for want, models := range map[string][]string{
		"MODEL":    nil,
		"llama3":   {"Embed-x", "llama3"},
		"tts-only": {"tts-only"},
	} {
		if got := chatModel(models); got != want {
			t.Errorf("chatModel(%q) = %q, want %q", models, got, want)
		}
	}
}

func tail(b []byte) string { return string(b[max(0, len(b)-500):]) }

// While nobody reads standard output, dev serves and ends all the same.
func TestDevEndsWithoutReader(t *testing.T) {
	d := &development{node: &companion{err: make(chan error)}}
	ctx, cancel := context.WithCancel(t.Context())
	writing, free := make(chan struct{}), make(chan struct{})
	defer close(free)
	result := make(chan error, 1)
	go func() {
		result <- d.wait(ctx, func(devReady) error {
			close(writing)
			<-free
			return nil
		})
	}()
	<-writing
	cancel()
	if err := <-result; err != nil {
		t.Error(err)
	}
}
