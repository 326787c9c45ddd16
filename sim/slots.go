package sim

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// errFull is the answer of a line that takes nobody more.
var errFull = errors.New("all slots are busy and the queue is full")

// slots hands out the engine's places, first come first served.
type slots struct {
	mu      sync.Mutex
	places  int
	queue   int
	busy    int
	waiting list.List // of chan struct{}, closed when the place is given
	longest int       // highest waiting.Len()
}

// acquire takes a place, waiting its turn. Whoever gets a nil error must call release once.
func (s *slots) acquire(ctx context.Context) error {
	s.mu.Lock()
	if s.busy < s.places && s.waiting.Len() == 0 {
		s.busy++
		s.mu.Unlock()
		return nil
	}
	if s.waiting.Len() >= s.queue {
		s.mu.Unlock()
		return errFull
	}
	turn := make(chan struct{})
	e := s.waiting.PushBack(turn)
	s.longest = max(s.longest, s.waiting.Len())
	s.mu.Unlock()

	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-turn: // the place came together with the end of ctx: hand it on
		s.busy--
		s.wakeLocked()
	default:
		s.waiting.Remove(e)
	}
	return ctx.Err()
}

func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	s.wakeLocked()
}

// resize changes the number of places and the length of the queue. Those who run or wait keep what they have.
func (s *slots) resize(places, queue int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.places, s.queue = places, queue
	s.wakeLocked()
}

// rebase forgets how long the queue has been.
func (s *slots) rebase() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.longest = s.waiting.Len()
}

func (s *slots) wakeLocked() {
	for s.busy < s.places && s.waiting.Len() > 0 {
		s.busy++
		close(s.waiting.Remove(s.waiting.Front()).(chan struct{}))
	}
}

// fill adds the slots' part to st.
func (s *slots) fill(st *Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Slots, st.Busy, st.QueueLimit, st.QueuePeak = s.places, s.busy, s.queue, s.longest
}
