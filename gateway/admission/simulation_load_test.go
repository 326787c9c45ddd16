package admission

import (
	"fmt"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"iop/gateway/route"
)

const (
	blockBytes    = 256 // of a prompt, in a block of a cache: 64 tokens
	bytesPerToken = 4
)

// simLoad is what clients send. The same seed gives the same conversations, whatever the policy does with them.
type simLoad struct {
	seed    uint64
	length  time.Duration // conversations begin within it; the first fifth is not measured
	rate    float64       // conversations that begin in a second, at random times (Poisson)
	systems int           // system prompts, of 1 to 12 KiB
	zipf    float64       // the k-th of them is chosen k^-zipf times as often as the first
	turns   float64       // mean turns of a conversation
	think   time.Duration // mean time between an answer and the next turn
	output  int64         // mean tokens of an answer

	slots       int           // of each engine
	cacheBlocks int           // of each model in an engine's memory
	models      int           // which conversations choose as they choose a system prompt
	fit         int           // models in an engine's memory at once
	loading     time.Duration // of a model into it

	script func(*simulation) // or nil: is called at the start, to plan what happens besides
}

// model returns the name of the i-th model.
func (l *simLoad) model(i int) string { return fmt.Sprint("model-", i) }

// simConversation is one conversation.
type simConversation struct {
	rng       *rand.Rand
	principal string
	model     string
	messages  []byte // raw JSON, without the closing bracket
	turns     int    // still to come
	answer    []uint64
}

// simStart is when a conversation begins.
type simStart struct {
	at time.Duration
	*simConversation
}

// simTurn is a request of a conversation.
type simTurn struct {
	conversation *simConversation
	principal    string
	prompt       []byte
	blocks       []uint64
	output       int64
	think        time.Duration
}

func (t *simTurn) tokens() int64 { return int64(len(t.prompt) / bytesPerToken) }

// conversations returns all of a load, in the order of their starts.
func (l *simLoad) conversations() (starts []simStart) {
	rng := rand.New(rand.NewPCG(l.seed, 1))
	systems := make([]string, l.systems)
	for i := range systems {
		systems[i] = text(rng, 1<<10+rng.IntN(11<<10))
	}
	system, model := l.chooser(l.systems), l.chooser(l.models)
	for at := 0.0; ; {
		at += rng.ExpFloat64() / l.rate
		if at >= l.length.Seconds() {
			return starts
		}
		c := &simConversation{
			rng:       rand.New(rand.NewPCG(l.seed, uint64(len(starts))+2)),
			principal: fmt.Sprint("team-", rng.IntN(10)),
			model:     l.model(model(rng)),
			turns:     1,
		}
		for c.rng.Float64() > 1/l.turns {
			c.turns++
		}
		c.add("system", systems[system(rng)])
		starts = append(starts, simStart{time.Duration(at * float64(time.Second)), c})
	}
}

// chooser returns what draws one of n, each as often as simLoad.zipf says.
func (l *simLoad) chooser(n int) func(*rand.Rand) int {
	sums := make([]float64, n)
	sum := 0.0
	for i := range sums {
		sum += math.Pow(float64(i+1), -l.zipf)
		sums[i] = sum
	}
	return func(rng *rand.Rand) int {
		i, _ := slices.BinarySearch(sums, rng.Float64()*sum)
		return i
	}
}

// corpus is what the text of all messages is cut from: nothing in it is there twice.
var corpus = sync.OnceValue(func() string { return words(1, 4<<20) })

func text(rng *rand.Rand, n int) string {
	at := rng.IntN(len(corpus()) - n)
	return corpus()[at : at+n]
}

func (c *simConversation) add(role, content string) {
	opening := ","
	if len(c.messages) == 0 {
		opening = "["
	}
	for _, part := range [...]string{opening, `{"role":"`, role, `","content":"`, content, `"}`} {
		c.messages = append(c.messages, part...)
	}
}

// next returns the next turn: a question of 100 to 1500 bytes, or now and then a document.
func (c *simConversation) next(l *simLoad) *simTurn {
	size := 100 + c.rng.IntN(1400)
	if c.rng.IntN(20) == 0 {
		size = 8 << 10
	}
	c.add("user", text(c.rng, size))
	c.turns--
	return &simTurn{
		conversation: c,
		principal:    c.principal,
		prompt:       append(slices.Clone(c.messages), ']'),
		blocks:       blocksOf(c.model, c.messages),
		output:       2 + int64(c.rng.ExpFloat64()*float64(l.output-2)),
		think:        time.Duration(c.rng.ExpFloat64() * float64(l.think)),
	}
}

// answered puts the answer of a turn in, and returns the next turn, or nil.
func (c *simConversation) answered(t *simTurn, l *simLoad) *simTurn {
	if c.turns == 0 {
		return nil
	}
	c.add("assistant", text(c.rng, int(t.output)*bytesPerToken))
	c.answer = blocksOf(c.model, c.messages)
	return c.next(l)
}

var blockSeed = maphash.MakeSeed()

// blocksOf returns the names of the whole blocks of a prompt.
func blocksOf(model string, prompt []byte) (blocks []uint64) {
	var h maphash.Hash
	h.SetSeed(blockSeed)
	h.WriteString(model)
	for ; len(prompt) >= blockBytes; prompt = prompt[blockBytes:] {
		h.Write(prompt[:blockBytes])
		blocks = append(blocks, h.Sum64())
	}
	return blocks
}

// routes returns a route for each model to all Nodes, with weights in proportion to what a Node of each speed gets done.
func (l *simLoad) routes(t *testing.T, policy route.Policy) *route.Table {
	var file strings.Builder
	file.WriteString("routes:\n")
	for i := range l.models {
		fmt.Fprintf(&file, "  - model: %[1]s\n    policy: %[2]v\n    targets:\n"+
			"      - {node: fast-*, model: %[1]s, weight: 7}\n"+
			"      - {node: middle-*, model: %[1]s, weight: 4}\n"+
			"      - {node: slow-*, model: %[1]s, weight: 2}\n", l.model(i), policy)
	}
	table, err := route.Parse("iop.yaml", []byte(file.String()))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// simResult is what one policy made of a load.
type simResult struct {
	policy       route.Policy
	completed    int
	first        []time.Duration // from arrival to the first token
	blocks, hits int
	possible     int // hits of the oracle
	loads        int // of models into memory
	length       time.Duration
	// Of the shares of the Nodes' slots that were taken, the means over Nodes of each load, and the worst of what
	// the busiest Node had of the mean.
	uses  []float64
	worst float64
}

func (r *simResult) count(blocks, hits, possible int) {
	r.blocks += blocks
	r.hits += hits
	r.possible += possible
}

// use takes in how the load was spread in the measured time.
func (r *simResult) use(engines []*simEngine, load *simLoad) {
	r.length = load.length - load.length/5
	busiest, sum := 0.0, 0.0
	for _, e := range engines {
		e.occupy(0)
		use := e.busy.Seconds() / r.length.Seconds() / float64(load.slots)
		busiest = max(busiest, use)
		sum += use
	}
	mean := sum / float64(len(engines))
	r.uses, r.worst = []float64{mean}, busiest/mean
}

func (r *simResult) perSecond() float64 { return float64(r.completed) / r.length.Seconds() }
func (r *simResult) hitRate() float64   { return float64(r.hits) / float64(r.blocks) }
func (r *simResult) ofOracle() float64  { return float64(r.hits) / float64(r.possible) }
func (r *simResult) spread() float64    { return r.worst }

func (r *simResult) meanUse() (mean float64) {
	for _, use := range r.uses {
		mean += use / float64(len(r.uses))
	}
	return mean
}

// quantile returns the time to the first token that a part of all runs did not exceed.
func (r *simResult) quantile(part float64) time.Duration {
	slices.Sort(r.first)
	return r.first[int(part*float64(len(r.first)-1))]
}

const simHeader = "| policy | runs/s | first token p50 | p99 | prefix hits | of the best possible | loads | mean load | most/mean |\n" +
	"| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"

func (r *simResult) row() string {
	return fmt.Sprintf("| `%v` | %.2f | %.2f s | %.2f s | %.0f %% | %.0f %% | %d | %.0f %% | %.2f |\n", r.policy, r.perSecond(),
		r.quantile(0.5).Seconds(), r.quantile(0.99).Seconds(), 100*r.hitRate(), 100*r.ofOracle(), r.loads, 100*r.meanUse(), r.spread())
}

func table(results []*simResult) string {
	var b strings.Builder
	b.WriteString(simHeader)
	for _, r := range results {
		b.WriteString(r.row())
	}
	return b.String()
}
