package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// affinityFile has the same targets by two policies.
const affinityFile = `
routes:
  - model: affine
    policy: prefix_affinity
    targets: [{model: sim-small}]
  - model: busy
    targets: [{model: sim-small}]
`

// prefixWorld is three engines, each of which can remember some of the prompts' beginnings, and all together all.
type prefixWorld struct {
	*routed
	engines []*simulator
}

const (
	prefixes    = 40
	prefixBytes = 3 << 10
)

func newPrefixWorld(t *testing.T) *prefixWorld {
	t.Helper()
	w := &prefixWorld{routed: newRouted(t, affinityFile)}
	for i := range 3 {
		sim := w.startSim("--slots", "8", "--prefix-cache", "15000", "--prefill-tokens-per-second", "30000")
		w.engines = append(w.engines, sim)
		name := fmt.Sprintf("node-%d", i+1)
		w.launchNode(name, "--provider", "sim="+sim.url+",capacity=8")
		w.serving(name, "sim-small")
	}
	return w
}

// prompt is a chat with the beginning of that number and an end of its own.
func (w *prefixWorld) prompt(model string, prefix, n int) map[string]any {
	return map[string]any{
		"model": model, "user": "sim:ttft=15ms,tokens=2",
		"messages": []map[string]string{
			{"role": "system", "content": strings.Repeat(fmt.Sprintf("Rule %d of the house. ", prefix), prefixBytes/20)},
			{"role": "user", "content": fmt.Sprintf("Question %d", n)},
		},
	}
}

// zipf sends n requests, the k-th prefix 1/k as often as the first, and returns the share of the prompts that the engines
// had seen, and the busiest engine's runs over the mean.
func (w *prefixWorld) zipf(t *testing.T, model string, n int) (hits, most float64) {
	t.Helper()
	for _, e := range w.engines {
		e.control(t, "POST", "/sim/reset", nil, nil)
	}
	pick := zipfPicker(rand.New(rand.NewPCG(7, 7)))
	turns := make(chan struct{}, 10)
	var all []*answer
	for i := range n {
		turns <- struct{}{}
		a := w.askAs(context.Background(), w.key, "/v1/chat/completions", w.prompt(model, pick(), i), nil)
		all = append(all, a)
		go func() {
			<-a.done
			<-turns
		}()
	}
	for i, a := range all {
		a.end(t, patience).ok(t, fmt.Sprintf("%s %d", model, i))
	}
	var prompt, cached, runs, greatest int64
	for _, e := range w.engines {
		seen := e.inferences(t)
		for _, r := range seen {
			prompt, cached = prompt+r.Prompt, cached+r.Cached
		}
		runs, greatest = runs+int64(len(seen)), max(greatest, int64(len(seen)))
	}
	if runs != int64(n) || prompt == 0 {
		t.Fatalf("%d runs, %d tokens of prompts", runs, prompt)
	}
	return float64(cached) / float64(prompt), float64(greatest) * float64(len(w.engines)) / float64(runs)
}

// zipfPicker returns numbers below prefixes, the k-th 1/k as often as the first.
func zipfPicker(r *rand.Rand) func() int {
	var sums [prefixes]float64
	sum := 0.0
	for k := range sums {
		sum += 1 / float64(k+1)
		sums[k] = sum
	}
	return func() int {
		x := r.Float64() * sum
		for k, s := range sums {
			if x < s {
				return k
			}
		}
		return prefixes - 1
	}
}

// TestPrefixAffinity: FAULTS 16. Prompts go where their beginning is known, and not all to one Node.
func TestPrefixAffinity(t *testing.T) {
	t.Parallel()
	w := newPrefixWorld(t)
	const n = 500
	busyHits, busyMost := w.zipf(t, "busy", n)
	hits, most := w.zipf(t, "affine", n)
	t.Logf("least_busy: %.2f of the prompts were known, busiest over mean %.2f; prefix_affinity: %.2f, %.2f", busyHits, busyMost, hits, most)
	if hits < busyHits+0.15 {
		t.Errorf("prefix_affinity found %.2f of the prompts in a cache, least_busy %.2f", hits, busyHits)
	}
	if most > 1.5 {
		t.Errorf("the busiest Node had %.2f times the mean", most)
	}
	reasons := map[string]int{}
	for _, r := range w.reasons("affine") {
		rule, _, _ := strings.Cut(r, " ")
		reasons[rule]++
	}
	t.Logf("reasons: %v", reasons)
	if reasons["affinity"] < n/2 {
		t.Errorf("the reasons are %v", reasons)
	}
	w.quiet()
}

// reasons are those of the route's runs, as the operator sees them.
func (s *stack) reasons(route string) (list []string) {
	s.t.Helper()
	var runs struct{ Data []struct{ Reason string } }
	s.operator("/runs?limit=1000&route="+route, &runs)
	for _, r := range runs.Data {
		list = append(list, r.Reason)
	}
	return list
}

// TestAffinityHints: requests that say that they belong together go to one Node, whatever is in them. The hint of one
// principal means nothing for another.
func TestAffinityHints(t *testing.T) {
	t.Parallel()
	w := newPrefixWorld(t)
	for _, field := range []string{"session_id", "prompt_cache_key"} {
		for session := range 6 {
			nodes := map[string]bool{}
			for i := range 5 {
				body := w.prompt("affine", 1000*session+10*i+len(field), i)
				body[field] = fmt.Sprint("conversation ", session)
				a := w.askAs(context.Background(), w.key, "/v1/chat/completions", body, nil).end(t, patience)
				a.ok(t, field)
				nodes[w.run(a.header.Get("X-Iop-Run-Id")).Node] = true
			}
			if len(nodes) != 1 {
				t.Errorf("%s: the requests of one conversation ran on %v", field, nodes)
			}
		}
	}
	spread := map[string]bool{}
	for i := range 9 {
		key := w.newKey(fmt.Sprint("owner-", i), "--owner", fmt.Sprint("owner-", i))
		body := w.prompt("affine", 7000+i, i)
		body["session_id"] = "conversation 0"
		a := w.askAs(context.Background(), key, "/v1/chat/completions", body, nil).end(t, patience)
		a.ok(t, "another principal")
		spread[w.run(a.header.Get("X-Iop-Run-Id")).Node] = true
	}
	if len(spread) < 2 {
		t.Errorf("nine principals with the same session_id all ran on %v", spread)
	}
	w.quiet()
}
