package state

import (
	"sync"
	"testing"
	"time"
)

// TestObserve: who watches the database's latency sees reads and writes, and which is which.
func TestObserve(t *testing.T) {
	s := openURL(t, "sqlite://"+t.TempDir()+"/iop.db")
	var mu sync.Mutex
	seen := map[bool]int{}
	s.Observe(func(write bool, took time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		if took <= 0 {
			t.Errorf("it took %v", took)
		}
		seen[write]++
	})
	if _, _, err := s.CreateKey(t.Context(), KeySpec{Name: "k"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Keys(t.Context()); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if seen[true] == 0 || seen[false] == 0 {
		t.Errorf("seen writes: %d, reads: %d", seen[true], seen[false])
	}
}
