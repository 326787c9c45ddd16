package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// lostFile has one route of which a Node is lost.
const lostFile = `
routes:
  - model: chat
    targets: [{model: sim-small}]
`

// lossWorld is a Node with three places, of which one streams and two have not given a byte, beside a Node whose one place
// is taken, and a queue behind both.
type lossWorld struct {
	*routed
	sim        *simulator
	streaming  *answer
	held       *answer // on the other Node
	dispatched []*answer
	waiting    []*answer
}

const lossSpec = ",capacity=3"

// Until the first byte of the dispatched: soon, for runs that end where they are, and late, for those that must still be without a
// byte when their Node is lost.
const soon, late = "ttft=1500ms,tokens=3", "ttft=8s,tokens=3"

func newLossWorld(t *testing.T, alone bool, dispatched string, nodeArgs ...string) *lossWorld {
	t.Helper()
	w := &lossWorld{routed: newRouted(t, lostFile)}
	w.sim = w.startSim("--slots", "32")
	others := int64(0)
	if !alone {
		others = 1
		w.launchNode("other", "--provider", "sim="+w.sim.url+",capacity=1")
		w.serving("other", "sim-small")
		w.held = w.chatLater("tokens=100000,itl=20ms", true)
		w.held.reaches(t, 2, patience)
	}
	w.launchNode("node-1", append([]string{"--provider", "sim=" + w.sim.url + lossSpec}, nodeArgs...)...)
	w.serving("node-1", "sim-small")
	w.streaming = w.chatLater("tokens=100000,itl=20ms", true)
	w.streaming.reaches(t, 2, patience)
	for i := range 2 {
		w.dispatched = append(w.dispatched, w.chatLater(dispatched, i%2 == 0))
	}
	w.sim.active(t, 3+others)
	for i := range 3 {
		w.waiting = append(w.waiting, w.chatLater("tokens=3", i%2 == 0))
	}
	// Its head is sent long before its answer: that is no byte of the answer.
	w.waiting = append(w.waiting, w.askAs(context.Background(), w.key, "/v1/chat/completions", chat("chat", "tokens=3", true), wantsUpdates))
	w.queued(4)
	return w
}

// lost is the process of node-1.
func (w *lossWorld) lost() *process { return w.nodes[len(w.nodes)-1] }

// freeOther ends what takes the other Node's place.
func (w *lossWorld) freeOther(t *testing.T) {
	t.Helper()
	iop(t, w.env, "cancel", w.held.header.Get("X-Iop-Run-Id"))
	w.held.end(t, patience)
}

func (s *stack) chatLater(knobs string, stream bool) *answer {
	return s.askAs(context.Background(), s.key, "/v1/chat/completions", chat("chat", knobs, stream), nil)
}

// allServed: what had no byte of an answer succeeds; where says on which Nodes.
func (w *lossWorld) allServed(t *testing.T, kind string, all []*answer, nodes ...string) {
	t.Helper()
	for i, a := range all {
		a.end(t, patience).ok(t, fmt.Sprintf("%s %d", kind, i))
		r := w.run(a.header.Get("X-Iop-Run-Id"))
		known := false
		for _, n := range nodes {
			known = known || r.Node == n
		}
		if !known {
			t.Errorf("%s %d ran as %+v", kind, i, r)
		}
	}
}

// TestNodeLost loses a Node of a route with runs in each phase.
func TestNodeLost(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"killed beside another": lostKilled, "killed alone": lostKilledAlone, "drained by the operator": lostDrained,
		"stopped in order": lostStopped, "stopped with runs that outlast it": lostAtDeadline,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

func lostKilled(t *testing.T) {
	w := newLossWorld(t, false, late)
	w.lost().kill()
	if err := w.streaming.end(t, patience).broken(); err != nil {
		t.Error("the stream:", err)
	}
	w.queued(6) // what had no byte waits again
	w.freeOther(t)
	w.allServed(t, "dispatched", w.dispatched, "other")
	w.allServed(t, "queued", w.waiting, "other")
	w.quiet()
}

// lostKilledAlone: what waits for a Node goes on to wait. What one has seen can't go elsewhere, and its client is told at
// once.
func lostKilledAlone(t *testing.T) {
	w := newLossWorld(t, true, late)
	w.lost().kill()
	if err := w.streaming.end(t, patience).broken(); err != nil {
		t.Error("the stream:", err)
	}
	for _, a := range w.dispatched {
		a.end(t, patience).refused(t, "dispatched", http.StatusBadGateway, "node_lost")
	}
	w.queued(4)
	w.launchNode("node-1", "--provider", "sim="+w.sim.url+lossSpec)
	w.allServed(t, "queued", w.waiting, "node-1")
	w.quiet()
}

// lostDrained: what a drained Node has it finishes. The rest waits for it or for another.
func lostDrained(t *testing.T) {
	w := newLossWorld(t, true, soon)
	iop(t, w.env, "drain", "node-1")
	w.allServed(t, "dispatched", w.dispatched, "node-1")
	w.streaming.reaches(t, w.streaming.count()+5, patience)
	if n := w.metric("iop_queued"); n != 4 {
		t.Errorf("%v wait beside a drained Node", n)
	}
	iop(t, w.env, "drain", "node-1", "--resume")
	w.allServed(t, "queued", w.waiting, "node-1")
	iop(t, w.env, "cancel", w.streaming.header.Get("X-Iop-Run-Id"))
	w.streaming.end(t, patience)
	w.quiet()
}

// lostStopped: a Node that stops finishes what it can in its time.
func lostStopped(t *testing.T) {
	w := newLossWorld(t, false, soon, "--drain-timeout", "4s")
	node := w.lost()
	node.signal(syscall.SIGTERM)
	w.allServed(t, "dispatched", w.dispatched, "node-1")
	w.freeOther(t)
	w.allServed(t, "queued", w.waiting, "other")
	if err := w.streaming.end(t, patience).broken(); err != nil {
		t.Error("the stream at the end of the drain:", err)
	}
	<-node.done
	w.quiet()
}

// lostAtDeadline: what it has no time for goes elsewhere, as long as no byte has come.
func lostAtDeadline(t *testing.T) {
	w := newLossWorld(t, false, late, "--drain-timeout", "200ms")
	w.lost().signal(syscall.SIGTERM)
	if err := w.streaming.end(t, patience).broken(); err != nil {
		t.Error("the stream at the end of the drain:", err)
	}
	w.queued(6)
	w.freeOther(t)
	w.allServed(t, "queued", w.waiting, "other")
	w.allServed(t, "dispatched", w.dispatched, "other")
	w.quiet()
}

// TestNodeJoinsQueue: 50 requests wait for a route without a Node. One joins, and all run at once.
func TestNodeJoinsQueue(t *testing.T) {
	t.Parallel()
	s := newRouted(t, lostFile)
	const n = 50
	var all []*answer
	for i := range n {
		all = append(all, s.chatLater("ttft=3s,tokens=2", i%2 == 0))
	}
	s.queued(n)
	if got := s.models(); len(got) != 0 {
		t.Errorf("models %q without a Node", got)
	}
	sim := s.startSim("--slots", "64")
	s.launchNode("node-1", "--provider", "sim="+sim.url+",capacity=64")
	sim.active(t, n) // all of them together
	for i, a := range all {
		a.end(t, patience).ok(t, fmt.Sprint(i))
		if a.header.Get("X-Iop-Queue-Ms") == "0" {
			t.Errorf("%d says that it did not wait", i)
		}
	}
	s.quiet()
}

// patienceFile has routes that differ in how long their requests wait.
const patienceFile = `
defaults: {timeouts: {queue: 2500ms}}
routes:
  - model: short
    timeouts: {queue: 1s}
  - model: usual
  - model: long
    timeouts: {queue: 10m, no_node: 10m}
  - model: away
    timeouts: {queue: 10m, no_node: 1200ms}
  - model: chat
    timeouts: {total: 1500ms, queue: 20s}
`

// TestQueueTimeout has no Node at all. Each request waits as long as its route says, and no longer. It is told that there is no
// Node, whichever of the route's times is over.
func TestQueueTimeout(t *testing.T) {
	t.Parallel()
	s := newRouted(t, patienceFile)
	long := s.askAs(context.Background(), s.key, "/v1/chat/completions", chat("long", "", true), nil)
	limits := map[string]time.Duration{"short": time.Second, "away": 1200 * time.Millisecond, "usual": 2500 * time.Millisecond, "chat": 1500 * time.Millisecond}
	fastest(t, time.Second, func() time.Duration { return s.waitInVain(t, limits) })
	told := s.askAs(context.Background(), s.key, "/v1/chat/completions", chat("short", "", true), wantsUpdates).end(t, patience)
	if err := told.broken(); err != nil || !strings.Contains(told.events[0], `"no_node_available"`) || len(told.places(t)) != 1 {
		t.Errorf("one that is told its place: %v, %s", err, told)
	}
	if n := s.metric("iop_queued"); n != 1 {
		t.Errorf("%v wait, and one should", n)
	}
	for _, r := range s.runs() {
		if r.Model == "long" {
			iop(t, s.env, "cancel", r.ID)
		}
	}
	long.end(t, patience)
	s.quiet()
}

// waitInVain has requests of every model wait as long as they may, and returns by how much the latest missed its limit.
func (s *routed) waitInVain(t *testing.T, limits map[string]time.Duration) (late time.Duration) {
	t.Helper()
	type timed struct {
		model string
		*answer
		took chan time.Duration
	}
	var all []timed
	for model := range limits {
		for _, stream := range []bool{false, true} {
			began := time.Now()
			a := timed{model, s.askAs(context.Background(), s.key, "/v1/chat/completions", chat(model, "", stream), nil), make(chan time.Duration, 1)}
			go func() {
				<-a.done
				a.took <- time.Since(began)
			}()
			all = append(all, a)
		}
	}
	for _, a := range all {
		a.end(t, patience).refused(t, a.model, http.StatusServiceUnavailable, "no_node_available")
		took, limit := <-a.took, limits[a.model]
		if took < limit {
			t.Errorf("%s: it waited for %s, not %s", a.model, took, limit)
		}
		late = max(late, took-limit)
	}
	return late
}

// followFile has a route by label, and one by what the provider has.
const followFile = `
advertised_models: refuse
routes:
  - model: lab
    targets: [{labels: {site: lab}, model: sim-small}]
  - model: later
    targets: [{model: comes-later}]
`

// TestRoutesFollowNodes: a Node that comes back with other labels, and a provider that gets and loses a model, are seen
// without anybody doing anything.
func TestRoutesFollowNodes(t *testing.T) {
	t.Parallel()
	s := newRouted(t, followFile)
	sim := s.startSim("--slots", "8")
	node := s.labelledNode("node-1", "site=office", "sim="+sim.url)
	s.serving("node-1", "sim-small")
	lab := s.askAs(context.Background(), s.key, "/v1/chat/completions", chat("lab", "tokens=1", false), nil)
	later := s.askAs(context.Background(), s.key, "/v1/chat/completions", chat("later", "tokens=1", true), nil)
	s.queued(2)
	if got := s.models(); len(got) != 0 {
		t.Errorf("listed are %q", got)
	}
	sim.control(t, "PUT", "/sim/models", map[string]any{"models": []string{"sim-small", "comes-later"}}, nil)
	later.end(t, patience).ok(t, "once the provider has the model")
	node.stop(patience)
	s.labelledNode("node-1", "site=lab", "sim="+sim.url)
	lab.end(t, patience).ok(t, "once the Node has the label")
	if got := s.models(); !slices.Equal(got, []string{"lab", "later"}) {
		t.Errorf("listed are %q", got)
	}
	sim.control(t, "PUT", "/sim/models", map[string]any{"models": []string{"sim-small"}}, nil)
	eventually(t, grace, "a model that the provider has no more is not listed", func() bool { return slices.Equal(s.models(), []string{"lab"}) })
	s.quiet()
}
