package admission

import (
	"slices"
	"time"

	"iop/openai"
)

// Kinds is a set of the kinds of adapters that run normalized runs. The zero value is empty.
type Kinds uint8

// The kinds.
const (
	KindOpenAI Kinds = 1 << iota
	KindOllama
	KindAnthropic
	KindOther // of a Node that is newer than this Edge

	// EveryKind is all of them.
	EveryKind = KindOpenAI | KindOllama | KindAnthropic | KindOther
)

// KindOf is the kind of an adapter's name.
func KindOf(adapter string) Kinds {
	switch adapter {
	case "openai":
		return KindOpenAI
	case "ollama":
		return KindOllama
	case "anthropic":
		return KindAnthropic
	}
	return KindOther
}

// ability is what a place can run.
type ability struct {
	raw  openai.OpSet // relayed as they are
	runs Kinds        // its adapter's kind, if that can run normalized runs; else empty
}

// need is what a request asks of a place. The zero value asks for nothing.
type need struct {
	op    openai.OpID
	kinds Kinds // the adapters that may run it as a normalized run
}

func (r *Request) need() need { return need{r.Op, r.Kinds} }

// serves reports whether a place of that ability can run what is needed.
func (a ability) serves(n need) bool {
	return n.op == 0 || a.raw.Has(n.op) || a.runs&n.kinds != 0
}

// scope is which places a request may use.
type scope struct {
	avoid []Target
	need  need
}

func (r *Request) scope() scope { return scope{r.Avoid, r.need()} }

// tally counts what differs little: there are as many entries as there are different values, which are few.
type tally[T comparable] []counted[T]

type counted[T comparable] struct {
	value T
	n     int
}

// add counts n more of the value, which may be negative.
func (t *tally[T]) add(value T, n int) {
	for i := range *t {
		e := &(*t)[i]
		if e.value != value {
			continue
		}
		if e.n += n; e.n == 0 {
			last := len(*t) - 1
			(*t)[i] = (*t)[last]
			*t = (*t)[:last]
		}
		return
	}
	*t = append(*t, counted[T]{value, n})
}

// canRun reports whether some candidate of the line, be it in service or not, can run what is needed, and whether each
// can.
func (l *line) canRun(n need) (some, each bool) {
	each = true
	for i := range l.abilities {
		if l.abilities[i].value.serves(n) {
			some = true
		} else {
			each = false
		}
	}
	return some, each
}

// loss is what a candidate that is gone could run, and until when it may be back. A line has few of them, and thousands of
// lines have one, hence no map.
type loss struct {
	ability ability
	until   time.Time
}

// lostLocked notes that p goes out of its lines. What only it could run is still waited for, for the route's grace: its
// Node may be about to come back.
func (c *Controller) lostLocked(p *place) {
	now := time.Now()
	for _, s := range p.seats {
		l := s.line
		l.lost = slices.DeleteFunc(l.lost, func(o loss) bool { return o.ability == p.ability || time.Until(o.until) <= 0 })
		l.lost = append(l.lost, loss{p.ability, now.Add(c.graceOf(l))})
	}
}

// missing reports whether nothing of the line can run what is needed, although something of it is known, and until when a
// place that could, and is gone, is waited for.
func (l *line) missing(n need) (missing bool, until time.Time) {
	if l.candidates == 0 {
		return false, until
	}
	if some, _ := l.canRun(n); some {
		return false, until
	}
	for _, o := range l.lost {
		if o.ability.serves(n) && o.until.After(until) {
			until = o.until
		}
	}
	return true, until
}

// hopeless reports whether something is missing that nobody waits for any more.
func (l *line) hopeless(n need) bool {
	missing, until := l.missing(n)
	return missing && time.Until(until) <= 0
}

// refuseHopelessLocked answers those of the line who would wait for nothing.
func (c *Controller) refuseHopelessLocked(l *line) {
	hopeless := false
	for i := range l.needs {
		hopeless = hopeless || l.hopeless(l.needs[i].value)
	}
	if !hopeless {
		return
	}
	for _, w := range l.all() {
		if l.hopeless(w.request.need()) {
			c.failLocked(w, ErrUnsupported)
		}
	}
}

// alike reports whether all who wait in the line may use the same places.
func (l *line) alike() bool {
	if len(l.needs) <= 1 {
		return true
	}
	for i := range l.needs {
		if _, each := l.canRun(l.needs[i].value); !each {
			return false
		}
	}
	return true
}

// considerEach is consider for a line in which not all who wait may use the same places: who comes first by the line's
// order is looked for among all that the place can run.
func (t *turn) considerEach(s *seat) {
	for i := range s.line.needs {
		n := s.line.needs[i].value
		x := t.serves(s, scope{need: n})
		if x == nil {
			continue
		}
		for _, f := range s.line.flows {
			w := f.firstOf(n)
			if w == nil {
				continue
			}
			if t.flow == nil || t.goesBefore(f, w) {
				t.flow, t.flowAs, t.first = f, x, w
			}
		}
	}
}

// firstOf is the first waiter of the flow that needs n, or nil.
func (f *flow) firstOf(n need) (first *Waiter) {
	for _, w := range f.waiters {
		if w.request.need() == n && (first == nil || w.before(first)) {
			first = w
		}
	}
	return first
}

// goesBefore reports whether f with its waiter w goes before what the turn has so far.
func (t *turn) goesBefore(f *flow, w *Waiter) bool {
	if t.first != nil && t.flow.line == f.line {
		return t.sooner(f, w, t.flow, t.first)
	}
	return t.before(f, t.flow)
}

// sooner reports whether f with its waiter w goes before g with v, of the same line.
func (t *turn) sooner(f *flow, w *Waiter, g *flow, v *Waiter) bool {
	switch {
	case f == g:
		return w.before(v)
	case t.oldest:
		if f.turn != g.turn {
			return f.turn < g.turn
		}
	case f.late != g.late:
		return f.late
	case f.late:
		if f.tag != g.tag {
			return f.tag < g.tag
		}
	case f.principal.time != g.principal.time:
		return f.principal.time < g.principal.time
	}
	return w.request.Line < v.request.Line
}
