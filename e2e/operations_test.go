package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const operationsGuide = "../docs/operations.md"

// operated is a stack whose operator reads docs/operations.md.
type operated struct {
	*stack
	t      *testing.T
	paths  *strings.Replacer
	blocks []guideBlock
}

func newOperated(t *testing.T) *operated {
	t.Helper()
	s := newEdge(t)
	deploy, err := filepath.Abs("../deploy")
	if err != nil {
		t.Fatal(err)
	}
	o := &operated{stack: s, t: t, blocks: guideBlocks(t, operationsGuide)}
	o.paths = strings.NewReplacer("/var/lib/iop", filepath.Dir(strings.TrimPrefix(s.state, "sqlite://")),
		"/var/backups/iop", filepath.Join(t.TempDir(), "backup"), "deploy/", deploy+"/")
	return o
}

// enter types the one block of the guide that holds a text, and returns what it printed.
func (o *operated) enter(text string) string {
	o.t.Helper()
	for i, b := range o.blocks {
		if b.language != "sh" || !strings.Contains(b.text, text) {
			continue
		}
		o.blocks = append(o.blocks[:i:i], o.blocks[i+1:]...)
		cmd := exec.Command("bash", "-euc", o.paths.Replace(b.text))
		cmd.Dir = o.t.TempDir()
		cmd.Env = append(append(cleanEnv(), o.env...), "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			o.t.Fatalf("%s\n%v: %s", b.text, err, out)
		}
		return string(out)
	}
	o.t.Fatalf("%s has no block with %q", operationsGuide, text)
	return ""
}

// status is what a chat request with a key is answered.
func (o *operated) status(key string) int {
	o.t.Helper()
	req := o.request("POST", "/v1/chat/completions", chat("sim-small", "tokens=1", false), http.Header{"Authorization": {"Bearer " + key}})
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		o.t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}

// revoke takes a key back by the name that it was given.
func (o *operated) revoke(name string) {
	o.t.Helper()
	var list struct{ Data []struct{ ID, Name string } }
	o.json(&list, "key", "list", "--json")
	for _, k := range list.Data {
		if k.Name == name {
			iop(o.t, o.env, "key", "revoke", k.ID)
			return
		}
	}
	o.t.Fatalf("no key has the name %s", name)
}

// TestOperationsGuide types what docs/operations.md says about backup, restore and upgrade, and sees that it is true.
func TestOperationsGuide(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"sqlite3", "promtool"} {
		findProgram(t, program)
	}
	o := newOperated(t)
	provider := "sim=" + o.startSim("--slots", "16").url
	o.startNode("gpu-3", "--provider", provider)
	o.startNode("gpu-4", "--provider", provider)
	o.backupAndRestore(provider)
	o.upgradeNode(provider)
	if out := o.enter("iop version"); !strings.HasPrefix(out, "iop ") {
		t.Errorf("%s", out)
	}
	if out := o.enter("promtool check rules"); !strings.Contains(out, "SUCCESS") {
		t.Errorf("%s", out)
	}
	o.enter("iop usage --since")
	for _, b := range o.blocks {
		if b.language == "sh" {
			t.Errorf("nobody typed:\n%s", b.text)
		}
	}
}

func (o *operated) backupAndRestore(provider string) {
	o.t.Helper()
	revoked := o.newKey("revoked later")
	if out := o.enter("sqlite3 "); !strings.HasSuffix(out, "ok\n") {
		o.t.Fatalf("the copy is damaged: %s", out)
	}
	o.revoke("revoked later")
	late := o.newKey("made later")
	for key, want := range map[string]int{o.key: 200, revoked: 401, late: 200} {
		if got := o.status(key); got != want {
			o.t.Fatalf("before the restore: %d, want %d", got, want)
		}
	}
	// gpu-4 has generations that the copy has not heard of.
	for range 2 {
		o.nodes[1].stop(patience)
		o.nodes[1] = o.startNode("gpu-4", "--provider", provider)
		o.nodes = o.nodes[:2]
	}
	if err := o.edge.stop(patience); err != nil {
		o.t.Fatal(err)
	}
	o.enter("iop.db-wal")
	o.startEdge()
	for key, want := range map[string]int{revoked: 200, late: 401} {
		eventually(o.t, time.Minute, "the state is that of the backup", func() bool { return o.status(key) == want })
	}
	for _, node := range []string{"gpu-3", "gpu-4"} {
		o.online(node, time.Minute)
	}
	if out := iop(o.t, o.env, "nodes"); !strings.Contains(out, "gpu-3") {
		o.t.Errorf("the admin token is not that of the backup: %s", out)
	}
}

// upgradeNode has gpu-3 restarted under streams, as the guide says: the Node is ended at once when the command that waits
// has returned, and no stream is cut.
func (o *operated) upgradeNode(provider string) {
	o.t.Helper()
	var streams []*answer
	for range 4 { // some on each
		streams = append(streams, o.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=80,itl=50ms", true)))
	}
	for _, a := range streams {
		a.reaches(o.t, 1, 30*time.Second)
	}
	if n := o.node("gpu-3"); len(n.Sessions) == 0 || n.Sessions[0].OpenRuns == 0 {
		o.t.Fatalf("nothing runs on gpu-3: %+v", n)
	}
	seen, stop := o.watchState("gpu-3")
	o.enter("iop drain gpu-3 --wait")
	o.nodes[0].kill() // whatever was open there is cut
	stop()
	if !seen["draining"] {
		o.t.Errorf("while runs were open gpu-3 was %v", seen)
	}
	for i, a := range streams {
		if err := a.end(o.t, time.Minute).whole(); err != nil {
			o.t.Errorf("stream %d was cut: %v", i, err)
		}
	}
	if code := o.status(o.key); code != http.StatusOK {
		o.t.Errorf("while gpu-3 is away: %d", code)
	}
	o.startNode("gpu-3", "--provider", provider)
	o.online("gpu-3", time.Minute)
	o.enter("--resume")
	eventually(o.t, time.Minute, "gpu-3 is online", func() bool { return o.node("gpu-3").State == "online" })
}

// watchState notes in which states a Node is, until stop is called.
func (o *operated) watchState(name string) (seen map[string]bool, stop func()) {
	o.t.Helper()
	seen = map[string]bool{}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
			out, _, _ := tryIOP(o.t, o.env, "nodes", "--json")
			var list struct{ Data []nodeState }
			if json.Unmarshal([]byte(out), &list) != nil {
				continue
			}
			for _, n := range list.Data {
				if n.Node == name {
					seen[n.State] = true
				}
			}
		}
	}()
	return seen, func() { close(done); <-ended }
}

// TestOperationsSettings: the settings in the guide's files are the Edge's.
func TestOperationsSettings(t *testing.T) {
	documented, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, b := range guideBlocks(t, operationsGuide) {
		if b.language != "ini" {
			continue
		}
		for _, m := range regexp.MustCompile(`(?m)^(IOP_[A-Z_]+)=\S+$`).FindAllStringSubmatch(b.text, -1) {
			found++
			if !strings.Contains(string(documented), "`"+m[1]+"`") {
				t.Errorf("%s is no setting", m[1])
			}
		}
	}
	if found < 4 {
		t.Errorf("found %d settings", found)
	}
}
