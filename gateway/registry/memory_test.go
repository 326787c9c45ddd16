package registry

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/gateway/admission"
	"iop/gateway/route"
	"iop/state"
	"iop/tunnel"
)

// restarted is the registry of the next process, with the same state.
func restarted(t *testing.T, store *fakeStore) *Registry {
	t.Helper()
	r, err := New(Config{Store: store, Admission: admission.New(admission.Config{Settle: -1}), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Recall(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// knows reports whether a request for the model would wait.
func (r *Registry) knows(model string) bool {
	return r.adm.Knows(&route.Route{Name: model, Advertised: true})
}

// running runs the registry until the returned function is called.
func running(t *testing.T, r *Registry) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	return func() { cancel(); <-done }
}

// TestKnownAfterRestart: the next process knows Nodes and models of before, when each was seen last, and why it went.
func TestKnownAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &fakeStore{}
		r := restarted(t, store)
		stop := running(t, r)
		left, crashed := newSession("a"), newSession("b")
		left.node, left.info.Models = "left", []tunnel.ModelInfo{{Provider: "p", ID: "m"}, {Provider: "q", ID: "m"}, {Provider: "p", ID: "l"}}
		crashed.node = "crashed"
		connect(t, r, left)
		connect(t, r, crashed)
		time.Sleep(2 * saveDelay)
		r.gone("left", left.gen, errors.New("connection_lost"))
		gone := time.Now()
		time.Sleep(2 * saveDelay)
		before := store.written()
		r.offer("crashed", crashed.gen) // nothing new
		time.Sleep(noteEvery + saveDelay)
		if n := store.written() - before; n != 1 {
			t.Errorf("%d writes in %v in which nothing changed", n, noteEvery)
		}
		if got := store.noted("left").Models; !slices.Equal(got, []string{"m", "l"}) {
			t.Errorf("models %v", got)
		}

		next := restarted(t, store) // as after a crash
		views := next.Nodes()
		if len(views) != 2 || views[0].Node != "crashed" || views[1].Node != "left" {
			t.Fatalf("%+v", views)
		}
		if v := views[1]; !v.LastSeen.Equal(gone) || v.LastCause != "connection_lost" {
			t.Errorf("%+v, it went %v", v, gone)
		}
		if v := views[0]; time.Since(v.LastSeen) > noteEvery || v.LastCause != edgeEnded {
			t.Errorf("%+v", v)
		}
		if !next.knows("m") || !next.knows("l") || next.knows("never") {
			t.Error("the models of before are not known")
		}
		empty := newSession("c") // its provider is not there yet
		empty.node, empty.info = "left", &tunnel.NodeInfo{}
		stopNext := running(t, next)
		connect(t, next, empty)
		time.Sleep(2 * saveDelay)
		stopNext()
		if !restarted(t, store).knows("l") {
			t.Error("a Node without models took away those that it had")
		}
		stop()
	})
}

// TestDrainOutlivesTheEdge: an operator's drain ends with the Node's process or by an operator, not with the Edge's.
func TestDrainOutlivesTheEdge(t *testing.T) {
	store := &fakeStore{}
	r := restarted(t, store)
	connect(t, r, newSession("a"))
	if err := r.DrainNode("n"); err != nil {
		t.Fatal(err)
	}
	next := restarted(t, store) // nobody waited for a write in the background
	if v := next.Nodes()[0]; !v.Drained {
		t.Errorf("%+v", v)
	}
	connect(t, next, newSession("a"))
	if next.target(t) != 0 {
		t.Error("the drained process gets runs after the Edge's restart")
	}
	next = restarted(t, store)
	fresh := newSession("b")
	connect(t, next, fresh)
	if next.target(t) != fresh.gen || next.Nodes()[0].Drained {
		t.Error("a new process is drained")
	}
	next.save()
	next = restarted(t, store)
	if err := next.ResumeNode("n"); !errors.Is(err, ErrUnknownNode) || next.Nodes()[0].Drained {
		t.Errorf("the drain is back: %v", err)
	}

	connect(t, next, newSession("c"))
	if err := next.DrainNode("n"); err != nil {
		t.Fatal(err)
	}
	next = restarted(t, store)
	if err := next.ResumeNode("n"); err != nil { // while it is away
		t.Error(err)
	}
	next = restarted(t, store)
	same := newSession("c")
	connect(t, next, same)
	if next.target(t) != same.gen {
		t.Error("it is still drained")
	}
}

// TestForgetNode: a Node that an operator forgets is gone for the next process too; models that another one had stay known.
func TestForgetNode(t *testing.T) {
	store := &fakeStore{}
	r := restarted(t, store)
	if err := r.ForgetNode(t.Context(), "n"); !errors.Is(err, ErrUnknownNode) {
		t.Errorf("got %v", err)
	}
	other, s := newSession("b"), newSession("a")
	other.node = "other"
	s.info.Models = append(s.info.Models, tunnel.ModelInfo{Provider: "p", ID: "only-here"})
	connect(t, r, s)
	connect(t, r, other)
	if err := r.ForgetNode(t.Context(), "n"); !errors.Is(err, ErrConnected) {
		t.Errorf("got %v", err)
	}
	r.gone("other", other.gen, nil)
	r.gone("n", s.gen, nil)
	r.save()
	if err := r.ForgetNode(t.Context(), "n"); err != nil {
		t.Fatal(err)
	}
	for when, r := range map[string]*Registry{"now": r, "after a restart": restarted(t, store)} {
		if views := r.Nodes(); len(views) != 1 || views[0].Node != "other" || r.knows("only-here") || !r.knows("m") {
			t.Errorf("%s: %+v, only-here %v, m %v", when, views, r.knows("only-here"), r.knows("m"))
		}
	}
}

// TestUnwritten: what a failing state did not take is written once it does.
func TestUnwritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &fakeStore{broken: true}
		r := restarted(t, store)
		stop := running(t, r)
		connect(t, r, newSession("a"))
		if err := r.DrainNode("n"); err != nil {
			t.Errorf("a drain needs no state: %v", err)
		}
		time.Sleep(time.Minute)
		if n := store.written(); n < 5 || n > 20 {
			t.Errorf("%d tries in a minute", n)
		}
		store.mu.Lock()
		store.broken = false
		store.mu.Unlock()
		time.Sleep(2 * saveRetry)
		if n := store.noted("n"); n.Drained != "a" || !slices.Equal(n.Models, []string{"m"}) {
			t.Errorf("%+v", n)
		}
		stop()
	})
}

// TestForgottenNodes: what nobody sees for a month is forgotten, and the one that is away for longest makes room.
func TestForgottenNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := restarted(t, &fakeStore{})
		stop := running(t, r)
		s := newSession("a")
		connect(t, r, s)
		r.gone("n", s.gen, nil)
		stays := newSession("b")
		stays.node = "stays"
		connect(t, r, stays)
		time.Sleep(state.NodeMemoryLife + 2*noteEvery)
		if views := r.Nodes(); len(views) != 1 || views[0].Node != "stays" {
			t.Errorf("%+v", views)
		}
		r.mu.Lock()
		for i := range maxOfflineNodes - 1 {
			r.nodeLocked(execution.NodeID(rune('A' + i))).lastSeen = time.Now().Add(time.Duration(i) * time.Second)
		}
		r.nodeLocked("new")
		oldest, next := r.nodes["A"], r.nodes["B"]
		r.mu.Unlock()
		if oldest != nil || next == nil {
			t.Error("another one than the oldest made room")
		}
		stop()
	})
}
