package state

import (
	"database/sql"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
)

func TestNextGeneration(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		take := func(node execution.NodeID, seen, want execution.Generation) {
			t.Helper()
			got, err := s.NextGeneration(t.Context(), node, seen)
			if err != nil || got != want {
				t.Errorf("NextGeneration(%s, %d) = %d, %v; want %d", node, seen, got, err, want)
			}
		}
		take("a", 0, 1)
		take("a", 0, 2)
		take("a", 1, 3) // behind
		take("a", 3, 4)
		take("a", 10, 11)                           // ahead: the state was lost
		take("a", 11+maxSeenAhead, 12+maxSeenAhead) // just within the bound
		stored := execution.Generation(12 + maxSeenAhead)
		take("a", stored+maxSeenAhead+1, stored+1) // a liar
		take("a", math.MaxInt64, stored+2)
		take("a", math.MaxInt64-maxSeenAhead, stored+3)
		take("a", math.MaxUint64, stored+4)

		take("b", 41, 42) // other Nodes have numbers of their own
		take("c", maxSeenAhead, maxSeenAhead+1)
		take("d", maxSeenAhead+1, 1)
		take("e", math.MaxUint64, 1)
	})
}

func TestNextGenerationEnds(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	if _, err := s.db.write.Exec(`INSERT INTO generations VALUES ('n', $1)`, int64(math.MaxInt64-1)); err != nil {
		t.Fatal(err)
	}
	if next, err := s.NextGeneration(t.Context(), "n", 0); err != nil || next != math.MaxInt64 {
		t.Errorf("the last one: %d, %v", next, err)
	}
	if next, err := s.NextGeneration(t.Context(), "n", 0); err == nil || !strings.Contains(err.Error(), "used up") {
		t.Errorf("after the last one: %d, %v", next, err)
	}
}

func TestNextGenerationRefusesBadNames(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	for _, node := range []execution.NodeID{"", "a b", execution.NodeID(strings.Repeat("x", 129))} {
		if next, err := s.NextGeneration(t.Context(), node, 0); err == nil {
			t.Errorf("NextGeneration(%q) = %d", node, next)
		}
	}
}

// Two Stores on one file, each from several goroutines: all numbers differ, and each goroutine sees its own rise.
func TestNextGenerationConcurrently(t *testing.T) {
	const goroutines, each = 4, 25
	url := fileURL(t)
	stores := []*Store{openURL(t, url), openURL(t, url)}
	var mu sync.Mutex
	var all []execution.Generation
	var wg sync.WaitGroup
	for _, s := range stores {
		for range goroutines {
			wg.Go(func() {
				last := execution.Generation(0)
				for range each {
					next, err := s.NextGeneration(t.Context(), "node", last)
					if err != nil || next <= last {
						t.Errorf("%d after %d, %v", next, last, err)
						return
					}
					last = next
					mu.Lock()
					all = append(all, next)
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	slices.Sort(all)
	if n := len(slices.Compact(all)); n != len(stores)*goroutines*each {
		t.Errorf("%d different generations", n)
	}
}

// nodeClaim is whom a Node's name belongs to.
type nodeClaim struct {
	node  string
	token JoinTokenID
	at    int64 // in milliseconds: when that token first used the name
}

// nodeClaims returns the claims as they are kept, by name.
func nodeClaims(t *testing.T, s *Store) []nodeClaim {
	t.Helper()
	claims, err := queryAll(t.Context(), s.db.read, func(rows *sql.Rows) (c nodeClaim, err error) {
		err = rows.Scan(&c.node, &c.token, &c.at)
		return c, err
	}, `SELECT node, token_id, claimed_at FROM node_claims ORDER BY node`)
	if err != nil {
		t.Fatal(err)
	}
	return claims
}

func TestClaimNode(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		first, _ := createJoinToken(t, s, JoinTokenSpec{})
		second, _ := createJoinToken(t, s, JoinTokenSpec{})
		bound, _ := createJoinToken(t, s, JoinTokenSpec{Node: "gpu-2"})
		claim := func(token JoinTokenID, node execution.NodeID, want error) {
			t.Helper()
			before := nodeClaims(t, s)
			if err := s.TryNode(ctx, token, node); !errors.Is(err, want) || want == nil && err != nil {
				t.Errorf("TryNode(%s, %s): %v; want %v", token, node, err, want)
			}
			if after := nodeClaims(t, s); !slices.Equal(after, before) {
				t.Errorf("trying made %+v of %+v", after, before)
			}
			if err := s.ClaimNode(ctx, token, node); !errors.Is(err, want) {
				t.Errorf("ClaimNode(%s, %s): %v; want %v", token, node, err, want)
			}
		}
		claim(first.ID, "gpu-1", nil)
		claimed := nodeClaims(t, s)
		if len(claimed) != 1 || claimed[0].token != first.ID || claimed[0].at == 0 {
			t.Errorf("claims %+v", claimed)
		}
		claim(first.ID, "gpu-1", nil) // again
		if again := nodeClaims(t, s); !slices.Equal(again, claimed) {
			t.Errorf("claiming again made %+v of %+v", again, claimed)
		}
		claim(first.ID, "gpu-3", nil) // one token, several names
		claim(second.ID, "gpu-1", ErrNodeTaken)
		claim(bound.ID, "gpu-1", ErrWrongNode)
		claim(bound.ID, "gpu-2", nil)
		claim(second.ID, "gpu-2", ErrNodeReserved)
		claim("nobody00", "gpu-9", ErrTokenUnknown)
		claim("nobody00", "gpu-1", ErrTokenUnknown)

		if err := s.RevokeJoinToken(ctx, first.ID, "test"); err != nil {
			t.Fatal(err)
		}
		claim(first.ID, "gpu-1", ErrTokenRevoked)
		claim(second.ID, "gpu-1", nil) // takes over
		var got []string
		for _, c := range nodeClaims(t, s) {
			got = append(got, c.node+"="+string(c.token))
		}
		want := []string{"gpu-1=" + string(second.ID), "gpu-2=" + string(bound.ID), "gpu-3=" + string(first.ID)}
		if !slices.Equal(got, want) {
			t.Errorf("claims %v, want %v", got, want)
		}
		if err := s.ClaimNode(ctx, second.ID, "a b"); err == nil {
			t.Error("a bad name was claimed")
		}
	})
}

// TestBoundTokenReservesItsName: while a token that is bound to a name is valid no unbound one gets that name, whoever had
// it first, and tokens that are bound to it can be exchanged without a gap.
func TestBoundTokenReservesItsName(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		claim := func(token JoinToken, node execution.NodeID, want error) {
			t.Helper()
			if err := s.ClaimNode(t.Context(), token.ID, node); !errors.Is(err, want) {
				t.Errorf("ClaimNode(%s, %s): %v; want %v", token.ID, node, err, want)
			}
		}
		end := func(token JoinToken) {
			t.Helper()
			if err := s.RevokeJoinToken(t.Context(), token.ID, "test"); err != nil {
				t.Fatal(err)
			}
		}
		unbound, _ := createJoinToken(t, s, JoinTokenSpec{})
		claim(unbound, "gpu-2", nil)
		first, _ := createJoinToken(t, s, JoinTokenSpec{Node: "gpu-1"})
		claim(unbound, "gpu-1", ErrNodeReserved) // before its owner ever came
		claim(unbound, "GPU-1", ErrNodeReserved)
		claim(unbound, "gpu-10", nil)

		late, _ := createJoinToken(t, s, JoinTokenSpec{Node: "gpu-2"})
		claim(unbound, "gpu-2", ErrNodeReserved) // although it had the name first
		claim(late, "gpu-2", nil)
		claim(unbound, "gpu-2", ErrNodeReserved)

		second, _ := createJoinToken(t, s, JoinTokenSpec{Node: "gpu-1"})
		other, _ := createJoinToken(t, s, JoinTokenSpec{Node: "GPU-1"})
		claim(first, "gpu-1", nil)
		claim(second, "gpu-1", nil) // the new token works before the old one ends
		claim(first, "gpu-1", nil)
		claim(other, "gpu-1", ErrWrongNode)
		claim(other, "GPU-1", nil)
		end(first)
		claim(second, "gpu-1", nil)
		claim(unbound, "gpu-1", ErrNodeReserved)
		end(other)
		claim(unbound, "gpu-1", ErrNodeReserved)
		end(second)
		claim(unbound, "gpu-1", nil) // nothing reserves it any more
		claim(second, "gpu-1", ErrTokenRevoked)
	})
}

func TestExpiredReservationEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openURL(t, "sqlite::memory:")
		unbound, _ := createJoinToken(t, s, JoinTokenSpec{})
		createJoinToken(t, s, JoinTokenSpec{Node: "n", TTL: time.Hour})
		time.Sleep(time.Hour - time.Millisecond)
		if err := s.ClaimNode(t.Context(), unbound.ID, "n"); !errors.Is(err, ErrNodeReserved) {
			t.Errorf("before it expires: %v", err)
		}
		time.Sleep(time.Millisecond)
		if err := s.ClaimNode(t.Context(), unbound.ID, "n"); err != nil {
			t.Errorf("after it expired: %v", err)
		}
	})
}

func TestExpiredTokenLosesName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openURL(t, "sqlite::memory:")
		short, _ := createJoinToken(t, s, JoinTokenSpec{TTL: time.Hour})
		other, _ := createJoinToken(t, s, JoinTokenSpec{})
		if err := s.ClaimNode(t.Context(), short.ID, "n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour - time.Millisecond)
		if err := s.ClaimNode(t.Context(), other.ID, "n"); !errors.Is(err, ErrNodeTaken) {
			t.Errorf("before it expires: %v", err)
		}
		time.Sleep(time.Millisecond)
		if err := s.ClaimNode(t.Context(), short.ID, "n"); !errors.Is(err, ErrTokenExpired) {
			t.Errorf("the expired token itself: %v", err)
		}
		if err := s.ClaimNode(t.Context(), other.ID, "n"); err != nil {
			t.Errorf("after it expired: %v", err)
		}
	})
}

// Of many tokens that claim one name at once, from two Stores, one gets it.
func TestClaimNodeConcurrently(t *testing.T) {
	const tokens = 8
	url := fileURL(t)
	stores := []*Store{openURL(t, url), openURL(t, url)}
	var wg sync.WaitGroup
	errs := make([]error, tokens)
	for i := range tokens {
		s := stores[i%len(stores)]
		token, _ := createJoinToken(t, s, JoinTokenSpec{})
		wg.Go(func() { errs[i] = s.ClaimNode(t.Context(), token.ID, "n") })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, ErrNodeTaken) {
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d tokens got the name", won)
	}
}

func BenchmarkNextGeneration(b *testing.B) {
	for name, url := range map[string]string{"file": fileURL(b), "memory": "sqlite::memory:"} {
		b.Run(name, func(b *testing.B) {
			s := openURL(b, url)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.NextGeneration(b.Context(), "node", 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
