package admission_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/gateway/admission"
	"iop/gateway/route"
	"iop/openai"
)

// tables are what the random test switches between.
func tables() []*route.Table {
	groups := func(r *route.Route) *route.Route {
		r.Groups = []route.Group{
			{Targets: []route.Target{{Node: "a*", Model: "m0", Weight: 3}, {Model: "m1", Weight: 1}}},
			{When: route.WhenDown, Targets: []route.Target{{Labels: map[string]string{"site": "b"}, Model: "m2", Weight: 2}}},
			{Targets: []route.Target{{Node: "b5", Model: "m0", Weight: 1}, {Node: "b5", Model: "m3", Weight: 5}}},
		}
		return r
	}
	var list []*route.Table
	for _, p := range []route.Policy{route.LeastBusy, route.Weighted, route.LowestWait, route.WarmFirst, route.PrefixAffinity} {
		list = append(list,
			admission.TableOf(p != route.WarmFirst, groups(&route.Route{Name: "chat", Policy: p}), &route.Route{Name: "m1", Policy: p, QueueLimit: 20}),
			admission.TableOf(true, groups(&route.Route{Name: "other", Aliases: []string{"chat"}, Policy: p, Principals: []string{"p*"}})))
	}
	return append(list, route.Advertised())
}

// leasedTables are tables of which routes have slots, and permissions for each.
func leasedTables() []*route.Table {
	chat := &route.Route{Name: "chat", Groups: []route.Group{
		{Targets: []route.Target{{Node: "a*", Model: "m0", Weight: 3, Slot: "s1"}, {Model: "m1", Weight: 1, Slot: "s2"}}},
		{When: route.WhenDown, Targets: []route.Target{{Model: "m2", Weight: 2, Slot: "s1"}}},
	}}
	mixed := &route.Route{Name: "other", Policy: route.PrefixAffinity, Groups: []route.Group{
		{Targets: []route.Target{{Model: "m0", Weight: 3, Slot: "s2"}, {Node: "b*", Model: "m0", Weight: 1}}},
	}}
	return []*route.Table{admission.TableOf(true, chat, mixed), admission.TableOf(false, chat)}
}

// permit says what Nodes may have that are anywhere.
func (s *storm) permit() {
	_, id := s.node()
	s.c.Permit([][]admission.Permission{nil, {{Node: id, Slots: s.slots()}}, {{Node: "a0", Slots: []string{"s*"}}, {Node: "b2"}}}[s.r.IntN(3)])
}

func (s *storm) slots() []string {
	return [][]string{nil, {"s1"}, {"s?"}, {"t", "s2"}}[s.r.IntN(4)]
}

// storm is a Controller that random things happen to.
type storm struct {
	t       *testing.T
	r       *rand.Rand
	c       *admission.Controller
	tables  []*route.Table
	table   *route.Table
	gens    []execution.Generation
	tickets []*admission.Ticket
	waiters []*admission.Waiter
	ended   []*admission.Ticket // released
	untold  []*admission.Ticket // released, with something to be told yet
	rules   map[string]int      // by which tickets were given
	calm    bool                // the Nodes stay what they are, and breakers may open
	picky   bool                // requests ask for operations that not every place has
	asked   map[*admission.Waiter]*admission.Request
	leased  bool // routes have slots
}

func (s *storm) node() (int, execution.NodeID) {
	i := s.r.IntN(len(s.gens))
	return i, execution.NodeID(fmt.Sprint(string("aabbbb"[i%6]), i))
}

func take[T any](r *rand.Rand, list *[]T) (x T, ok bool) {
	if len(*list) == 0 {
		return x, false
	}
	i := r.IntN(len(*list))
	x = (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	return x, true
}

func (s *storm) acquire() {
	names := []string{"chat", "other", "m0", "m1", "m2", "m3", "never"}
	r := s.table.Resolve(names[s.r.IntN(len(names))])
	if r == nil {
		r = s.tables[0].Resolve("chat") // of a former table, maybe
	}
	req := admission.Request{
		Route:     r,
		Principal: admission.Principal{ID: []string{"p0", "p1", "p2", "q3", "q4"}[s.r.IntN(5)], Weight: s.r.IntN(4), Priority: s.r.IntN(3)},
		Tokens:    s.r.Int64N(20000), Output: s.r.Int64N(500),
	}
	if s.r.IntN(2) == 0 {
		req.Affinity = admission.AffinityOf(req.Principal.ID, fmt.Sprint("s", s.r.IntN(9)), "", nil)
	}
	if last := len(s.ended); last > 0 && s.r.IntN(4) == 0 {
		req.Line = s.ended[last-1].Line
		for range s.r.IntN(3) {
			req.Avoid = append(req.Avoid, s.ended[s.r.IntN(last)].Target)
		}
	}
	s.ask(&req)
	ticket, w, err := s.c.Acquire(req)
	switch {
	case ticket != nil && w == nil && err == nil:
		if slices.Contains(req.Avoid, ticket.Target) {
			s.t.Fatalf("%v was to be avoided", ticket.Target)
		}
		if ticket.Reason.Rule == "last_resort" && s.c.InService(&req) {
			s.t.Fatalf("%v got a run as a last resort, with another in service", ticket.Target)
		}
		s.able(ticket, &req)
		s.rules[ticket.Reason.Rule]++
		s.tickets = append(s.tickets, ticket)
	case ticket == nil && w != nil && err == nil:
		s.waiters = append(s.waiters, w)
		s.asked[w] = &req
	case ticket != nil || w != nil:
		s.t.Fatalf("got %v, %v, %v", ticket, w, err)
	case errors.Is(err, admission.ErrUnsupported):
		s.rules["unsupported"]++
	default:
		s.refused(err, "refused")
	}
}

// ops are what picky requests ask for.
var ops = [...]openai.OpID{openai.OpChatCompletions, openai.OpEmbeddings, openai.OpMessages}

// ask makes a request picky.
func (s *storm) ask(req *admission.Request) {
	if s.picky {
		req.Op = ops[s.r.IntN(len(ops))]
		req.Kinds = []admission.Kinds{0, admission.EveryKind, admission.EveryKind &^ admission.KindOllama}[s.r.IntN(3)]
	}
}

// can makes an offer one that not all requests can use.
func (s *storm) can(o *admission.Offer) {
	if !s.picky {
		return
	}
	for _, op := range ops {
		if s.r.IntN(2) == 0 {
			o.Raw = o.Raw.With(op)
		}
	}
	o.Runs = []admission.Kinds{0, admission.KindOpenAI, admission.KindOllama}[s.r.IntN(3)]
}

// refused counts an answer if it is that of a slot.
func (s *storm) refused(err error, what string) {
	if _, ok := errors.AsType[*admission.NotPermittedError](err); ok {
		s.rules[what]++
	}
}

func (s *storm) able(t *admission.Ticket, req *admission.Request) {
	if !s.c.Able(t.Target, req) {
		s.t.Fatalf("%v can't run %v", t.Target, req.Op)
	}
	if t.Normalized && t.Kind&req.Kinds == 0 {
		s.t.Fatalf("%v can't run %v normalized", t.Target, req.Op)
	}
	if t.Normalized {
		s.rules["normalized"]++
	}
}

// collect takes over the tickets of those who waited.
func (s *storm) collect() {
	s.waiters = slices.DeleteFunc(s.waiters, func(w *admission.Waiter) bool {
		if !answered(w) {
			if place, _ := w.Place(); place < 1 {
				s.t.Fatalf("place %d", place)
			}
			return false
		}
		defer delete(s.asked, w)
		ticket, err := w.Result()
		s.refused(err, "waited: refused")
		if errors.Is(err, admission.ErrNotConnected) {
			s.rules["waited: not connected"]++
		}
		if ticket != nil {
			s.able(ticket, s.asked[w])
			s.rules["waited: "+ticket.Reason.Rule]++
			s.tickets = append(s.tickets, ticket)
		}
		return true
	})
}

func (s *storm) offer() {
	i, id := s.node()
	var replaces execution.Generation
	switch s.r.IntN(4) {
	case 0:
		s.gens[i]++
	case 1:
		replaces = s.gens[i]
		s.gens[i]++
	}
	o := admission.Offer{Provider: "p", Capacity: 1 + s.r.IntN(4), Selectable: s.r.IntN(5) > 0}
	o.Drained = !o.Selectable && s.r.IntN(2) == 0
	for m := range 4 {
		if s.r.IntN(3) > 0 {
			o.Models = append(o.Models, admission.Model{ID: fmt.Sprint("m", m), Loaded: s.r.IntN(2) == 0})
		}
	}
	if s.leased {
		o.Slots = s.slots()
	}
	second := o
	second.Provider, second.Models = "q", o.Models[:len(o.Models)/2]
	s.can(&o)
	s.can(&second)
	if gone := s.gens[i]; gone > 2 {
		s.c.Remove(id, gone-2)
	}
	labels := map[string]string{"site": string(rune('a' + s.r.IntN(2)))}
	s.c.Offer(id, s.gens[i], replaces, labels, []admission.Offer{o, second}[:1+s.r.IntN(2)])
}

func (s *storm) end() {
	t, ok := take(s.r, &s.tickets)
	if !ok {
		return
	}
	switch s.r.IntN(4) {
	case 0:
		s.tell(t)
	case 1:
		t.Answering()
	case 2:
		t.Done() // its provider is at work still
	}
	t.Release()
	s.ended = append(s.ended, t)
	s.untold = append(s.untold, t)
}

// tell tells what became of a run, or not, and that this was all.
func (s *storm) tell(t *admission.Ticket) {
	switch s.r.IntN(6) {
	case 0, 1, 2:
		t.Failed()
	case 3:
		t.Served(admission.Sample{FirstToken: time.Second, Duration: 2 * time.Second, Input: 100, Output: 100})
	case 4:
		t.Refused(time.Duration(s.r.IntN(3)) * time.Second)
	}
	t.Done()
}

func (s *storm) step() {
	n := s.r.IntN(100)
	if s.calm && n >= 83 && n < 96 {
		n = s.r.IntN(83)
	}
	switch {
	case s.leased && s.r.IntN(20) == 0:
		s.permit()
	case n < 45:
		s.acquire()
	case n < 67:
		s.end()
	case n < 78:
		for range s.r.IntN(4) {
			if t, ok := take(s.r, &s.untold); ok {
				s.tell(t)
			}
		}
	case n < 83:
		if w, ok := take(s.r, &s.waiters); ok {
			w.Leave()
		}
	case n < 92:
		s.offer()
	case n < 94:
		i, id := s.node()
		s.c.Withdraw(id, s.gens[i])
	case n < 96:
		i, id := s.node()
		s.c.Remove(id, s.gens[i])
	case n < 97:
		s.table = s.tables[s.r.IntN(len(s.tables))]
		s.c.Configure(s.table)
	default:
		time.Sleep(time.Duration(s.r.IntN(3000)) * time.Millisecond)
	}
	synctest.Wait() // a breaker whose time has come while its session was away opens at once, on a goroutine
	s.collect()
}

// Whatever happens in whatever order: the books are right after each step, and all returns to zero.
func TestRandomSteps(t *testing.T) {
	rules := map[string]int{}
	steps := 10_000
	if admission.RaceEnabled() || testing.Short() { // for its goroutines alone; make test-plain does the rest
		steps = 2000
	}
	for seed, nodes := range []int{6, 6, 40, 2, 6, 20, 2, 6} {
		synctest.Test(t, func(t *testing.T) {
			s := &storm{t: t, r: rand.New(rand.NewPCG(3, uint64(seed))), c: admission.New(admission.Config{QueueLimit: 40, AffinityEntries: 1 << 10, Grace: 4 * time.Second}), tables: tables(), rules: rules, picky: seed == 4 || seed == 5, leased: seed >= 6, asked: map[*admission.Waiter]*admission.Request{}, gens: make([]execution.Generation, nodes)}
			if s.leased {
				s.tables = leasedTables()
			}
			s.table = s.tables[len(s.tables)-1]
			for i := range steps {
				s.calm = i%1000 >= 300
				s.step()
				if err := s.c.Check(s.tickets, s.untold...); err != nil {
					t.Fatalf("seed %d, step %d: %v", seed, i, err)
				}
			}
			for _, w := range s.waiters {
				w.Leave()
			}
			s.waiters = nil
			for len(s.tickets) > 0 {
				s.end()
			}
			for _, t := range s.untold {
				t.Done()
			}
			wantIdle(t, s.c)
			if err := s.c.Check(nil); err != nil {
				t.Error(err)
			}
			if principals, flows := s.c.Remembered(); principals != 0 || flows != 0 {
				t.Errorf("%d principals and %d flows are kept for nobody", principals, flows)
			}
			s.c.Close()
		})
	}
	for _, rule := range []string{"trial", "last_resort", "waited: trial", "waited: last_resort", "unsupported", "normalized", "refused", "waited: refused", "waited: not connected"} {
		if rules[rule] == 0 {
			t.Errorf("no run by %q: %v", rule, rules)
		}
	}
}
