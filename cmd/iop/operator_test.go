package main

import (
	"encoding/json"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"iop/gateway/admin"
)

// site is an Edge in this process, and a state directory that the commands find through the environment.
type site struct {
	t    *testing.T
	dir  string
	edge *command
	url  string // of the public API, without /v1
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir()}
	t.Setenv("IOP_EDGE_STATE", "sqlite://"+filepath.Join(s.dir, "state", "iop.db"))
	t.Setenv("IOP_ADMIN_URL", "http://127.0.0.1:1") // nothing listens there
	return s
}

func (s *site) startEdge(flags ...string) {
	s.t.Helper()
	s.edge = begin(s.t, append([]string{"edge", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--drain-timeout", "1s"}, flags...)...)
	var line struct{ Public, Admin string }
	s.edge.object(`"listening"`, &line)
	s.url = "http://" + line.Public
	s.t.Setenv("IOP_ADMIN_URL", "http://"+line.Admin)
}

// must runs a command that must succeed, and returns what it printed to standard output.
func (s *site) must(args ...string) string {
	s.t.Helper()
	status, stdout, stderr := execute(s.t, args...)
	if status != exitOK {
		s.t.Fatalf("iop %s: status %d: %s", strings.Join(args, " "), status, stderr)
	}
	return stdout
}

// ask runs a command with --json and decodes its answer.
func (s *site) ask(v any, args ...string) {
	s.t.Helper()
	out := s.must(append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		s.t.Fatalf("iop %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// startNode joins a Node with that name, and waits until it is online.
func (s *site) startNode(name, tokenFile, provider string) *command {
	s.t.Helper()
	c := begin(s.t, "node", "--edge", "ws"+strings.TrimPrefix(s.url, "http")+"/tunnel/v1", "--name", name,
		"--join-token-file", tokenFile, "--provider", "sim="+provider, "--labels", "site=lab", "--drain-timeout", "1s")
	eventually(s.t, name+" is online", func() bool { return s.node(name).State == "online" })
	return c
}

func (s *site) node(name string) admin.Node {
	s.t.Helper()
	var list listing[admin.Node]
	s.ask(&list, "nodes")
	for _, n := range list.Data {
		if string(n.Node) == name {
			return n
		}
	}
	return admin.Node{}
}

// TestOperator walks an operator's whole day: key and token before the Edge runs, a Node, a run watched and cancelled, a
// drain, revocations.
func TestOperator(t *testing.T) {
	s := newSite(t)
	provider := startSim(t)

	var key admin.Key
	s.ask(&key, "key", "create", "--name", "alice", "--routes", "sim-*") // no Edge runs: on the state itself
	if key.ID == "" || !strings.HasPrefix(key.Key, "sk-iop_") || key.Name != "alice" {
		t.Fatalf("key %+v", key)
	}
	s.startEdge()
	tokenFile := filepath.Join(s.dir, "token")
	s.must("join-token", "create", "--node", "n1", "--out", tokenFile)
	s.startNode("n1", tokenFile, provider.URL())
	if labels := s.node("n1").Sessions[0].Labels; labels["site"] != "lab" {
		t.Errorf("labels %v", labels)
	}

	streamed(t, chat(t, s.url+"/v1", key.Key, "sim-small", "tokens=5"))
	if out := s.must("status"); !strings.Contains(out, "1 online") || !strings.Contains(out, "sim-small") {
		t.Errorf("status:\n%s", out)
	}
	s.looksAround(key)
	s.cancelOne(key.Key)
	s.drainAndResume()

	s.must("key", "revoke", string(key.ID))
	response := chat(t, s.url+"/v1", key.Key, "sim-small", "tokens=1")
	if response.StatusCode != http.StatusUnauthorized {
		t.Errorf("a revoked key: %s", response.Status)
	}
	if out := s.must("key", "list"); !strings.Contains(out, "revoked") || strings.Contains(out, key.Key) {
		t.Errorf("key list:\n%s", out)
	}
	var tokens listing[admin.JoinToken]
	s.ask(&tokens, "join-token", "list")
	if len(tokens.Data) != 1 || tokens.Data[0].Node != "n1" || tokens.Data[0].Token != "" {
		t.Fatalf("tokens %+v", tokens)
	}
	s.must("join-token", "revoke", string(tokens.Data[0].ID))
	eventually(t, "n1 is offline", func() bool { return s.node("n1").State == "offline" })
}

// looksAround asks for what the one run that has ended left behind.
func (s *site) looksAround(key admin.Key) {
	t := s.t
	t.Helper()
	if out := s.must("routes"); !strings.Contains(out, "sim-small") || !strings.Contains(out, "in service") || !strings.Contains(out, "0/") {
		t.Errorf("routes:\n%s", out)
	}
	var routes listing[admin.Route]
	s.ask(&routes, "routes")
	if len(routes.Data) == 0 || !routes.Data[0].Advertised || len(routes.Data[0].Groups) != 1 || routes.Data[0].Groups[0].Targets[0].Node != "n1" {
		t.Errorf("routes %+v", routes)
	}
	var queue listing[admin.Queue]
	if s.ask(&queue, "queue"); len(queue.Data) != 0 {
		t.Errorf("queue %+v", queue)
	}
	var usage admin.Usage
	s.ask(&usage, "usage", "--by", "key,route,node,outcome", "--since", "1d")
	if len(usage.Data) != 1 || usage.Data[0].Key != string(key.ID) || usage.Data[0].Route != "sim-small" || usage.Data[0].Node != "n1" ||
		usage.Data[0].Outcome != "completed" || usage.Data[0].Output != 5 || usage.Data[0].Runs != 1 {
		t.Errorf("usage %+v", usage)
	}
	if out := s.must("usage", "--by", "model"); !strings.Contains(out, "sim-small") || !strings.Contains(out, "total") {
		t.Errorf("usage:\n%s", out)
	}
	if rows := strings.Split(s.must("usage", "--records", "--csv"), "\r\n"); len(rows) != 3 || !strings.Contains(rows[1], ",sim-small,chat.completions,n1,") {
		t.Errorf("records %q", rows)
	}
	var runs listing[admin.Run]
	s.ask(&runs, "runs", "--key", string(key.ID), "--run-state", "ended")
	if len(runs.Data) != 1 || runs.Data[0].Route != "sim-small" || runs.Data[0].Reason == "" {
		t.Fatalf("runs %+v", runs)
	}
	id := string(runs.Data[0].ID)
	if out := s.must("run", "show", id); !strings.Contains(out, id) || !strings.Contains(out, "completed") || !strings.Contains(out, "sim-small") || !strings.Contains(out, "n1") {
		t.Errorf("run show:\n%s", out)
	}
	var one admin.Run
	if s.ask(&one, "runs", "show", id); string(one.ID) != id || one.Reason == "" {
		t.Errorf("%+v", one)
	}
	status, _, stderr := execute(t, "cancel", id)
	if status != exitFailed || !strings.Contains(stderr, "has already ended") {
		t.Errorf("cancel of an ended run: status %d, %q", status, stderr)
	}
}

// cancelOne cancels a run through the commands, and sees it end in the list.
func (s *site) cancelOne(key string) {
	t := s.t
	t.Helper()
	follow := begin(t, "runs", "--follow", "--json") // it may get there late, and then begins with the ended run
	response := chat(t, s.url+"/v1", key, "sim-small", "tokens=1000,itl=20ms")
	id := response.Header.Get("X-Iop-Run-Id")
	if out := s.must("runs"); !strings.Contains(out, id) || !strings.Contains(out, "streaming") {
		t.Errorf("runs lacks %s, streaming:\n%s", id, out)
	}
	s.must("cancel", id)
	var ended admin.Run
	follow.object(`"outcome":"cancelled"`, &ended)
	if string(ended.ID) != id || ended.Code != "cancelled_by_operator" {
		t.Errorf("ended is %s, %s, and not %s", ended.ID, ended.Code, id)
	}
	follow.end()
}

func (s *site) drainAndResume() {
	s.t.Helper()
	s.must("drain", "n1")
	if state := s.node("n1").State; state != "drained" {
		s.t.Errorf("after drain: %s", state)
	}
	s.must("drain", "n1", "--resume")
	if state := s.node("n1").State; state != "online" {
		s.t.Errorf("after --resume: %s", state)
	}
}

func TestSecretIsPrintedAlone(t *testing.T) {
	newSite(t)
	status, stdout, stderr := execute(t, "join-token", "create")
	if status != exitOK || !strings.HasPrefix(stdout, "njt-iop_") || strings.Count(stdout, "\n") != 1 || !strings.Contains(stderr, "shown only once") {
		t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
}

// TestSecretIsDeliveredOnce: with --out the JSON on standard output, which a job's log may keep, is without the secret.
func TestSecretIsDeliveredOnce(t *testing.T) {
	s := newSite(t)
	for _, create := range [][]string{{"join-token", "create"}, {"key", "create", "--name", "a"}} {
		file := filepath.Join(s.dir, create[0])
		status, stdout, stderr := execute(t, append(create, "--json", "--out", file)...)
		secret, err := os.ReadFile(file)
		if status != exitOK || err != nil || len(secret) < 20 || !strings.Contains(stdout, `"id"`) {
			t.Fatalf("%s: status %d, %q, %q, %v", create[0], status, stdout, stderr, err)
		}
		if strings.Contains(stdout+stderr, strings.TrimSpace(string(secret))) {
			t.Errorf("%s: printed as well: %s%s", create[0], stdout, stderr)
		}
	}
}

// TestSecretForAFileThatCannotBe: none is made that could only be revoked.
func TestSecretForAFileThatCannotBe(t *testing.T) {
	s := newSite(t)
	s.must("key", "create", "--name", "before")
	s.must("join-token", "create")
	for _, create := range [][]string{{"join-token", "create"}, {"key", "create", "--name", "a"}} {
		status, _, stderr := execute(t, append(create, "--out", filepath.Join(s.dir, "none", "file"))...)
		if status != exitFailed || !strings.Contains(stderr, "can't create a file in "+filepath.Join(s.dir, "none")) || strings.Contains(stderr, "revoke") {
			t.Errorf("%s: status %d, %q", create[0], status, stderr)
		}
		var made listing[any]
		if s.ask(&made, create[0], "list"); len(made.Data) != 1 {
			t.Errorf("%s: made %v", create[0], made.Data)
		}
	}
}

func TestSecretToFile(t *testing.T) {
	s := newSite(t)
	file := filepath.Join(s.dir, "key")
	status, stdout, _ := execute(t, "key", "create", "--name", "a", "--out", file)
	info, err := os.Stat(file)
	if status != exitOK || stdout != "" || err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("status %d, stdout %q, %v, %v", status, stdout, info, err)
	}
	before, _ := os.ReadFile(file)
	if status, _, stderr := execute(t, "key", "create", "--name", "b", "--out", file); status != exitFailed || !strings.Contains(stderr, "already exists") {
		t.Errorf("a second time: status %d, %q", status, stderr)
	}
	s.must("key", "create", "--name", "b", "--out", file, "--if-missing")
	after, _ := os.ReadFile(file)
	var keys listing[admin.Key]
	s.ask(&keys, "key", "list")
	if string(before) != string(after) || len(keys.Data) != 1 {
		t.Errorf("--if-missing made %d keys, and the file changed: %v", len(keys.Data), string(before) != string(after))
	}
	if left, _ := fs.Glob(os.DirFS(s.dir), ".iop-*"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestOperatorFaults(t *testing.T) {
	s := newSite(t)
	tests := []struct {
		args   string
		status int
		stderr string
	}{
		{"status", exitUsage, "no admin token"},
		{"key list", exitFailed, "no state at"},
		{"key revoke x", exitFailed, "no state at"},
		{"key revoke", exitUsage, "needs the key's name or id"},
		{"key create", exitUsage, "--name"},
		{"key create --name a --expires -1h", exitUsage, "--expires"},
		{"key create --name a --if-missing", exitUsage, "--out"},
		{"key", exitFailed, "no state at"},
		{"key remove", exitUsage, "unknown command"},
		{"join-token create --node a/b", exitUsage, "--node"},
		{"join-token create --ttl 1ms", exitUsage, "--ttl"},
		{"join-token create --label site", exitUsage, "--label"},
		{"join-token create --model [a]", exitUsage, "--model"},
		{"join-token create --max-nodes -1", exitUsage, "--max-nodes"},
		{"join-token create --max-inventory-bytes 999999999999", exitUsage, "--max-inventory-bytes"},
		{"nodes --admin-url nonsense", exitUsage, "IOP_ADMIN_URL"},
		{"cancel", exitUsage, "needs the run's id"},
		{"runs --limit -1", exitUsage, "--limit"},
		{"key create --name a --admin-url http://edge.invalid:8481", exitUsage, "no admin token"},
	}
	for _, test := range tests {
		t.Run(test.args, func(t *testing.T) {
			status, _, stderr := execute(t, strings.Fields(test.args)...)
			if status != test.status || !strings.Contains(stderr, test.stderr) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("status %d, stderr %q; want %d, one line with %q", status, stderr, test.status, test.stderr)
			}
		})
	}
	if _, err := os.Stat(filepath.Join(s.dir, "state")); err == nil {
		t.Error("a command that only looks made a state")
	}

	s.startEdge()
	t.Setenv("IOP_ADMIN_TOKEN", "adm-iop_"+canary)
	status, _, stderr := execute(t, "status")
	if status != exitFailed || !strings.Contains(stderr, "admin token") || strings.Contains(stderr, canary) {
		t.Errorf("a wrong admin token: status %d, stderr %q", status, stderr)
	}
	t.Setenv("IOP_ADMIN_TOKEN", "")
	if status, _, stderr := execute(t, "cancel", "run_none"); status != exitFailed || !strings.Contains(stderr, "no such run") {
		t.Errorf("cancel of no run: status %d, stderr %q", status, stderr)
	}
	if status, _, stderr := execute(t, "key", "revoke", "none"); status != exitFailed || !strings.Contains(stderr, `no key has the id or the name "none"`) {
		t.Errorf("revoke of no key: status %d, stderr %q", status, stderr)
	}
}
