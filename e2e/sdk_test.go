package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The official SDKs, unchanged: each is told a base URL and a key and nothing else. Scripts under sdk/ hold the checks
// and print one line of JSON for each; every check is a subtest here.

// sdkModels are what the providers of these tests serve.
var sdkModels = []string{"sim-small", "sim-reason", "sim-embed", "sim-audio", "sim-image", "org/model:7b-q4_K"}

// sdkFailing is how many more models they serve, failing-0 and so on: each request that fails on purpose has one of its
// own, as a model that fails too often is left alone for a while.
const sdkFailing = 200

// sdkServed are all models of the main Edge.
func sdkServed() []string {
	all := slices.Clone(sdkModels)
	for i := range sdkFailing {
		all = append(all, fmt.Sprintf("failing-%d", i))
	}
	return all
}

// sdkChecks are the checks that every script must have, so that none is forgotten in one language.
var sdkChecks = []string{
	"chat/unary", "chat/stream", "chat/stream_of_two", "chat/stream_in_pieces", "chat/stream_helper", "chat/reasoning",
	"chat/usage_asked", "chat/usage_not_asked", "chat/tools", "chat/tools_stream", "chat/structured",
	"completions", "embeddings", "models", "moderations",
	"responses/unary", "responses/stream", "responses/tools", "responses/structured",
	"audio/transcription", "audio/speech", "images/generate", "images/edit",
	"errors/400", "errors/401", "errors/403", "errors/404", "errors/413", "errors/415", "errors/provider", "errors/waiting",
	"retries/then_success", "retries/retry_after",
	"abort/stream", "abort/unary", "abort/timeout",
	"broken/stream", "broken/at_once", "broken/responses", "broken/node_killed",
}

// sdkTarget is a stack as a script sees it: the first two are the client's, the others show what became of a request.
type sdkTarget struct {
	BaseURL string `json:"base_url"`
	Key     string `json:"key"`
	Sim     string `json:"sim"`
	Metrics string `json:"metrics"`
}

// sdkWorld is a script's one argument.
type sdkWorld struct {
	sdkTarget
	Models []string          `json:"models"`
	Keys   map[string]string `json:"keys"`
	Tight  sdkTarget         `json:"tight"` // small limits: bodies of 256 KiB, one place, one in the queue

	main, tight *stack
}

func newSDKWorld(t *testing.T) *sdkWorld {
	t.Helper()
	w := &sdkWorld{Models: sdkServed(), Keys: map[string]string{}}
	w.main = newEdge(t)
	w.main.key = w.main.newKey("limited", "--routes", "*") // all that SDKs send must be known
	w.main.startNode("node-1", "--provider", "sim="+w.main.startSim("--models", strings.Join(w.Models, ","), "--slots", "64").url+",capacity=64")
	w.tight = newEdge(t, "--max-body", "262144", "--body-budget", "262144", "--queue-limit", "1", "--queue-timeout", "6s", "--total-timeout", "15s")
	w.tight.startNode("node-1", "--provider", "sim="+w.tight.startSim().url+",capacity=1")
	w.sdkTarget, w.Tight = w.main.sdkTarget(), w.tight.sdkTarget()

	w.Keys["narrow"] = w.main.newKey("narrow", "--routes", "sim-embed*")
	w.Keys["revoked"] = w.main.newKey("revoked")
	w.main.revokeKey("revoked")
	w.Keys["expired"] = w.main.expiredKey()
	w.Keys["wrong"] = w.tight.key // of another Edge
	w.Keys["malformed"] = "not-a-key"
	return w
}

func (s *stack) sdkTarget() sdkTarget {
	return sdkTarget{BaseURL: s.url + "/v1", Key: s.key, Sim: s.sims[0].url, Metrics: s.admin + "/metrics"}
}

// revokeKey revokes the key with the name.
func (s *stack) revokeKey(name string) {
	s.t.Helper()
	var list struct {
		Data []struct{ ID, Name string }
	}
	s.json(&list, "key", "list", "--json")
	for _, k := range list.Data {
		if k.Name == name {
			iop(s.t, s.env, "key", "revoke", k.ID)
			return
		}
	}
	s.t.Fatalf("no key %q", name)
}

// expiredKey returns a key whose time is over.
func (s *stack) expiredKey() string {
	s.t.Helper()
	key := s.newKey("expired", "--expires", "1s")
	eventually(s.t, patience, "the key has expired", func() bool {
		res, _ := s.do("GET", "/v1/models", nil, http.Header{"Authorization": {"Bearer " + key}})
		return res.StatusCode == http.StatusUnauthorized
	})
	return key
}

func TestSDKPython(t *testing.T) {
	runSDK(t, filepath.Join(sdkDir(t), "python", "bin", "python"), filepath.Join("sdk", "python", "checks.py"))
}

func TestSDKNode6(t *testing.T) { runNodeSDK(t, "openai6") }

func TestSDKNode7(t *testing.T) { runNodeSDK(t, "openai7") }

// runNodeSDK runs the checks with the SDK that is installed under this name.
func runNodeSDK(t *testing.T, name string) {
	runSDK(t, "node", filepath.Join("sdk", "node", "checks.mjs"), filepath.Join(sdkDir(t), name))
}

// sdkDir is where `make sdk` puts the SDKs.
func sdkDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".cache", "sdk"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("the SDKs are not installed: run `make sdk` (%v)", err)
	}
	return dir
}

// runSDK runs a script against a world of its own.
func runSDK(t *testing.T, command ...string) {
	t.Parallel()
	w := newSDKWorld(t)
	ran := w.runScript(t, command...)
	if missing := slices.DeleteFunc(slices.Clone(sdkChecks), func(name string) bool { return slices.Contains(ran, name) }); len(missing) > 0 {
		t.Errorf("these checks did not run: %s", strings.Join(missing, ", "))
	}
	w.main.settled()
	w.tight.settled()
}

// runScript runs a script on the world to its end, and returns the names of the checks that ran.
func (w *sdkWorld) runScript(t *testing.T, command ...string) (ran []string) {
	t.Helper()
	runScriptWith(t, w, command, func(out *bufio.Reader) { ran = w.follow(t, out) })
	return ran
}

// runScriptWith runs a script to its end, with the world as its last argument, and lets follow read what it prints.
func runScriptWith(t *testing.T, world any, command []string, follow func(out *bufio.Reader)) {
	t.Helper()
	arg, err := json.Marshal(world)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(command[0], append(command[1:], string(arg))...)
	cmd.Env = append(cleanEnv(), "PYTHONDONTWRITEBYTECODE=1")
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	cmd.Stderr = stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(10*time.Minute, func() { _ = cmd.Process.Kill() })
	defer watchdog.Stop()
	follow(bufio.NewReader(stdout))
	if err := cmd.Wait(); err != nil {
		text, _ := readFile(stderr.Name())
		t.Errorf("%s: %v\n%s", filepath.Base(command[0]), err, tail(text, 8<<10))
	}
}

// follow reads what a script prints to its end, and returns the names of the checks that ran.
func (w *sdkWorld) follow(t *testing.T, out *bufio.Reader) (ran []string) {
	for {
		text, err := out.ReadString('\n')
		if text != "" {
			var line struct {
				Name   string `json:"name"`
				OK     bool   `json:"ok"`
				Detail string `json:"detail"`
				Do     string `json:"do"`
			}
			switch err := json.Unmarshal([]byte(text), &line); {
			case err != nil:
				t.Errorf("the script printed %q", text)
			case line.Do == "kill-node":
				w.main.nodes[0].kill()
			case line.Name == "" || slices.Contains(ran, line.Name):
				t.Errorf("a check without a name of its own: %q", text)
			default:
				ran = append(ran, line.Name)
				t.Run(line.Name, func(t *testing.T) {
					if !line.OK {
						t.Errorf("%s", line.Detail)
					} else if line.Detail != "" {
						t.Log(line.Detail)
					}
				})
			}
		}
		if err != nil {
			return ran
		}
	}
}
