package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3/option"
)

// queueFile has a route by two names, one of which clients have to see in the answer.
const queueFile = `
advertised_models: refuse
routes:
  - model: chat
    aliases: [gpt-4o]
    rename_model: true
    targets: [{model: sim-small}]
`

// wantsUpdates asks for the place in the queue at once, noUpdates for none.
var (
	wantsUpdates = http.Header{"X-Iop-Queue-Updates": {"1"}}
	noUpdates    = http.Header{"X-Iop-Queue-Updates": {"0"}}
)

// newQueueWorld is a Node with one place.
func newQueueWorld(t *testing.T) *routed {
	t.Helper()
	s := newRouted(t, queueFile)
	s.launchNode("node-1", "--provider", "sim="+s.startSim("--slots", "8").url+",capacity=1")
	s.serving("node-1", "sim-small")
	return s
}

// places are the positions that an answer told in comments, in order.
func (a *answer) places(t *testing.T) (positions []int) {
	t.Helper()
	for line := range strings.Lines(a.body.String()) {
		rest, ok := strings.CutPrefix(line, ": queued position=")
		if !ok {
			continue
		}
		number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		n, err := strconv.Atoi(number)
		if err != nil {
			t.Errorf("a comment %q", line)
		}
		positions = append(positions, n)
	}
	return positions
}

// TestQueuePosition has six requests for one place. Streams are told how the queue before them gets shorter, unless they refuse.
func TestQueuePosition(t *testing.T) {
	t.Parallel()
	s := newQueueWorld(t)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	held := s.askAs(ctx, s.key, "/v1/chat/completions", chat("chat", "ttft=5m,tokens=2", true), nil) // until all are in line
	s.sims[0].active(t, 1)
	var all []*answer
	for i := range 6 {
		all = append(all, s.askAs(context.Background(), s.key, "/v1/chat/completions", chat("chat", "ttft=700ms,tokens=2", true), wantsUpdates))
		s.queued(i + 1)
	}
	silent := s.askAs(context.Background(), s.key, "/v1/chat/completions", chat("chat", "tokens=2", true), noUpdates)
	whole := s.askAs(context.Background(), s.key, "/v1/chat/completions", chat("chat", "tokens=2", false), wantsUpdates)
	s.queued(8)
	leave()
	<-held.done
	for i, a := range all {
		a.end(t, patience).ok(t, fmt.Sprintf("number %d", i+1))
		got := a.places(t)
		if len(got) == 0 || got[0] != i+1 || !slices.IsSortedFunc(got, func(a, b int) int { return b - a }) || len(slices.Compact(slices.Clone(got))) != len(got) {
			t.Errorf("number %d was told %d", i+1, got)
		}
	}
	if got := all[5].places(t); len(got) < 3 || got[len(got)-1] > 2 {
		t.Errorf("the last was told %d on its way", got)
	}
	silent.end(t, patience).ok(t, "who refused")
	if got := silent.places(t); len(got) != 0 || silent.header.Get("X-Iop-Queue-Ms") == "0" {
		t.Errorf("who refused was told %d, %v", got, silent.header)
	}
	whole.end(t, patience).ok(t, "an answer in one piece")
	if strings.Contains(whole.body.String(), "queue") || whole.header.Get("X-Iop-Queue-Position") == "" {
		t.Errorf("an answer in one piece: %v, %s", whole.header, whole)
	}
	s.quiet()
}

// TestQueueUpdatesSDK: the official clients read a stream with places in it as any other.
func TestQueueUpdatesSDK(t *testing.T) {
	t.Parallel()
	s := newQueueWorld(t)
	t.Run("go", func(t *testing.T) {
		client := goClient(s.url+"/v1", s.key)
		s.inLine(t, func() error {
			chunks, err := readAll(client.Chat.Completions.NewStreaming(t.Context(), goChatFor("gpt-4o", "hello", "tokens=4"), option.WithHeader("X-IOP-Queue-Updates", "1")))
			if err != nil || chunkText(chunks, 0) != "hello t1 t2 t3" || chunks[0].Model != "gpt-4o" {
				return fmt.Errorf("%+v, %w", chunks, err)
			}
			return nil
		})
	})
	t.Run("python", func(t *testing.T) {
		target, err := json.Marshal(map[string]string{"base_url": s.url + "/v1", "key": s.key})
		if err != nil {
			t.Fatal(err)
		}
		python := filepath.Join(sdkDir(t), "python", "bin", "python")
		s.inLine(t, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, python, filepath.Join("sdk", "python", "routed.py"), string(target))
			cmd.Env = append(cleanEnv(), "PYTHONDONTWRITEBYTECODE=1")
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	})
	s.quiet()
}

// inLine takes the one place, lets two wait for it and then who asks, and makes the place free once all are in line.
func (s *stack) inLine(t *testing.T, ask func() error) {
	t.Helper()
	held := s.chatLater("tokens=100000,itl=20ms", true)
	held.reaches(t, 2, patience)
	before := []*answer{s.chatLater("ttft=50ms,tokens=1", true), s.chatLater("ttft=50ms,tokens=1", true)}
	s.queued(2)
	told := make(chan error, 1)
	go func() { told <- ask() }()
	s.queued(3)
	iop(t, s.env, "cancel", held.header.Get("X-Iop-Run-Id"))
	if err := <-told; err != nil {
		t.Error(err)
	}
	for _, a := range before {
		a.end(t, patience).ok(t, "before it in line")
	}
}

// TestQueuedStreamSDK: the official packages open a stream while it waits, without asking for anything, and read what the queue
// says as no event. Ollama's protocol has no comments: its clients wait for the first line.
func TestQueuedStreamSDK(t *testing.T) {
	t.Parallel()
	sdk := sdkDir(t)
	s := newQueueWorld(t)
	python := []string{filepath.Join(sdk, "clients", "bin", "python"), "sdk/python/queued.py"}
	node := []string{"node", "sdk/node/queued.mjs", filepath.Join(sdk, "matrix")}
	for _, test := range []struct {
		command []string
		kind    string
	}{
		{python, "chat"}, {python, "responses"}, {python, "messages"}, {python, "ollama"}, {node, "chat"}, {node, "responses"}, {node, "messages"},
	} {
		t.Run(filepath.Base(test.command[0])+" "+test.kind, func(t *testing.T) { s.queuesIn(t, test.command, test.kind) })
	}
	s.quiet()
}

// queuesIn runs a script whose stream finds the one place taken until its head has come.
func (s *stack) queuesIn(t *testing.T, command []string, kind string) {
	held := s.chatLater("tokens=100000,itl=20ms", true)
	held.reaches(t, 2, patience)
	world, err := json.Marshal(map[string]string{"url": s.url, "key": s.key, "kind": kind})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], append(slices.Clone(command[1:]), string(world))...)
	cmd.Env = append(cleanEnv(), "PYTHONDONTWRITEBYTECODE=1")
	stderr := new(strings.Builder)
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	says := bufio.NewReader(out)
	for _, want := range []string{"ready\n", "head\n"} { // a cold start of a script on a busy machine takes a minute
		if kind == "ollama" && want == "head\n" {
			continue
		}
		if line, err := says.ReadString('\n'); line != want {
			t.Fatalf("it says %q, %v; want %q: %s", line, err, want, stderr)
		}
	}
	s.queued(1)
	iop(t, s.env, "cancel", held.header.Get("X-Iop-Run-Id"))
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, stderr)
	}
	held.end(t, patience)
}
