package e2e

import (
	"bufio"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A provider's own 429 with Retry-After, as the official packages see it: sdk/python/rested.py and sdk/node/rested.mjs.

// restedKinds are the kinds of providers of each driver: one that has its protocol, and one that has not.
var restedKinds = [][]string{
	{"openai", "anthropic"}, // Chat Completions
	{"full", "openai"},      // Responses
	{"anthropic", "openai"}, // Messages
	{"ollama", "openai"},    // Ollama's
}

var restedScripts = []string{"python", "node"}

// restedOrders is how many requests of one script fail: the simulator counts by what it is ordered, so each order must
// differ from all others.
const restedOrders = 40

// restedWorld is a script's one argument.
type restedWorld struct {
	matrixWorld
	Kinds [][]string `json:"kinds"`
}

// TestSDKRested: each driver has providers of its own, as a provider that says 429 rests for all that ask it.
func TestSDKRested(t *testing.T) {
	t.Parallel()
	sdk := sdkDir(t)
	scripts := map[string][]string{
		"python": {filepath.Join(sdk, "clients", "bin", "python"), "sdk/python/rested.py"},
		"node":   {"node", "sdk/node/rested.mjs", filepath.Join(sdk, "matrix")},
	}
	w := newRestedWorld(t)
	t.Run("scripts", func(t *testing.T) {
		for i, name := range restedScripts {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				mine, command := *w, scripts[name]
				mine.Script, mine.FailingFrom = name, i*restedOrders
				if ran := mine.follow(t, command); ran != 4*len(restedKinds) {
					t.Errorf("%d cases ran", ran)
				}
			})
		}
	})
	w.stack.settled()
	w.checkRests(t)
}

// follow runs a script, each of its cases a subtest, and returns how many there were.
func (w *restedWorld) follow(t *testing.T, command []string) (ran int) {
	t.Helper()
	world := &sdkWorld{main: w.stack}
	runScriptWith(t, w, command, func(out *bufio.Reader) { ran = len(world.follow(t, out)) })
	return ran
}

// newRestedWorld starts a Node with three providers for each driver of each script and each of its kinds: one that is
// alone with its model, and two that share one.
func newRestedWorld(t *testing.T) *restedWorld {
	t.Helper()
	s := newEdge(t)
	w := &restedWorld{Kinds: restedKinds}
	w.URL, w.Key, w.Sims, w.stack = s.url, s.key, map[string]string{}, s
	models, specs := map[string][]string{}, []string{}
	for _, script := range restedScripts {
		for i, kinds := range restedKinds {
			for _, kind := range kinds {
				name := fmt.Sprintf("%s-%d-%s", script, i, kind)
				models[kind] = append(models[kind], name+"-solo", name+"-pair")
				specs = append(specs, kind+" "+name+"-solo", kind+" "+name+"-pair 1", kind+" "+name+"-pair 2")
			}
		}
	}
	flavours := map[string]string{}
	for _, k := range matrixKinds {
		sim := s.startSim("--flavour", k.flavour, "--exact", "--slots", "64", "--models", strings.Join(models[k.name], ","))
		sim.control(t, "POST", "/sim/config", map[string]any{"lacks": k.lacks, "path": "*"}, nil)
		w.Sims[k.name], flavours[k.name] = sim.url, k.flavour
	}
	var args []string
	for _, spec := range specs {
		kind, rest, _ := strings.Cut(spec, " ")
		model, number, _ := strings.Cut(rest, " ")
		args = append(args, "--provider", fmt.Sprintf("%s%s:%s=%s,capacity=8,models=%s", model, number, flavours[kind], w.Sims[kind], model))
	}
	s.startNode("node-1", args...)
	return w
}

// checkRests looks at what was booked: a client that must wait for its one provider was refused as often as it was told,
// and where there is another provider that one took over, and kept the runs while the first rested.
func (w *restedWorld) checkRests(t *testing.T) {
	t.Helper()
	bySession := map[string][]usageRecord{}
	for _, r := range w.stack.records() {
		bySession[r.Session] = append(bySession[r.Session], r)
	}
	for session, all := range bySession {
		slices.SortFunc(all, func(a, b usageRecord) int { return a.Started.Compare(b.Started) })
		var got []string
		for _, r := range all {
			got = append(got, fmt.Sprintf("%d after %d", r.Status, r.Attempts))
			if r.Provider != all[len(all)-1].Provider {
				t.Errorf("%s: a run at %s, another at %s", session, r.Provider, all[len(all)-1].Provider)
			}
		}
		want := "429 after 1, 429 after 1, 429 after 1, 200 after 1"
		switch _, name, _ := strings.Cut(session, "/"); {
		case strings.HasSuffix(name, "/takes_over"):
			want = "200 after 2, 200 after 1, 200 after 1"
		case strings.HasPrefix(name, "ollama/"): // that client does not try again
			want = "429 after 1, 429 after 1, 200 after 1"
		}
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("%s: %s, want %s", session, text, want)
		}
	}
	if n := 2 * 4 * len(restedKinds); len(bySession) != n {
		t.Errorf("%d sessions, want %d", len(bySession), n)
	}
}
