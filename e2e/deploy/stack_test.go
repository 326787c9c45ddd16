//go:build docker

package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// servers are the containers that go on running, jobs those that end with 0. Grafana is in neither: Debian has none, so its
// image can't be made here; TestDashboards holds its files against Prometheus instead.
var (
	servers = []string{"edge", "node-1", "node-2", "sim", "prometheus", "ollama", "node-ollama", "edge-managed", "node-managed", "sim-managed"}
	jobs    = []string{"join", "managed-certificates", "managed-slots"}
)

// compose is the stack of deploy/docker-compose.yml, under one of the programs that read it.
type compose struct {
	t       *testing.T
	program []string // docker-compose, or docker compose
	env     []string
	project string
	backup  string            // a file that the guide makes
	port    map[string]string // by the variable that sets it
	stuck   bool              // the engine does not let go of the network
}

// composePrograms are those that this machine has.
func composePrograms() (programs [][]string) {
	if _, err := exec.LookPath("docker-compose"); err == nil {
		programs = append(programs, []string{"docker-compose"})
	}
	if _, err := tryCommand(nil, nil, "docker", "compose", "version"); err == nil {
		programs = append(programs, []string{"docker", "compose"})
	}
	return programs
}

func newCompose(t *testing.T, program []string, images map[string]string) *compose {
	t.Helper()
	c := &compose{t: t, program: program, project: fmt.Sprintf("ioptest%d", os.Getpid()), backup: filepath.Join(t.TempDir(), "backup"), port: map[string]string{}}
	for variable, image := range images {
		c.env = append(c.env, variable+"="+image)
	}
	for _, variable := range []string{"IOP_PORT", "IOP_ADMIN_PORT", "IOP_PROMETHEUS_PORT", "IOP_MANAGED_PORT", "IOP_MANAGED_ADMIN_PORT"} {
		c.port[variable] = freePort(t)
		c.env = append(c.env, variable+"="+c.port[variable])
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := c.try("logs", "--no-color", "--tail=40")
			t.Log(out)
		}
		c.down("-t", "2")
	})
	return c
}

// down types `down -v`. An engine may keep the endpoint of a container that it has removed (moby/moby#23302 and #33156 tell
// of it, and 28.2.2 did it here once in some twenty runs) and then refuses to remove the network. Compose has no share in
// that, nor has what it started: once no container is left the endpoint is taken out as those reports say. Anything else that
// keeps the network is an error.
func (c *compose) down(args ...string) {
	c.t.Helper()
	_, err := c.try(append([]string{"down", "-v"}, args...)...)
	if err == nil {
		return
	}
	network := c.project + "_default"
	if !strings.Contains(err.Error(), "has active endpoints") || c.left("ps", "-a", "-q") != "" {
		c.t.Error(err)
		return
	}
	orphans := strings.Fields(command(c.t, nil, docker, "network", "inspect", "-f", "{{range .Containers}}{{.Name}} {{end}}", network))
	c.t.Logf("the engine kept endpoints of containers that it has removed: %q", orphans)
	for _, orphan := range orphans {
		if _, err := tryCommand(nil, nil, docker, "inspect", orphan); err == nil {
			c.t.Errorf("%s is in the network", orphan)
		}
		_, err := tryCommand(nil, nil, docker, "network", "disconnect", "-f", network, orphan)
		c.t.Logf("%s taken out of the network: %v", orphan, err)
	}
	if _, err := c.try("down", "-v"); err != nil {
		c.t.Logf("nothing but the network is left, and the engine still does not let go of it: %v", err)
		c.stuck = true
	}
}

// left lists what the engine has of the stack.
func (c *compose) left(list ...string) string {
	c.t.Helper()
	return command(c.t, nil, docker, append(list, "--filter", "label=com.docker.compose.project="+c.project)...)
}

func (c *compose) try(args ...string) (string, error) {
	all := append(slices.Clone(c.program[1:]), "-p", c.project, "-f", filepath.Join(deployDir, "docker-compose.yml"), "--profile", "ollama", "--profile", "managed")
	return tryCommand(c.env, nil, c.program[0], append(all, args...)...)
}

func (c *compose) do(args ...string) string {
	c.t.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// up brings all of it up.
func (c *compose) up() {
	c.t.Helper()
	c.do(slices.Concat([]string{"up", "-d", "--no-build"}, servers, jobs)...)
}

// container is what the engine says of one.
type container struct {
	ID    string
	Name  string
	State struct {
		Status    string
		Pid       int
		ExitCode  int
		StartedAt string
		Health    *struct{ Status string }
	}
	RestartCount int
	Config       struct{ User string }
	HostConfig   struct {
		ReadonlyRootfs bool
		CapDrop        []string
		SecurityOpt    []string
		Privileged     bool
	}
}

func (c *compose) inspect(service string) container {
	c.t.Helper()
	id := strings.TrimSpace(c.do("ps", "-q", service))
	if id == "" { // Compose 2 leaves out what has ended
		id = strings.TrimSpace(c.do("ps", "-a", "-q", service))
	}
	var found []container
	if err := json.Unmarshal([]byte(command(c.t, nil, docker, "inspect", id)), &found); err != nil || len(found) != 1 {
		c.t.Fatalf("%s: %v, %d containers", service, err, len(found))
	}
	return found[0]
}

// inspectAll inspects every container.
func (c *compose) inspectAll() map[string]container {
	c.t.Helper()
	all := map[string]container{}
	for _, service := range slices.Concat(servers, jobs) {
		all[service] = c.inspect(service)
	}
	return all
}

// nodes are the Nodes that can get runs at an Edge, with their generations.
func (c *compose) nodes(edge string) map[string]uint64 {
	c.t.Helper()
	var list struct {
		Data []struct {
			Node, State string
			Sessions    []struct{ Generation uint64 } // the current one first
		}
	}
	out := c.do("exec", "-T", edge, "/iop", "nodes", "--json")
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		c.t.Fatalf("%v in %s", err, out)
	}
	online := map[string]uint64{}
	for _, n := range list.Data {
		if n.State == "online" && len(n.Sessions) > 0 {
			online[n.Node] = n.Sessions[0].Generation
		}
	}
	return online
}

// client is OpenAI's for one Edge, with a key made in its container.
func (c *compose) client(edge, port string) openai.Client {
	c.t.Helper()
	key := strings.TrimSpace(c.do("exec", "-T", edge, "/iop", "key", "create", "--name", "test"))
	return openai.NewClient(option.WithBaseURL("http://127.0.0.1:"+c.port[port]+"/v1"), option.WithAPIKey(key), option.WithMaxRetries(0))
}

// stream reads one streamed answer, and returns how many chunks it had.
func stream(ctx context.Context, client openai.Client, model string) (chunks int, err error) {
	s := client.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{
		Model: model, User: openai.String("sim:tokens=8"),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello")},
	})
	defer s.Close()
	finished := false
	for s.Next() {
		chunks++
		for _, choice := range s.Current().Choices {
			finished = finished || choice.FinishReason != ""
		}
	}
	if err := s.Err(); err != nil {
		return chunks, err
	}
	if !finished || chunks < 2 {
		return chunks, fmt.Errorf("%d chunks, with an end: %v", chunks, finished)
	}
	return chunks, nil
}

// TestComposeStack brings the stack up as docs/docker.md says, uses it, breaks it and takes it down.
func TestComposeStack(t *testing.T) {
	programs := composePrograms()
	if len(programs) == 0 {
		t.Skip("there is neither docker-compose nor docker compose here")
	}
	tag := func(name string) string { return "iop-test/" + name + ":" + strconv.Itoa(os.Getpid()) }
	makeIOPImage(t, tag("iop"))
	makePrometheusImage(t, tag("prometheus"))
	makeToolsImage(t, tag("tools"), tag("iop"), tag("shell"))
	makeOllamaImage(t, tag("ollama"), tag("iop"))
	images := map[string]string{
		"IOP_IMAGE": tag("iop"), "IOP_TOOLS_IMAGE": tag("tools"), "IOP_PROMETHEUS_IMAGE": tag("prometheus"), "IOP_OLLAMA_IMAGE": tag("ollama"),
	}
	for _, program := range programs {
		t.Run(strings.Join(program, "_"), func(t *testing.T) { useStack(t, newCompose(t, program, images)) })
	}
}

// useStack types docs/docker.md, and then does what nobody does on purpose.
func useStack(t *testing.T, c *compose) {
	blocks := guideBlocks(t, "docker.md")
	for _, block := range blocks {
		if strings.Contains(block, "docker build") { // make test-image does it
			continue
		}
		out := c.enter(block)
		switch {
		case strings.Contains(block, "curl -N"):
			if !strings.Contains(out, "data: [DONE]") {
				t.Errorf("no stream:\n%s", out)
			}
			if strings.Contains(block, "audit") && !strings.Contains(out, "lease_issued") {
				t.Errorf("no lease in the audit:\n%s", out)
			}
		case strings.Contains(block, "iop nodes") && !strings.Contains(out, "node-2"):
			t.Errorf("%s", out)
		case strings.Contains(block, "docker cp"):
			c.restore()
		}
	}
	eventually(t, time.Minute, "three Nodes are online", func() bool { return len(c.nodes("edge")) == 3 })
	plain, managed := c.client("edge", "IOP_PORT"), c.client("edge-managed", "IOP_MANAGED_PORT")
	for _, ask := range []struct {
		client openai.Client
		model  string
	}{{plain, "sim-small"}, {plain, "llama3.2:1b"}, {managed, "sim-small"}} {
		if _, err := stream(t.Context(), ask.client, ask.model); err != nil {
			t.Errorf("%s: %v", ask.model, err)
		}
	}
	checkHardening(t, c.inspectAll())
	checkPrometheus(t, c, plain)
	checkKilledNode(t, c, plain)
	checkUpAgain(t, c, plain)
	checkDown(t, c)
}

// enter types a block of the guide, for this stack instead of the one that has the name of the directory. `up` names the
// services, because there is no image of Grafana, and builds nothing, because no image can be pulled. After it whoever types
// looks whether the Nodes are there.
func (c *compose) enter(block string) string {
	c.t.Helper()
	compose := strings.Join(c.program, " ") + " -p " + c.project + " -f " + filepath.Join(deployDir, "docker-compose.yml")
	up := func(profile, edge, node string) string {
		services := slices.DeleteFunc(slices.Concat(servers, jobs), func(s string) bool {
			return strings.Contains(s, "managed") && profile != "managed" || strings.Contains(s, "ollama") && profile != "ollama"
		})
		return " up -d --no-build " + strings.Join(services, " ") + "\nuntil " + compose + " --profile ollama --profile managed exec -T " +
			edge + " /iop nodes | grep " + node + " | grep -qE 'sim-|llama'; do sleep 0.3; done\n"
	}
	return command(c.t, c.env, "timeout", "300", "bash", "-euc", strings.NewReplacer(
		"docker compose -f deploy/docker-compose.yml build edge\n", "",
		"docker compose -f deploy/docker-compose.yml up -d\n", compose+up("", "edge", "node-2"),
		"docker compose -f deploy/docker-compose.yml --profile ollama up -d\n", compose+" --profile ollama"+up("ollama", "edge", "node-ollama"),
		"docker compose -f deploy/docker-compose.yml --profile managed up -d\n", compose+" --profile managed"+up("managed", "edge-managed", "node-1"),
		"docker compose -f deploy/docker-compose.yml", compose,
		"docker cp", docker+" cp", "iop-backup.tar", c.backup,
		"127.0.0.1:8480", "127.0.0.1:"+c.port["IOP_PORT"], "127.0.0.1:8580", "127.0.0.1:"+c.port["IOP_MANAGED_PORT"],
	).Replace(block))
}

// restore puts the backup back under a state that has gone on, as the guide says, and sees that it counts.
func (c *compose) restore() {
	c.t.Helper()
	late := strings.TrimSpace(c.do("exec", "-T", "edge", "/iop", "key", "create", "--name", "made later"))
	edge := c.inspect("edge").ID
	c.do("stop", "edge")
	command(c.t, nil, "bash", "-euc", `"$0" cp - "$1:/var/lib/iop" < "$2"`, docker, edge, c.backup)
	c.do("start", "edge")
	eventually(c.t, time.Minute, "the Edge is back", func() bool {
		_, err := c.try("exec", "-T", "edge", "/iop", "status")
		return err == nil
	})
	req, err := http.NewRequest("GET", "http://127.0.0.1:"+c.port["IOP_PORT"]+"/v1/models", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+late)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized {
		c.t.Errorf("a key that was made after the backup: %s", res.Status)
	}
}

// checkHardening: what we start may do little, and is well.
func checkHardening(t *testing.T, all map[string]container) {
	t.Helper()
	for service, c := range all {
		h := c.HostConfig
		if service != "ollama" && (!h.ReadonlyRootfs || !slices.Equal(h.CapDrop, []string{"ALL"}) || !slices.Contains(h.SecurityOpt, "no-new-privileges:true")) {
			t.Errorf("%s: read-only %v, capabilities dropped %q, %q", service, h.ReadonlyRootfs, h.CapDrop, h.SecurityOpt)
		}
		if user, _, _ := strings.Cut(c.Config.User, ":"); user == "" || user == "0" || user == "root" || h.Privileged {
			t.Errorf("%s runs as %q, privileged %v", service, c.Config.User, h.Privileged)
		}
		want := "running"
		if slices.Contains(jobs, service) {
			want = "exited"
		}
		if c.State.Status != want || c.State.ExitCode != 0 {
			t.Errorf("%s is %s, exit %d", service, c.State.Status, c.State.ExitCode)
		}
		if strings.HasPrefix(service, "edge") && (c.State.Health == nil || c.State.Health.Status != "healthy") {
			t.Errorf("%s: health is %v", service, c.State.Health)
		}
	}
}

// freePort returns a port of loopback that nobody listens on, below those that the system gives to connections.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(10000 + rand.IntN(22000))
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("found no free port in a hundred tries")
	return ""
}

// eventually polls a condition that other processes bring about.
func eventually(t *testing.T, within time.Duration, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !cond(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in %s: %s", within, what)
		}
	}
}

// query asks Prometheus and returns how many series it has for an expression.
func (c *compose) query(expression string) (series int, err error) {
	res, err := http.Get("http://127.0.0.1:" + c.port["IOP_PROMETHEUS_PORT"] + "/api/v1/query?query=" + url.QueryEscape(expression))
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return 0, err
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("%s: %s", expression, answer.Error)
	}
	return len(answer.Data.Result), nil
}

// onlyAfterTrouble tells that a metric has no series before the trouble that it counts.
func (q panelQuery) onlyAfterTrouble() bool {
	for _, metric := range []string{
		"iop_run_errors_total", "iop_requests_refused_total", "iop_node_refusals_total", "iop_invalid_keys_total", "iop_breakers",
		"iop_leases_refused_total", "iop_peer_refusals_total", "iop_queue_wait_seconds", `outcome="failed"`,
	} {
		if strings.Contains(q.expr, metric) && !strings.Contains(q.expr, "vector(0)") {
			return true
		}
	}
	return false
}

// checkPrometheus: both Edges are scraped, the rules are loaded, and each query of each dashboard finds something, once there
// is traffic and once somebody has knocked with a wrong key.
func checkPrometheus(t *testing.T, c *compose, client openai.Client) {
	t.Helper()
	eventually(t, time.Minute, "both Edges are scraped", func() bool {
		n, err := c.query(`up{job="iop"} == 1`)
		return err == nil && n == 2
	})
	if n, err := c.query(`ALERTS{alertstate="firing"}`); err != nil || n != 0 {
		t.Errorf("%d alerts, %v", n, err)
	}
	want := map[string]string{} // query to panel
	for _, q := range allQueries(t) {
		if !q.onlyAfterTrouble() {
			want[q.expression("1m")] = q.panel
		}
	}
	if len(want) < 40 {
		t.Fatalf("%d queries", len(want))
	}
	eventually(t, time.Minute, "the dashboards have data", func() bool {
		if _, err := stream(t.Context(), client, "sim-small"); err != nil {
			t.Fatal(err)
		}
		for expression := range want {
			n, err := c.query(expression)
			if err != nil {
				t.Fatal(err)
			}
			if n > 0 {
				delete(want, expression)
			}
		}
		if len(want) > 0 {
			t.Logf("no data yet: %v", want)
		}
		return len(want) == 0
	})
}

// checkKilledNode: a Node whose process dies is missed by nobody, and comes back by itself.
func checkKilledNode(t *testing.T, c *compose, client openai.Client) {
	t.Helper()
	generation := c.nodes("edge")["node-1"]
	node := c.inspect("node-1")
	killProcess(t, node)
	for range 6 {
		if _, err := stream(t.Context(), client, "sim-small"); err != nil {
			t.Errorf("with node-1 killed: %v", err)
		}
	}
	eventually(t, time.Minute, "node-1 is back, in a new session", func() bool { return c.nodes("edge")["node-1"] > generation })
	if after := c.inspect("node-1"); after.State.Pid == node.State.Pid || after.State.Status != "running" {
		t.Errorf("node-1: %+v", after.State)
	}
}

// killProcess ends a container's process as a crash would: what is killed by the engine's command stays down.
func killProcess(t *testing.T, victim container) {
	t.Helper()
	if victim.State.Pid <= 1 {
		t.Fatalf("%s has no process", victim.Name)
	}
	if err := syscall.Kill(victim.State.Pid, syscall.SIGKILL); err != nil {
		t.Logf("%v: started anew by the engine instead", err)
		command(t, nil, docker, "restart", "-t", "0", victim.ID)
	}
}

// checkUpAgain: a second `up` leaves what runs alone; what was made stays valid.
func checkUpAgain(t *testing.T, c *compose, client openai.Client) {
	t.Helper()
	before := c.inspectAll()
	c.up()
	for service, now := range c.inspectAll() {
		was := before[service]
		if now.ID != was.ID || slices.Contains(servers, service) && now.State.StartedAt != was.State.StartedAt {
			t.Errorf("%s was started anew", service)
		}
		if slices.Contains(jobs, service) && now.State.ExitCode != 0 {
			t.Errorf("%s ended with %d", service, now.State.ExitCode)
		}
	}
	if _, err := stream(t.Context(), client, "sim-small"); err != nil {
		t.Error(err)
	}
}

// checkDown: nothing is left, and servers went in good order.
func checkDown(t *testing.T, c *compose) {
	t.Helper()
	c.do("stop")
	for _, service := range []string{"edge", "node-1", "node-2", "edge-managed", "node-managed"} {
		if state := c.inspect(service).State; state.ExitCode != 0 {
			t.Errorf("%s ended with %d", service, state.ExitCode)
		}
	}
	c.down()
	for _, list := range [][]string{{"ps", "-a", "-q"}, {"volume", "ls", "-q"}, {"network", "ls", "-q"}} {
		if out := c.left(list...); out != "" && (list[0] != "network" || !c.stuck) {
			t.Errorf("left of %q: %s", list, out)
		}
	}
}

// guideBlocks are the blocks of shell commands in a guide, in their order.
func guideBlocks(t *testing.T, guide string) (blocks []string) {
	t.Helper()
	for _, m := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(readFile(t, docsDir, guide), -1) {
		blocks = append(blocks, m[1])
	}
	if len(blocks) == 0 {
		t.Fatalf("%s has no blocks", guide)
	}
	return blocks
}
