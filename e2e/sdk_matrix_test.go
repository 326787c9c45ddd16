package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The client matrix: each client against each kind of provider, so that each is relayed by one and normalized for the
// others. The cases and what a protocol can't carry stand in sdk/python/matrix.py and sdk/node/matrix.mjs.

// matrixKinds are the kinds of providers: engines that have one protocol's paths and no others'. "full" has all of OpenAI's.
var matrixKinds = []struct{ name, flavour, lacks string }{
	{"openai", "openai", "/v1/responses|/v1/messages|/v1/messages/count_tokens"},
	{"ollama", "ollama", "/v1/chat/completions|/v1/completions|/v1/embeddings|/v1/responses|/v1/messages|/v1/messages/count_tokens"},
	{"anthropic", "anthropic", "/v1/chat/completions|/v1/completions|/v1/embeddings|/v1/responses|/v1/messages/count_tokens"},
	{"full", "openai", "/v1/messages"},
}

// matrixFailing is how many models each kind has for requests of one script that fail on purpose: one that fails too often
// is left alone for a while.
const matrixFailing = 200

// matrixWorld is a script's one argument.
type matrixWorld struct {
	URL         string            `json:"url"`
	Key         string            `json:"key"`
	WrongKey    string            `json:"wrong_key"`
	SlowKey     string            `json:"slow_key"` // one request a minute
	Sims        map[string]string `json:"sims"`
	Script      string            `json:"script"`
	FailingFrom int               `json:"failing_from"`
	Only        string            `json:"only"` // run those alone whose name has it, for those who write cases

	stack *stack
}

// matrixBook is what a script says of one session: how many runs it had, how they were executed and ended, and what they
// used, if its client tells.
type matrixBook struct {
	Session, Execution, Outcome string
	Runs                        int
	Input, Output               *int64
}

func newMatrixWorld(t *testing.T, scripts int) *matrixWorld {
	t.Helper()
	s := newEdge(t)
	s.key = s.newKey("limited", "--routes", "*") // all that SDKs send must be known
	w := &matrixWorld{URL: s.url, Key: s.key, WrongKey: s.key[:len(s.key)-4] + "AAAA", Sims: map[string]string{}, stack: s, SlowKey: s.newKey("slow", "--rpm", "1"), Only: os.Getenv("IOP_MATRIX")}
	var args []string
	for _, k := range matrixKinds {
		models := []string{k.name + "-model"}
		for i := range scripts * matrixFailing {
			models = append(models, fmt.Sprintf("%s-failing-%d", k.name, i))
		}
		sim := s.startSim("--flavour", k.flavour, "--exact", "--slots", "64", "--models", strings.Join(models, ","))
		sim.control(t, "POST", "/sim/config", map[string]any{"lacks": k.lacks, "path": "*"}, nil)
		args = append(args, "--provider", fmt.Sprintf("%s:%s=%s,capacity=64", k.name, k.flavour, sim.url))
		w.Sims[k.name] = sim.url
	}
	s.startNode("node-1", args...)
	return w
}

// TestClientMatrix runs the scripts at the same time on one Edge.
func TestClientMatrix(t *testing.T) {
	t.Parallel()
	sdk := sdkDir(t)
	python := func(venv string) string { return filepath.Join(sdk, venv, "bin", "python") }
	scripts := []struct {
		name    string
		command []string
	}{
		{"python", []string{python("clients"), "sdk/python/matrix_new.py"}},
		{"python-old", []string{python("clients-old"), "sdk/python/matrix_old.py"}},
		{"node", []string{"node", "sdk/node/matrix.mjs", filepath.Join(sdk, "matrix")}},
	}
	w := newMatrixWorld(t, len(scripts)+1)
	books := make([][]matrixBook, len(scripts)+1)
	t.Run("scripts", func(t *testing.T) {
		for i, script := range scripts {
			t.Run(script.name, func(t *testing.T) {
				t.Parallel()
				mine := *w
				mine.Script, mine.FailingFrom = script.name, i*matrixFailing
				books[i] = mine.run(t, script.command)
			})
		}
		t.Run("go", func(t *testing.T) {
			t.Parallel()
			mine := *w
			mine.FailingFrom = len(scripts) * matrixFailing
			books[len(scripts)] = mine.runGo(t)
		})
	})
	w.stack.settled()
	w.checkBooks(t, books)
}

// run runs a script to its end, each of its cases a subtest, and returns what must be booked.
func (w *matrixWorld) run(t *testing.T, command []string) (books []matrixBook) {
	t.Helper()
	ran := 0
	runScriptWith(t, w, command, func(out *bufio.Reader) {
		for {
			text, err := out.ReadString('\n')
			if text != "" {
				var line struct {
					Name, Detail string
					OK           bool
					Book         *matrixBook
				}
				switch err := json.Unmarshal([]byte(text), &line); {
				case err != nil || line.Name == "" && line.Book == nil:
					t.Errorf("the script printed %q", text)
				case line.Book != nil:
					books = append(books, *line.Book)
				default:
					ran++
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
				return
			}
		}
	})
	if ran < 40 && w.Only == "" {
		t.Errorf("only %d cases ran", ran)
	}
	return books
}

// checkBooks compares the records of usage with what the scripts say of their sessions.
func (w *matrixWorld) checkBooks(t *testing.T, books [][]matrixBook) {
	t.Helper()
	bySession := map[string][]usageRecord{}
	for _, r := range w.stack.records() {
		bySession[r.Session] = append(bySession[r.Session], r)
	}
	for _, all := range books {
		for _, b := range all {
			var input, output int64
			got := bySession[b.Session]
			for _, r := range got {
				input, output = input+r.Input, output+r.Output
				if r.Execution != b.Execution || r.Outcome != b.Outcome || b.Outcome == "completed" && (!r.Known || r.Estimated) {
					t.Errorf("%s: booked %+v", b.Session, r)
				}
			}
			if len(got) != b.Runs {
				t.Errorf("%s: %d runs, not %d", b.Session, len(got), b.Runs)
			}
			if b.Input != nil && (*b.Input != input || *b.Output != output) {
				t.Errorf("%s: booked %d and %d tokens, the client was told %d and %d", b.Session, input, output, *b.Input, *b.Output)
			}
		}
	}
}
