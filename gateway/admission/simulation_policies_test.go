package admission

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"iop/gateway/route"
)

// sharedPrefixes is a load of conversations over system prompts of which some are far more common than others, on
// engines that take eight runs at once. With least_busy the Nodes are some 70 % busy.
func sharedPrefixes(seed uint64) *simLoad {
	return &simLoad{
		seed: seed, length: 15 * time.Minute, rate: 1.7, systems: 200, zipf: 1, turns: 4, think: 15 * time.Second,
		output: 150, slots: 8, cacheBlocks: 3200, models: 1, fit: 1,
	}
}

// fewSlots is the same on engines half as large.
func fewSlots(seed uint64) *simLoad {
	l := sharedPrefixes(seed)
	l.slots, l.cacheBlocks, l.rate = 4, 1600, 1
	return l
}

// hotPrefix is half the load, and four of ten conversations begin with the same prompt: there is room to collapse.
func hotPrefix(seed uint64) *simLoad {
	l := sharedPrefixes(seed)
	l.rate, l.zipf = 0.85, 1.6
	return l
}

// tooMuch is more than the Nodes can take: a queue builds up, at least while a policy finds little in the caches.
func tooMuch(seed uint64) *simLoad {
	l := sharedPrefixes(seed)
	l.rate = 2.4
	return l
}

// manyModels is a third of the load, for six models on Nodes that have two in memory and take 8 s to load another.
func manyModels(seed uint64) *simLoad {
	l := sharedPrefixes(seed)
	l.models, l.fit, l.loading, l.rate = 6, 2, 8*time.Second, 0.6
	return l
}

// measure runs loads under each of some policies.
func measure(t *testing.T, load func(seed uint64) *simLoad, seeds uint64, policies ...route.Policy) []*simResult {
	t.Helper()
	var results []*simResult
	for _, policy := range policies {
		sum := &simResult{policy: policy}
		for seed := range seeds {
			l := load(seed)
			if testing.Short() || raceEnabled {
				l.length /= 2
			}
			synctest.Test(t, func(t *testing.T) { sum.add(simulate(t, policy, l)) })
		}
		results = append(results, sum)
	}
	return results
}

// eachSeed runs f with what some policies make of a load, for each of several seeds.
func eachSeed(t *testing.T, load func(seed uint64) *simLoad, f func(t *testing.T, results []*simResult), policies ...route.Policy) {
	t.Helper()
	seeds := uint64(3)
	if testing.Short() || raceEnabled {
		seeds = 1
	}
	for seed := range seeds {
		results := measure(t, func(uint64) *simLoad { return load(seed) }, 1, policies...)
		t.Logf("seed %d\n%s", seed, table(results))
		f(t, results)
	}
}

// TestPoliciesAffinity: it finds nearly all that is in a cache anywhere, and no Node gets much more than its share.
func TestPoliciesAffinity(t *testing.T) {
	eachSeed(t, sharedPrefixes, func(t *testing.T, results []*simResult) {
		busy, affine := results[0], results[1]
		if affine.ofOracle() < 0.9 {
			t.Errorf("%.1f %% of the hits that an infinite cache over all Nodes has, want 90 %%", 100*affine.ofOracle())
		}
		if affine.spread() > 1.5 {
			t.Errorf("the busiest Node has %.2f times the mean load, want at most 1.5", affine.spread())
		}
		if affine.quantile(0.5) >= busy.quantile(0.5) || affine.quantile(0.99) >= busy.quantile(0.99) {
			t.Error("the first token comes no sooner than with least_busy")
		}
	}, route.LeastBusy, route.PrefixAffinity)
}

// TestPoliciesAffinityYields: a prefix that is more common than one Node could serve does not go to one Node, although
// most are idle enough to take it.
func TestPoliciesAffinityYields(t *testing.T) {
	eachSeed(t, hotPrefix, func(t *testing.T, results []*simResult) {
		if affine := results[0]; affine.spread() > 1.5 {
			t.Errorf("the busiest Node has %.2f times the mean load, want at most 1.5", affine.spread())
		} else if affine.ofOracle() < 0.9 {
			t.Errorf("%.1f %% of the best possible hits, want 90 %%", 100*affine.ofOracle())
		}
	}, route.PrefixAffinity)
}

// TestPoliciesAffinityWhenFull: it holds where it is worth most, when runs begin only as others end.
func TestPoliciesAffinityWhenFull(t *testing.T) {
	eachSeed(t, tooMuch, func(t *testing.T, results []*simResult) {
		busy, affine := results[0], results[1]
		if affine.ofOracle() < busy.ofOracle()+0.2 {
			t.Errorf("%.1f %% of the best possible hits, with least_busy %.1f %%", 100*affine.ofOracle(), 100*busy.ofOracle())
		}
		if affine.perSecond() <= busy.perSecond() || affine.quantile(0.5) >= busy.quantile(0.5) {
			t.Error("no more gets done than with least_busy")
		}
	}, route.LeastBusy, route.PrefixAffinity)
}

// TestPoliciesLowestWait: on Nodes of different speeds, those who wait longest for the first token wait less than with
// least_busy, which takes a slow Node for as good as a fast one.
func TestPoliciesLowestWait(t *testing.T) {
	for name, load := range map[string]func(uint64) *simLoad{"8 slots": sharedPrefixes, "4 slots": fewSlots} {
		t.Run(name, func(t *testing.T) {
			eachSeed(t, load, func(t *testing.T, results []*simResult) {
				if busy, lowest := results[0], results[1]; lowest.quantile(0.99) >= busy.quantile(0.99) {
					t.Errorf("p99 of the first token: %v, with least_busy %v", lowest.quantile(0.99), busy.quantile(0.99))
				}
			}, route.LeastBusy, route.LowestWait)
		})
	}
}

// TestPoliciesLowestWaitFollows: a Node that becomes slow loses its runs, and has them back soon after it has recovered.
func TestPoliciesLowestWaitFollows(t *testing.T) {
	var healthy, sick, recovered, beside int
	load := hotPrefix(0)
	load.length = 15 * time.Minute
	load.script = func(s *simulation) {
		runs := func(of int, into *int, from, to time.Duration) {
			s.after(from, func() { *into -= s.engines[of].runs })
			s.after(to, func() { *into += s.engines[of].runs })
		}
		s.after(4*time.Minute, func() { s.engines[0].sick = 20 })
		s.after(8*time.Minute, func() { s.engines[0].sick = 0 })
		runs(0, &healthy, time.Minute, 4*time.Minute)
		runs(0, &sick, 5*time.Minute, 8*time.Minute)
		runs(0, &recovered, 11*time.Minute, 14*time.Minute)
		runs(1, &beside, 11*time.Minute, 14*time.Minute)
	}
	synctest.Test(t, func(t *testing.T) { simulate(t, route.LowestWait, load) })
	t.Logf("runs in 3 minutes: %d healthy, %d sick, %d recovered, another %d", healthy, sick, recovered, beside)
	if sick > healthy/5 {
		t.Errorf("a Node twenty times as slow got %d runs, before %d", sick, healthy)
	}
	if recovered < beside*2/3 {
		t.Errorf("it has recovered and got %d runs, another of its kind %d", recovered, beside)
	}
}

// TestPoliciesWarmFirst: where not all models fit into memory, hardly any run has to wait until its model is loaded.
func TestPoliciesWarmFirst(t *testing.T) {
	eachSeed(t, manyModels, func(t *testing.T, results []*simResult) {
		busy, warm := results[0], results[1]
		if warm.loads*10 > busy.loads {
			t.Errorf("%d loads of a model, with least_busy %d", warm.loads, busy.loads)
		}
		if warm.quantile(0.99) >= busy.quantile(0.99) {
			t.Errorf("p99 of the first token: %v, with least_busy %v", warm.quantile(0.99), busy.quantile(0.99))
		}
	}, route.LeastBusy, route.WarmFirst)
}

// add takes in what the same policy made of another load.
func (r *simResult) add(o *simResult) {
	r.completed += o.completed
	r.first = slices.Concat(r.first, o.first)
	r.count(o.blocks, o.hits, o.possible)
	r.loads += o.loads
	r.length += o.length
	r.uses = append(r.uses, o.uses...)
	r.worst = max(r.worst, o.spread())
}
