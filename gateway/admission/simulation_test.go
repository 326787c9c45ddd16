package admission

import (
	"container/heap"
	"container/list"
	"fmt"
	"slices"
	"testing"
	"time"

	"iop/execution"
	"iop/gateway/route"
)

// The simulation runs the real Controller in virtual time (it must be called in a synctest bubble): eight Nodes of
// three speeds, each with a bounded prefix cache, and conversations that begin at random times whether or not others
// wait. Everything happens in one goroutine, in the order of the events' times.

// simSpeed is a kind of engine.
type simSpeed struct {
	name    string
	nodes   int
	prefill float64 // tokens of the prompt a second
	decode  float64 // tokens of the answer a second
}

var simSpeeds = []simSpeed{
	{"fast", 3, 5000, 60},
	{"middle", 3, 2500, 35},
	{"slow", 2, 1000, 18},
}

// simEngine is the provider of one Node.
type simEngine struct {
	simSpeed
	node     execution.NodeID
	inFlight int
	loaded   []*simModel   // in memory, the one used last first
	sick     float64       // how many times as long everything takes; 0: as always
	runs     int           // so far
	since    time.Time     // when inFlight last changed
	busy     time.Duration // the sum of the time that slots were taken
}

// simModel is a model in an engine's memory.
type simModel struct {
	name  string
	cache *simCache
}

// model returns a model in memory, and whether it must be loaded first, in place of what was used longest ago. (What
// still runs of that one is let finish.)
func (e *simEngine) model(name string, load *simLoad) (m *simModel, cold bool) {
	i := slices.IndexFunc(e.loaded, func(m *simModel) bool { return m.name == name })
	if i < 0 {
		m, cold = &simModel{name, newSimCache(load.cacheBlocks)}, true
		if len(e.loaded) == load.fit {
			e.loaded = e.loaded[:load.fit-1]
		}
	} else {
		m = e.loaded[i]
		e.loaded = slices.Delete(e.loaded, i, i+1)
	}
	e.loaded = slices.Insert(e.loaded, 0, m)
	return m, cold
}

// occupy counts the slots' time and takes or gives back one.
func (e *simEngine) occupy(change int) {
	now := time.Now()
	e.busy += time.Duration(e.inFlight) * now.Sub(e.since)
	e.since = now
	e.inFlight += change
}

// times returns how long a run takes to the first token and from there to the end: each run beside it slows it down
// by a tenth.
func (e *simEngine) times(prefill, output int64) (first, rest time.Duration) {
	slowdown := (1 + 0.1*float64(e.inFlight-1)) * max(e.sick, 1)
	second := slowdown * float64(time.Second)
	return 20*time.Millisecond + time.Duration(float64(prefill)/e.prefill*second),
		time.Duration(float64(output-1) / e.decode * second)
}

// simCache is a prefix cache: the blocks of prompts, each named by the hash of all that leads to its end, of which the
// one used longest ago goes first. A limit of 0 is none.
type simCache struct {
	limit  int
	blocks map[uint64]*list.Element
	order  *list.List // of hashes, the last used at the front
}

func newSimCache(limit int) *simCache {
	return &simCache{limit: limit, blocks: map[uint64]*list.Element{}, order: list.New()}
}

// match returns how many blocks from the first on are there.
func (c *simCache) match(blocks []uint64) int {
	for i, b := range blocks {
		if c.blocks[b] == nil {
			return i
		}
	}
	return len(blocks)
}

// add puts blocks in. The first are the last to go: without them, the others are of no use.
func (c *simCache) add(blocks []uint64) {
	for _, b := range slices.Backward(blocks) {
		if e := c.blocks[b]; e != nil {
			c.order.MoveToFront(e)
		} else {
			c.blocks[b] = c.order.PushFront(b)
		}
	}
	for c.limit > 0 && c.order.Len() > c.limit {
		delete(c.blocks, c.order.Remove(c.order.Back()).(uint64))
	}
}

// simEvent is something that happens at a time.
type simEvent struct {
	at  time.Time
	seq int // of events at the same time, the earlier made
	do  func()
}

type simEvents []simEvent

func (e simEvents) Len() int      { return len(e) }
func (e simEvents) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e simEvents) Less(i, j int) bool {
	if e[i].at.Equal(e[j].at) {
		return e[i].seq < e[j].seq
	}
	return e[i].at.Before(e[j].at)
}
func (e *simEvents) Push(x any) { *e = append(*e, x.(simEvent)) }
func (e *simEvents) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// simulation is one run of one policy over one load.
type simulation struct {
	t       *testing.T
	ctl     *Controller
	table   *route.Table
	load    *simLoad
	engines []*simEngine
	byNode  map[execution.NodeID]*simEngine
	oracle  *simCache // what could be in a cache at all
	events  simEvents
	seq     int
	waiting []*simRun
	begin   time.Time // of the measured part
	end     time.Time
	result  simResult
}

// simRun is one request.
type simRun struct {
	*simTurn
	arrived time.Time
	waiter  *Waiter
}

func (s *simulation) after(d time.Duration, do func()) {
	s.seq++
	heap.Push(&s.events, simEvent{time.Now().Add(d), s.seq, do})
}

// simulate runs a load under a policy and says what came of it.
func simulate(t *testing.T, policy route.Policy, load *simLoad) *simResult {
	s := &simulation{
		t: t, load: load, table: load.routes(t, policy),
		ctl:    New(Config{Settle: -1}),
		byNode: map[execution.NodeID]*simEngine{},
		oracle: newSimCache(0),
		result: simResult{policy: policy},
	}
	s.ctl.Configure(s.table)
	s.start()
	warmUp := load.length / 5
	s.begin, s.end = time.Now().Add(warmUp), time.Now().Add(load.length)
	s.after(warmUp, func() {
		for _, e := range s.engines {
			e.occupy(0)
			e.busy = 0
		}
	})
	s.after(load.length, func() { s.result.use(s.engines, load) })
	if load.script != nil {
		load.script(s)
	}
	for _, start := range load.conversations() {
		s.after(start.at, func() { s.arrive(start.next(load)) })
	}
	for s.events.Len() > 0 {
		e := heap.Pop(&s.events).(simEvent)
		time.Sleep(time.Until(e.at))
		e.do()
		s.grant()
	}
	if n, waiting := s.ctl.Counts(); n != 0 || waiting != 0 {
		t.Errorf("%v: %d runs and %d waiters are left", policy, n, waiting)
	}
	s.ctl.Close()
	return &s.result
}

// start brings the Nodes online, each with as many models in memory as fit.
func (s *simulation) start() {
	for _, speed := range simSpeeds {
		for i := range speed.nodes {
			e := &simEngine{simSpeed: speed, node: execution.NodeID(fmt.Sprint(speed.name, "-", i)), since: time.Now()}
			s.engines = append(s.engines, e)
			s.byNode[e.node] = e
			for m := range s.load.fit {
				e.model(s.load.model((len(s.engines)+m)%s.load.models), s.load)
			}
			s.offer(e)
		}
	}
}

// offer is what a Node says of its provider.
func (s *simulation) offer(e *simEngine) {
	o := Offer{Provider: "p", Capacity: s.load.slots, Selectable: true}
	for i := range s.load.models {
		name := s.load.model(i)
		loaded := slices.ContainsFunc(e.loaded, func(m *simModel) bool { return m.name == name })
		o.Models = append(o.Models, Model{ID: name, Loaded: loaded})
	}
	s.ctl.Offer(e.node, 1, 0, nil, []Offer{o})
}

// arrive is the next turn of a conversation.
func (s *simulation) arrive(turn *simTurn) {
	r := &simRun{simTurn: turn, arrived: time.Now()}
	ticket, waiter, err := s.ctl.Acquire(Request{
		Route:     s.table.Resolve(turn.conversation.model),
		Principal: Principal{ID: turn.principal},
		Tokens:    turn.tokens() + s.load.output,
		Output:    s.load.output, // clients tell no better
		Affinity:  AffinityOf(turn.principal, "", "", turn.prompt),
	})
	switch {
	case err != nil:
		s.t.Errorf("an arrival: %v", err)
	case ticket != nil:
		s.run(r, ticket)
	default:
		r.waiter = waiter
		s.waiting = append(s.waiting, r)
	}
}

// run is a run at the engine of its ticket.
func (s *simulation) run(r *simRun, ticket *Ticket) {
	e := s.byNode[ticket.Target.Node]
	e.occupy(1)
	e.runs++
	m, cold := e.model(ticket.Model, s.load)
	cached := m.cache.match(r.blocks)
	hit := int64(cached * blockBytes / bytesPerToken)
	first, rest := e.times(r.tokens()-hit, r.output)
	if cold {
		first += s.load.loading
		s.offer(e)
	}
	if s.measured() {
		s.result.count(len(r.blocks), cached, s.oracle.match(r.blocks))
		s.result.first = append(s.result.first, time.Since(r.arrived)+first)
		if cold {
			s.result.loads++
		}
	}
	s.after(first, func() {
		m.cache.add(r.blocks)
		s.oracle.add(r.blocks)
	})
	sample := Sample{FirstToken: first, Duration: first + rest, Input: r.tokens(), Output: r.output, Cached: hit}
	s.after(first+rest, func() {
		s.finish(r, m)
		e.occupy(-1)
		ticket.Served(sample)
		ticket.Release()
	})
}

// measured reports whether what happens now counts.
func (s *simulation) measured() bool {
	now := time.Now()
	return !now.Before(s.begin) && now.Before(s.end)
}

// finish ends a run: what was generated is in the cache too, and the conversation may go on.
func (s *simulation) finish(r *simRun, m *simModel) {
	if s.measured() {
		s.result.completed++
	}
	if next := r.conversation.answered(r.simTurn, s.load); next != nil {
		m.cache.add(r.conversation.answer)
		s.oracle.add(r.conversation.answer)
		s.after(r.think, func() { s.arrive(next) })
	}
}

// grant runs what waited and has got its ticket.
func (s *simulation) grant() {
	s.waiting = slices.DeleteFunc(s.waiting, func(r *simRun) bool {
		select {
		case <-r.waiter.Ready():
		default:
			return false
		}
		ticket, err := r.waiter.Result()
		if err != nil {
			s.t.Errorf("a waiter: %v", err)
		} else {
			s.run(r, ticket)
		}
		return true
	})
}
