package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// stack is an Edge, Nodes and simulators, each a process of its own.
type stack struct {
	t     *testing.T
	edge  *process
	url   string // http://127.0.0.1:port, without /v1
	admin string
	state string
	key   string
	token string // join token, for any Node name
	env   []string
	sims  []*simulator
	nodes []*process
}

type simulator struct {
	*process
	url string
}

// stackConfig says what newStack starts. The zero value is one Edge, one simulator and one Node.
type stackConfig struct {
	edgeArgs []string
	simArgs  []string
	nodeArgs []string
	// provider replaces the simulator: a SPEC for the Node.
	provider string
	noNode   bool
}

func newStack(t *testing.T, cfg stackConfig) *stack {
	t.Helper()
	s := newEdge(t, cfg.edgeArgs...)
	if cfg.noNode {
		return s
	}
	spec := cfg.provider
	if spec == "" {
		spec = "sim=" + s.startSim(cfg.simArgs...).url
	}
	s.startNode("node-1", append([]string{"--provider", spec}, cfg.nodeArgs...)...)
	return s
}

// newEdge starts an Edge alone, with a key and a join token.
func newEdge(t *testing.T, args ...string) *stack {
	t.Helper()
	s := &stack{t: t, state: "sqlite://" + filepath.Join(t.TempDir(), "iop.db")}
	listen, admin := freePort(t), freePort(t)
	s.url, s.admin = "http://"+listen, "http://"+admin
	s.env = []string{"IOP_EDGE_STATE=" + s.state, "IOP_ADMIN_URL=" + s.admin}
	s.key = s.newKey("e2e")
	var made struct{ Token string }
	s.json(&made, "join-token", "create", "--json")
	s.token = made.Token
	s.startEdge(args...)
	return s
}

// startEdge starts the Edge (again) on the addresses and the state of before.
func (s *stack) startEdge(args ...string) {
	s.t.Helper()
	args = append([]string{
		"edge", "--listen", strings.TrimPrefix(s.url, "http://"), "--admin-listen", strings.TrimPrefix(s.admin, "http://"), "--state", s.state,
	}, args...)
	s.edge = start(s.t, "edge", nil, args...)
	eventually(s.t, patience, "the Edge is ready", func() bool {
		select {
		case <-s.edge.done:
			s.t.Fatalf("the Edge exited:\n%s", s.edge.text())
		default:
		}
		res, err := http.Get(s.url + "/readyz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// json runs a command that prints JSON.
func (s *stack) json(v any, args ...string) {
	s.t.Helper()
	out := iop(s.t, s.env, args...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		s.t.Fatalf("iop %s printed %q: %v", strings.Join(args, " "), out, err)
	}
}

// newKey makes an API key.
func (s *stack) newKey(name string, args ...string) string {
	s.t.Helper()
	var made struct{ Key string }
	s.json(&made, append([]string{"key", "create", "--name", name, "--json"}, args...)...)
	if made.Key == "" {
		s.t.Fatal("key create gave no key")
	}
	return made.Key
}

// startSim starts a simulator on a port of its own, which it finds again when it is started anew: nobody is given it
// meanwhile.
func (s *stack) startSim(args ...string) *simulator {
	s.t.Helper()
	p := start(s.t, "sim-"+strconv.Itoa(len(s.sims)+1), nil, append([]string{"sim", "--listen", freePort(s.t), "--json"}, args...)...)
	var ready struct{ URL string }
	p.jsonLine("url", patience, &ready)
	sim := &simulator{process: p, url: ready.URL}
	s.sims = append(s.sims, sim)
	return sim
}

// startNode starts a Node and waits until the Edge lists a model of it.
func (s *stack) startNode(name string, args ...string) *process {
	s.t.Helper()
	p := s.launchNode(name, args...)
	eventually(s.t, patience, name+" serves a model", func() bool { return s.nodeOnline(name) && len(s.models()) > 0 })
	return p
}

// launchNode starts a Node without waiting for it.
func (s *stack) launchNode(name string, args ...string) *process {
	s.t.Helper()
	env := []string{"IOP_NODE_EDGE=ws" + strings.TrimPrefix(s.url, "http") + "/tunnel/v1", "IOP_NODE_NAME=" + name, "IOP_NODE_JOIN_TOKEN=" + s.token}
	p := start(s.t, name, env, append([]string{"node"}, args...)...)
	s.nodes = append(s.nodes, p)
	return p
}

// nodeOnline reports whether the Node is connected and may get runs.
func (s *stack) nodeOnline(name string) bool { return s.node(name).State == "online" }

// models lists what /v1/models says.
func (s *stack) models() []string {
	res, body := s.get("/v1/models")
	if res.StatusCode != http.StatusOK {
		return nil
	}
	var list struct{ Data []struct{ ID string } }
	if err := json.Unmarshal(body, &list); err != nil {
		s.t.Fatalf("/v1/models: %v in %s", err, body)
	}
	var ids []string
	for _, m := range list.Data {
		ids = append(ids, m.ID)
	}
	return ids
}

func (s *stack) get(path string) (*http.Response, []byte) {
	s.t.Helper()
	return s.do("GET", path, nil, nil)
}

// post sends a JSON body with the stack's key and reads the whole answer.
func (s *stack) post(path string, body any) (*http.Response, []byte) {
	s.t.Helper()
	return s.do("POST", path, body, nil)
}

func (s *stack) do(method, path string, body any, header http.Header) (*http.Response, []byte) {
	s.t.Helper()
	res, err := http.DefaultClient.Do(s.request(method, path, body, header))
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatalf("%s %s: %v after %q", method, path, err, tail(string(data), 500))
	}
	return res, data
}

// request makes a request with the stack's key; body is []byte, string or anything that json takes.
func (s *stack) request(method, path string, body any, header http.Header) *http.Request {
	s.t.Helper()
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case []byte:
		r = bytes.NewReader(b)
	case string:
		r = strings.NewReader(b)
	default:
		data, err := json.Marshal(b)
		if err != nil {
			s.t.Fatal(err)
		}
		r = bytes.NewReader(data)
	}
	req, err := http.NewRequest(method, s.url+path, r)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	if r != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, values := range header {
		req.Header[name] = values
	}
	return req
}

// chat is a chat request with knobs for the simulator (see `iop sim --help`).
func chat(model, knobs string, stream bool) map[string]any {
	return map[string]any{
		"model": model, "stream": stream, "user": "sim:" + knobs,
		"messages": []map[string]string{{"role": "user", "content": "hello"}},
	}
}

// metric reads the sum of a metric's samples from the Edge.
func (s *stack) metric(name string) float64 {
	s.t.Helper()
	req, err := http.NewRequest("GET", s.admin+"/metrics", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.adminToken())
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		s.t.Fatalf("/metrics: %s, %v", res.Status, err)
	}
	sum, found := 0.0, false
	for line := range strings.Lines(string(body)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || (rest[0] != ' ' && rest[0] != '{') {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
		if err != nil {
			s.t.Fatalf("metric line %q: %v", line, err)
		}
		sum, found = sum+v, true
	}
	if !found {
		s.t.Fatalf("no metric %s", name)
	}
	return sum
}

// adminToken reads the token that the Edge wrote to its state directory.
func (s *stack) adminToken() string {
	s.t.Helper()
	data, err := readFile(filepath.Join(filepath.Dir(strings.TrimPrefix(s.state, "sqlite://")), "admin-token"))
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(data)
}

// settled waits until nothing runs any more: every gauge of work is back to 0.
func (s *stack) settled() {
	s.t.Helper()
	for _, gauge := range []string{"iop_runs_in_flight", "iop_queued", "iop_streams", "iop_body_budget_bytes"} {
		eventually(s.t, patience, gauge+" is 0", func() bool { return s.metric(gauge) == 0 })
	}
}
