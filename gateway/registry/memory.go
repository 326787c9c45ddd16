package registry

import (
	"context"
	"errors"
	"hash/maphash"
	"time"

	"iop/execution"
	"iop/state"
	"iop/tunnel"
)

// What outlives the Edge's process: which Nodes there were, what they offered, and which of them an operator drained. It is
// written in the background, but for a drain.

const (
	saveDelay = time.Second     // between a change and its writing, so that many are one
	saveRetry = 5 * time.Second // after one that failed
	saveTime  = 5 * time.Second // that one may take
	// noteEvery is how often it is noted that a Node is still connected: after a crash of the Edge the Nodes' last signs of
	// life are off by this at most.
	noteEvery = 5 * time.Minute
	// edgeEnded is why the last session of a Node ended that was connected when the Edge last wrote.
	edgeEnded = "shutdown: the Edge's process ended"
)

// Recall takes in what is known from former processes. It is called once, before any Node registers.
func (r *Registry) Recall(ctx context.Context) error {
	all, err := r.store.RememberedNodes(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range all {
		m := &all[i]
		n := r.nodeLocked(m.Node)
		n.drained, n.lastSeen, n.lastCause = m.Drained, m.Seen, m.Cause
		if n.lastCause == "" {
			n.lastCause = edgeEnded
		}
		r.adm.Remember(m.Node, m.Models)
	}
	return nil
}

// ErrConnected says that a Node can't be forgotten: it is connected.
var ErrConnected = errors.New("the node is connected: stop it first")

// ForgetNode forgets a Node that is away: what it offered, and whether it is drained. ErrUnknownNode, ErrConnected, or the state's
// error.
func (r *Registry) ForgetNode(ctx context.Context, id execution.NodeID) error {
	r.saving.Lock() // a write under way must not bring it back
	defer r.saving.Unlock()
	if err := r.away(id); err != nil {
		return err
	}
	if err := r.store.ForgetNode(ctx, id); err != nil {
		return err
	}
	others, err := r.store.RememberedNodes(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.nodes[id]; n == nil || len(n.sessions) > 0 {
		return nil // it came meanwhile, and is known anew
	}
	delete(r.nodes, id)
	delete(r.unsaved, id)
	r.adm.Forget(id)
	for i := range others { // may have had the same models
		r.adm.Remember(others[i].Node, others[i].Models)
	}
	return nil
}

// away returns an error unless the Node is known and not connected.
func (r *Registry) away(id execution.NodeID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch n := r.nodes[id]; {
	case n == nil:
		return ErrUnknownNode
	case len(n.sessions) > 0:
		return ErrConnected
	}
	return nil
}

// Run writes what later processes need to know until ctx ends, and then what is left.
func (r *Registry) Run(ctx context.Context) {
	still := time.NewTicker(noteEvery)
	defer still.Stop()
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			r.noteConnected()
			r.save()
			return
		case <-still.C:
			r.noteConnected()
		case <-r.wake:
			if due == nil {
				due = time.After(saveDelay)
			}
		case <-due:
			due = nil
			if !r.save() {
				due = time.After(saveRetry)
			}
		}
	}
}

// noteLocked has it written what is known of a Node now.
func (r *Registry) noteLocked(n *node) {
	if _, ok := r.unsaved[n.id]; !ok {
		r.unsaved[n.id] = nil
	}
	r.wakeUp()
}

func (r *Registry) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

var digestSeed = maphash.MakeSeed()

// noteModelsLocked has it written which models a Node offers, if these are others than before. One that offers none has nothing
// that would be missed: its provider may have been started after it.
func (r *Registry) noteModelsLocked(n *node, models []tunnel.ModelInfo) {
	var h maphash.Hash
	h.SetSeed(digestSeed)
	for i := range models {
		h.WriteString(models[i].ID)
		h.WriteByte(0)
	}
	if len(models) == 0 || h.Sum64() == n.models {
		return
	}
	n.models = h.Sum64()
	names, seen := make([]string, 0, len(models)), make(map[string]bool, len(models))
	for i := range models {
		if id := models[i].ID; len(id) <= maxModelIDLength && !seen[id] {
			seen[id] = true
			names = append(names, id)
		}
	}
	r.unsaved[n.id] = names
	r.wakeUp()
}

// noteConnected has it written that those that are connected still are, and forgets those that have been away for too long, as
// the state does.
func (r *Registry) noteConnected() {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := time.Now().Add(-state.NodeMemoryLife)
	for id, n := range r.nodes {
		switch {
		case n.current != nil && n.current.online:
			r.noteLocked(n)
		case len(n.sessions) == 0 && n.lastSeen.Before(old):
			delete(r.nodes, id)
		}
	}
}

// save writes what is unsaved, and reports whether the state has it.
func (r *Registry) save() bool {
	r.saving.Lock()
	defer r.saving.Unlock()
	batch := r.takeUnsaved()
	if len(batch) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), saveTime)
	defer cancel()
	err := r.store.RememberNodes(ctx, batch)
	switch {
	case err != nil && !r.unwritten:
		r.log.Warn("could not write which Nodes are known: a restart of the Edge would forget what changed; retrying", "nodes", len(batch), "error", err)
	case err == nil && r.unwritten:
		r.log.Info("the known Nodes are written again")
	}
	if r.unwritten = err != nil; r.unwritten {
		r.giveBack(batch)
	}
	return err == nil
}

// giveBack makes unsaved again what could not be written.
func (r *Registry) giveBack(batch []state.NodeMemory) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range batch {
		if m := &batch[i]; r.unsaved[m.Node] == nil { // else there are newer ones
			r.unsaved[m.Node] = m.Models
		}
	}
	r.wakeUp()
}

func (r *Registry) takeUnsaved() (batch []state.NodeMemory) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for id, models := range r.unsaved {
		n := r.nodes[id]
		if n == nil {
			continue // it made room for others
		}
		m := state.NodeMemory{Node: id, Seen: now, Drained: n.drained, Models: models}
		if n.current == nil || !n.current.online {
			m.Seen, m.Cause = n.lastSeen, n.lastCause
		}
		batch = append(batch, m)
	}
	clear(r.unsaved)
	return batch
}

// evictLocked forgets the Node that has been away for longest.
func (r *Registry) evictLocked() {
	var oldest *node
	for _, n := range r.nodes {
		if len(n.sessions) == 0 && (oldest == nil || n.lastSeen.Before(oldest.lastSeen)) {
			oldest = n
		}
	}
	if oldest != nil {
		delete(r.nodes, oldest.id)
	}
}
