package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestSlotsAreGivenInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slots{places: 2, queue: 10}
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond) // arrive in order
				if err := s.acquire(t.Context()); err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Second)
				s.release()
			})
		}
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != 8 {
			t.Errorf("order %v", order)
		}
		if s.busy != 0 || s.longest != 6 {
			t.Errorf("busy %d, longest queue %d", s.busy, s.longest)
		}
	})
}

func TestSlotsRefuseBeyondTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slots{places: 1, queue: 1}
		if err := s.acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		waited := make(chan error, 1)
		go func() { waited <- s.acquire(ctx) }()
		synctest.Wait()
		if err := s.acquire(t.Context()); !errors.Is(err, errFull) {
			t.Errorf("third: %v", err)
		}
		cancel()
		if err := <-waited; !errors.Is(err, context.Canceled) {
			t.Errorf("waiter: %v", err)
		}
		s.release()
		if err := s.acquire(t.Context()); err != nil {
			t.Errorf("after the cancel: %v", err)
		}
	})
}

func TestSlotsSurviveAStorm(t *testing.T) {
	s := &slots{places: 3, queue: 20}
	var wg sync.WaitGroup
	var mu sync.Mutex
	running, most := 0, 0
	for range 40 {
		wg.Go(func() {
			for range 200 {
				ctx, cancel := context.WithCancel(t.Context())
				if rand.IntN(2) == 0 {
					go cancel()
				}
				if s.acquire(ctx) == nil {
					mu.Lock()
					running++
					most = max(most, running)
					mu.Unlock()
					mu.Lock()
					running--
					mu.Unlock()
					s.release()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if s.busy != 0 || s.waiting.Len() != 0 || most > 3 {
		t.Errorf("busy %d, waiting %d, most at once %d", s.busy, s.waiting.Len(), most)
	}
}

func TestSlotsGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slots{places: 1, queue: 5}
		if err := s.acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() { got <- s.acquire(t.Context()) }()
		synctest.Wait()
		s.resize(2, 0)
		if err := <-got; err != nil {
			t.Error(err)
		}
		if err := s.acquire(t.Context()); !errors.Is(err, errFull) {
			t.Errorf("beyond the new size: %v", err)
		}
	})
}
