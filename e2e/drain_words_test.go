package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// drainLine is a line of a process that drains.
type drainLine struct {
	Msg    string
	Runs   int
	Queued int
	Until  time.Time
	Note   string
}

func (p *process) drains(message string) (line drainLine) {
	p.t.Helper()
	if err := json.Unmarshal([]byte(p.line(`"msg":"`+message+`"`, patience)), &line); err != nil {
		p.t.Fatal(err)
	}
	return line
}

// TestDrainsSayWhatTheyWaitFor: an Edge and a Node that stop say how many runs keep them, until when, as it changes, and that it is
// over; a second signal ends them.
func TestDrainsSayWhatTheyWaitFor(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{edgeArgs: []string{"--drain-timeout", "10m"}, nodeArgs: []string{"--drain-timeout", "10m"}, simArgs: []string{"--slots", "2"}})
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	for _, ctx := range []context.Context{ctx, context.Background()} {
		s.ask(ctx, http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=100000,itl=50ms", true)).reaches(t, 1, patience)
	}

	node := s.nodes[0]
	node.signal(syscall.SIGTERM)
	if line := node.drains("draining"); line.Runs != 2 || line.Until.Before(time.Now()) || !strings.Contains(line.Note, "second signal") {
		t.Errorf("the Node: %+v", line)
	}
	s.edge.signal(syscall.SIGTERM)
	if line := s.edge.drains("draining"); line.Runs != 2 || line.Until.Before(time.Now()) || !strings.Contains(line.Note, "second signal") {
		t.Errorf("the Edge: %+v", line)
	}
	leave() // one of both clients goes
	for _, p := range []*process{node, s.edge} {
		if line := p.drains("still draining"); line.Runs != 1 {
			t.Errorf("%s: %+v", p.name, line)
		}
	}
	for _, p := range []*process{node, s.edge} {
		p.signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(patience):
			t.Errorf("%s goes on after a second signal", p.name)
		}
	}
}

// TestDrainsEndInOrder: what waits in a queue is counted apart and refused, and the end is said.
func TestDrainsEndInOrder(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{noNode: true})
	s.startNode("node-1", "--provider", "sim="+s.startSim().url+",capacity=1")
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	ask := func(ctx context.Context) *answer {
		return s.ask(ctx, http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=100000,itl=50ms", false))
	}
	running := ask(ctx)
	eventually(t, patience, "a run is active", func() bool { return s.metric("iop_places_taken") == 1 })
	waiting := ask(context.Background())
	s.queued(1)
	s.edge.signal(syscall.SIGTERM)
	if line := s.edge.drains("draining"); line.Runs != 1 || line.Queued != 1 {
		t.Errorf("%+v", line)
	}
	if a := waiting.end(t, patience); a.status != http.StatusServiceUnavailable {
		t.Errorf("what waited: %d", a.status)
	}
	leave()
	running.end(t, patience)
	if line := s.edge.drains("drained"); line.Runs != 0 {
		t.Errorf("%+v", line)
	}
}
