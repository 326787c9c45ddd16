package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSilence has a prefill of 70 s and a stream that stalls for 50 s. Nothing about that is a fault.
func TestSilence(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{})
	generation := s.online("node-1", patience)
	began := time.Now()
	prefill := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "ttft=70s,tokens=5", true))
	unary := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "ttft=70s,tokens=5", false))
	stalled := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=8,stall_after=4,stall=50s", true))
	for _, a := range []*answer{prefill, stalled} {
		if err := a.end(t, 2*time.Minute).whole(); err != nil {
			t.Error(err)
		}
		if len(a.comments) < 3 {
			t.Errorf("%d comments in the silence", len(a.comments))
		}
		if gap := longestSilence(began, a); gap > 25*time.Second { // 15 s, and what a busy machine is late
			t.Errorf("the client heard nothing for %s", gap)
		}
	}
	if time.Since(began) < 70*time.Second {
		t.Fatalf("the prefill took %s", time.Since(began))
	}
	unary.end(t, 2*time.Minute)
	if body := unary.body.String(); unary.status != http.StatusOK || !json.Valid([]byte(body)) || !strings.HasPrefix(body, "{") || len(unary.comments) != 0 {
		t.Error("without a stream:", unary)
	}
	s.quiet()
	if n := s.node("node-1"); n.State != "online" || n.generation() != generation {
		t.Errorf("the Node was of generation %d, and now it is %+v", generation, n)
	}
	s.noFalseAlarm()
}

// longestSilence is the longest time in which the client got neither event nor comment.
func longestSilence(began time.Time, a *answer) (longest time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	heard := slices.SortedFunc(slices.Values(append(append([]time.Time{began}, a.arrived...), a.comments...)), time.Time.Compare)
	for i := 1; i < len(heard); i++ {
		longest = max(longest, heard[i].Sub(heard[i-1]))
	}
	return longest
}

// TestNodeStopped stops a Node's process with runs in flight: TCP stays up, nobody answers. Later it goes on, as a
// laptop does that was closed.
func TestNodeStopped(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{})
	node := s.nodes[0]
	generation := s.online("node-1", patience)
	streaming := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=100000,itl=20ms", true))
	streaming.reaches(t, 3, patience)
	waiting := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "ttft=10m", true))
	unary := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "ttft=10m", false))
	s.sims[0].active(t, 3)

	stopped := time.Now()
	node.freeze()
	eventually(t, 2*time.Minute, "the Node is offline", func() bool { return s.node("node-1").State == "offline" })
	if took := time.Since(stopped); took > 60*time.Second { // 46 s, and what a busy machine is late; the next HEARTBEAT would be at 75
		t.Errorf("it was offline after %s", took)
	}
	for _, a := range []*answer{streaming, waiting} {
		if err := a.end(t, patience).broken(); err != nil {
			t.Error(err)
		}
	}
	if unary.end(t, patience); unary.status != http.StatusBadGateway {
		t.Error("without a stream:", unary)
	}
	s.quiet()
	if sums := s.outcomes(); sums["failed"] != 3 || sums["completed"]+sums["cancelled"]+sums["rejected"] != 0 {
		t.Errorf("three runs have ended as %v", sums)
	}
	for _, r := range s.runs() {
		if r.State != "ended" || r.Code != "session_lost" || r.Attempts != 1 {
			t.Errorf("a run ended as %+v", r)
		}
	}
	if n := s.metric("iop_heartbeat_timeouts_total"); n != 1 {
		t.Errorf("%v sessions were silent", n)
	}
	if got := s.models(); len(got) != 0 {
		t.Errorf("models %q without a Node", got)
	}

	<-time.After(time.Until(stopped.Add(75 * time.Second)))
	node.thaw()
	began := time.Now()
	again := s.online("node-1", patience)
	if took := time.Since(began); took > 20*time.Second { // a backoff of half a minute it has not earned
		t.Errorf("it was online %s after it went on", took)
	}
	if again <= generation {
		t.Errorf("generation %d after %d", again, generation)
	}
	s.sims[0].active(t, 0) // the Node ended what the Edge had given up
	s.healthy(t)
}

// TestHalfOpenConnection leaves a Node's old connection open and dead, and lets the Node come back on another path.
func TestHalfOpenConnection(t *testing.T) {
	t.Parallel()
	s := newEdge(t)
	before, after := s.startSim("--slots", "16"), s.startSim("--slots", "16")
	oldPath, newPath := newRelay(t, s.edgeAddr(), 0), newRelay(t, s.edgeAddr(), 0)
	old := s.nodeVia(oldPath.addr, "node-1", "--provider", "sim="+before.url)
	generation := s.online("node-1", patience)
	begun := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=100000,itl=2ms", true))
	begun.reaches(t, 3, patience)

	oldPath.silence()
	old.freeze() // or it would see the trouble itself, and come back, too
	s.nodeVia(newPath.addr, "node-1", "--provider", "sim="+after.url)
	eventually(t, patience, "the new session is the current one", func() bool {
		n := s.node("node-1")
		return n.State == "online" && n.generation() > generation
	})
	ready := time.Now()
	first := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=2", true))
	if err := first.end(t, patience).whole(); err != nil {
		t.Error("the first request to the new session:", err)
	}
	if took := time.Since(ready); took > 20*time.Second { // and not when the old session is found dead
		t.Errorf("the first success came %s after READY", took)
	}
	if err := begun.end(t, patience).broken(); err != nil {
		t.Error("the stream of the old session:", err)
	}
	if r := s.run(begun.header.Get("X-Iop-Run-Id")); r.Code != "session_superseded" || r.Generation != generation {
		t.Errorf("it ended as %+v", r)
	}

	through := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=300,itl=10ms", true))
	through.reaches(t, 3, patience)
	old.kill()
	oldPath.resume() // what the old session had still to say comes now
	if err := through.end(t, patience).whole(); err != nil {
		t.Error("a stream of the new session:", err)
	}
	for range 20 {
		if res, body := s.post("/v1/chat/completions", chat("sim-small", "tokens=2", false)); res.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", res.Status, body)
		}
	}
	current := s.node("node-1").generation()
	for _, r := range s.runs() {
		if r.ID != begun.header.Get("X-Iop-Run-Id") && (r.Generation != current || r.Attempts != 1 || r.Outcome != "completed") {
			t.Errorf("a later run: %+v of generation %d", r, current)
		}
	}
	if n := before.stats(t).Started; n != 1 {
		t.Errorf("the old Node's provider has seen %d requests", n)
	}
	s.quiet()
}

// TestEdgeRestart kills the Edge again and again. The Node comes back, and no generation comes twice.
func TestEdgeRestart(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{})
	last := s.online("node-1", patience)
	for range 4 {
		a := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=100000,itl=20ms", true))
		a.reaches(t, 3, patience)
		s.edge.kill()
		if a.end(t, patience); a.err == nil || finished(a.events) {
			t.Error("a stream when the Edge was killed:", a)
		}
		s.sims[0].active(t, 0) // nobody generates for nobody
		s.startEdge()
		generation := s.online("node-1", patience)
		if generation <= last {
			t.Errorf("generation %d after %d", generation, last)
		}
		last = generation
		s.healthy(t)
	}
}

// TestJoinTokenReservesItsName: while a token is bound to a name nobody joins under it with another one, before its Node
// came and after, and exchanging that token leaves no gap.
func TestJoinTokenReservesItsName(t *testing.T) {
	t.Parallel()
	s := newEdge(t)
	sim := s.startSim()
	unbound := s.token
	bound := func() (made struct{ ID, Token string }) {
		s.json(&made, "join-token", "create", "--json", "--node", "gpu-1")
		return made
	}
	launch := func(token string) *process {
		s.token = token
		return s.launchNode("gpu-1", "--provider", "sim="+sim.url)
	}
	squatter := launch(unbound) // guesses the name before it is anybody's
	s.online("gpu-1", patience)
	first := bound()
	owner := launch(first.Token)
	for _, p := range []*process{squatter, launch(unbound)} {
		if line := p.line("node_reserved", patience); !strings.Contains(line, "another join token is bound to it") {
			t.Errorf("a Node without the name's token says %s", line)
		}
	}
	if line := s.edge.line("node_reserved", patience); !strings.Contains(line, "gpu-1") {
		t.Errorf("the Edge says %s", line)
	}
	held := func(by string) func() bool {
		return func() bool {
			n := s.node("gpu-1")
			return n.State == "online" && n.Sessions[0].JoinToken == by
		}
	}
	eventually(t, patience, "the owner has its name", held(first.ID))
	second := bound()
	if err := owner.stop(patience); err != nil {
		t.Error(err)
	}
	launch(second.Token)
	eventually(t, patience, "the new token works while the old one is valid", held(second.ID))
	iop(t, s.env, "join-token", "revoke", first.ID)
	s.healthy(t)
}

// TestJoinTokenClaims: a token says which labels and models its Nodes may have. A Node with another label is refused; other
// models are not offered, and the Node and the operator are told.
func TestJoinTokenClaims(t *testing.T) {
	t.Parallel()
	s := newEdge(t)
	sim := s.startSim("--models", "sim-small,sim-large")
	var made struct {
		Token     string
		Labels    []string
		MaxNodes  int `json:"max_nodes"`
		MaxModels int `json:"max_models"`
	}
	s.json(&made, "join-token", "create", "--json", "--label", "site=l*", "--model", "*-small", "--max-nodes", "2")
	if len(made.Labels) != 1 || made.MaxNodes != 2 || made.MaxModels != 16384 {
		t.Errorf("made %+v", made)
	}
	s.token = made.Token
	liar := s.launchNode("liar", "--provider", "sim="+sim.url, "--labels", "site=prod")
	if line := liar.line("label_not_allowed", patience); !strings.Contains(line, "site=prod") || !strings.Contains(line, "site=l*") {
		t.Errorf("the Node says %s", line)
	}
	node := s.startNode("node-1", "--provider", "sim="+sim.url, "--labels", "site=lab")
	if line := node.line("models_ignored", patience); !strings.Contains(line, "sim-large") {
		t.Errorf("the Node says %s", line)
	}
	if got := s.models(); len(got) != 1 || got[0] != "sim-small" {
		t.Errorf("models %q", got)
	}
	if out := iop(t, s.env, "nodes", "show", "node-1"); !strings.Contains(out, "1 models are not offered") {
		t.Errorf("iop nodes show prints\n%s", out)
	}
	s.startNode("node-2", "--provider", "sim="+sim.url)
	third := s.launchNode("node-3", "--provider", "sim="+sim.url)
	if line := third.line("token_limit", patience); !strings.Contains(line, "--max-nodes") {
		t.Errorf("the third name says %s", line)
	}
}

// TestJoinTokens has Nodes without a right to join. Each is told why, and does not hammer.
func TestJoinTokens(t *testing.T) {
	t.Parallel()
	s := newEdge(t)
	sim := s.startSim()
	token := func(args ...string) (made struct{ ID, Token string }) {
		s.json(&made, append([]string{"join-token", "create", "--json"}, args...)...)
		return made
	}
	good, revoked, expired := s.token, token(), token("--ttl", "1s")
	iop(t, s.env, "join-token", "revoke", revoked.ID)
	<-time.After(1100 * time.Millisecond)

	if out, stderr, err := tryIOP(t, nil, "node", "--edge", "ws://"+s.edgeAddr()); err == nil || !strings.Contains(stderr, "JOIN_TOKEN") {
		t.Errorf("without a token: %v, %s%s", err, out, stderr)
	}
	flipped := []byte(good)
	flipped[len(flipped)/2] ^= 1
	refused := map[string]*process{}
	for name, given := range map[string]string{
		"wrong": string(flipped), "no-token-at-all": "x", "expired": expired.Token, "revoked": revoked.Token, "elsewhere": token("--node", "another").Token,
	} {
		s.token = given
		refused[name] = s.launchNode("node-"+name, "--provider", "sim="+sim.url)
	}
	words := map[string]string{"wrong": "token", "no-token-at-all": "token", "expired": "expired", "revoked": "revoked", "elsewhere": "name"}
	for name, p := range refused {
		var said struct {
			Code, Message string
			RetryIn       string `json:"retry_in"`
		}
		p.jsonLine("retry_in", patience, &said)
		wait, err := time.ParseDuration(said.RetryIn)
		if err != nil || wait < 10*time.Second || said.Code == "" || !strings.Contains(said.Message, words[name]) {
			t.Errorf("%s: %+v", name, said)
		}
		if strings.Contains(p.text(), good) || strings.Contains(p.text(), revoked.Token) {
			t.Errorf("%s: the log shows a token", name)
		}
	}
	if n := s.metric("iop_sessions"); n != 0 {
		t.Errorf("%v sessions", n)
	}

	// A token that was good closes the door behind it when it is revoked.
	late := token()
	s.token = late.Token
	node := s.startNode("node-late", "--provider", "sim="+sim.url)
	a := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=100000,itl=20ms", true))
	a.reaches(t, 3, patience)
	iop(t, s.env, "join-token", "revoke", late.ID)
	if err := a.end(t, patience).broken(); err != nil {
		t.Error("a run of a session whose token was revoked:", err)
	}
	eventually(t, grace, "its Node is offline", func() bool { return s.node("node-late").State == "offline" })
	if line := node.line("refused", patience); !strings.Contains(line, "revoked") {
		t.Errorf("its Node says %s", line)
	}
	sim.active(t, 0)
	s.quiet()
}
