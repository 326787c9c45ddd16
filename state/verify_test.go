package state

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// invalidReason is 0 if the error is not of an invalid key.
func invalidReason(err error) InvalidReason {
	invalid, ok := errors.AsType[*InvalidKeyError](err)
	if !ok || !errors.Is(err, ErrInvalidKey) {
		return 0
	}
	return invalid.Reason
}

// altered returns the token with its secret changed and the checksum made right again.
func altered(token string) string {
	unsummed := []byte(token[:len(token)-tokenChecksumLength])
	last := &unsummed[len(unsummed)-1]
	if *last == 'x' {
		*last = 'y'
	} else {
		*last = 'x'
	}
	return string(unsummed) + checksum(string(unsummed))
}

func TestVerifyKey(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		key, presented := createKey(t, s, KeySpec{Name: "alice", Owner: "team", Routes: []string{"llama*"}, RPM: 1, TPM: 2, Concurrency: 3,
			MonthlyTokens: 4, Weight: 5, Priority: -6})
		for range 2 { // from the database, from the cache
			got, err := s.VerifyKey(ctx, presented)
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(*got) != fmt.Sprint(key) {
				t.Errorf("got %+v, created %+v", *got, key)
			}
		}
		_, unknown := clientToken.mint()
		_, admin := adminToken.mint()
		refused := func(what, presented string, want InvalidReason) {
			t.Helper()
			for range 2 {
				got, err := s.VerifyKey(ctx, presented)
				if got != nil || invalidReason(err) != want {
					t.Errorf("%s: %v, %v (%v); want %v", what, got, err, invalidReason(err), want)
				}
				if err != nil && err.Error() != ErrInvalidKey.Error() {
					t.Errorf("%s: the text tells more: %v", what, err)
				}
			}
		}
		refused("nothing", "", InvalidMalformed)
		refused("a cut key", presented[:len(presented)-1], InvalidMalformed)
		refused("a wrong checksum", presented[:len(presented)-6]+"000000", InvalidMalformed)
		refused("an admin token", admin, InvalidMalformed)
		refused("another key", unknown, InvalidUnknown)
		refused("the right id", altered(presented), InvalidMismatch)
		if err := s.RevokeKey(ctx, key.ID, "test"); err != nil {
			t.Fatal(err)
		}
		refused("a revoked key", presented, InvalidRevoked)
		refused("a revoked key's id", altered(presented), InvalidMismatch)
	})
}

// What the database holds of a key must not work as a key.
func TestThreat58StoredDigestIsNoKey(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	_, presented := createKey(t, s, KeySpec{Name: "k"})
	stored, err := queryOne(t.Context(), s.db.read, scanOne[string], `SELECT digest FROM api_keys`)
	if err != nil {
		t.Fatal(err)
	}
	for _, try := range []string{stored, "sk-iop_" + stored, presented[:15] + stored[:32] + checksum(presented[:15]+stored[:32])} {
		if _, err := s.VerifyKey(t.Context(), try); !errors.Is(err, ErrInvalidKey) {
			t.Errorf("%v", err)
		}
	}
}

func TestKeyExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openURL(t, "sqlite::memory:")
		_, presented := createKey(t, s, KeySpec{Name: "k", Expires: time.Now().Add(time.Hour)})
		time.Sleep(time.Hour - time.Millisecond)
		if _, err := s.VerifyKey(t.Context(), presented); err != nil {
			t.Errorf("before it expires: %v", err)
		}
		time.Sleep(time.Millisecond) // it is in the cache, and that does not help it
		if _, err := s.VerifyKey(t.Context(), presented); invalidReason(err) != InvalidExpired {
			t.Errorf("on the instant: %v", err)
		}
	})
}

// Two Stores on one file stand for two processes: what one revokes, the other sees within the TTL, and what one
// creates, the other takes at once.
func TestRevocationByAnotherStore(t *testing.T) {
	url := fileURL(t)
	synctest.Test(t, func(t *testing.T) {
		edge, command := openURL(t, url), openURL(t, url)
		key, presented := createKey(t, command, KeySpec{Name: "k"})
		if _, err := edge.VerifyKey(t.Context(), presented); err != nil {
			t.Fatalf("a key of the other store: %v", err)
		}
		if err := command.RevokeKey(t.Context(), key.ID, "operator"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(keyTTL - time.Millisecond)
		if _, err := edge.VerifyKey(t.Context(), presented); err != nil {
			t.Errorf("the cache did not answer: %v", err)
		}
		time.Sleep(time.Millisecond)
		if _, err := edge.VerifyKey(t.Context(), presented); invalidReason(err) != InvalidRevoked {
			t.Errorf("after the TTL: %v", err)
		}
	})
}

// An unknown id is remembered, but not for longer than the TTL.
func TestUnknownIDIsCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openURL(t, "sqlite::memory:")
		id, presented := clientToken.mint()
		verify := func(want InvalidReason) {
			t.Helper()
			if _, err := s.VerifyKey(t.Context(), presented); invalidReason(err) != want {
				t.Errorf("%v, want %v", err, want)
			}
		}
		verify(InvalidUnknown)
		sum := s.peppers.newest.digest(presented)
		_, err := queryAll(t.Context(), s.db.write, scanOne[string], insertKey,
			id, fmt.Sprintf("%x", sum), 1, "late", "", "[]", 0, 0, 0, 0, 1, 0, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(keyTTL - time.Millisecond)
		verify(InvalidUnknown)
		time.Sleep(time.Millisecond)
		verify(0)
	})
}

func TestCacheIsBounded(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	for range maxAbsent + 10 {
		id, _ := clientToken.mint()
		if _, err := s.keys.load(KeyID(id), func() (*keyRecord, error) { return nil, nil }); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.keys.absent); n > maxAbsent || n == 0 {
		t.Errorf("%d unknown ids are remembered", n)
	}
	s.keys.prune(time.Now().Add(keyTTL))
	if len(s.keys.absent)+len(s.keys.records) != 0 {
		t.Error("pruning left what has expired")
	}
}

// A reading that began before a revocation must not bring the key back: neither through the cache nor by others joining
// it.
func TestRevocationDuringLoad(t *testing.T) {
	var cache keyCache
	reading, finish := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		cache.load("id", func() (*keyRecord, error) {
			close(reading)
			<-finish
			return &keyRecord{}, nil
		})
	})
	<-reading
	cache.forget("id")
	revoked := &keyRecord{key: Key{RevokedAt: time.Now()}}
	got, err := cache.load("id", func() (*keyRecord, error) { return revoked, nil })
	if err != nil || got != revoked {
		t.Errorf("a verification after the revocation joined the reading before it: %v, %v", got, err)
	}
	close(finish)
	wg.Wait()
	if got, known := cache.get("id", time.Now()); !known || got != revoked {
		t.Errorf("the stale record is in the cache: %v, %v", got, known)
	}
}

func TestRevocationIsImmediate(t *testing.T) {
	s := openURL(t, fileURL(t))
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 25 {
				key, presented := createKey(t, s, KeySpec{Name: fmt.Sprint("k", i)})
				if _, err := s.VerifyKey(t.Context(), presented); err != nil {
					t.Error(err)
				}
				if err := s.RevokeKey(t.Context(), key.ID, "test"); err != nil {
					t.Error(err)
				}
				if _, err := s.VerifyKey(t.Context(), presented); invalidReason(err) != InvalidRevoked {
					t.Errorf("after the revocation: %v", err)
				}
			}
		})
	}
	wg.Wait()
}

// The cache must hold no part of the string that was presented: it would keep the secret in memory.
func TestCacheHoldsCopies(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	presented := "sk-iop_" + strings.Repeat("0", 40)
	presented += checksum(presented)
	if _, err := s.VerifyKey(t.Context(), presented); invalidReason(err) != InvalidUnknown {
		t.Fatal(err)
	}
	for id := range s.keys.absent {
		if sharesMemory(string(id), presented) {
			t.Error("the id in the cache is a part of the presented key")
		}
	}
}

// A database that can't answer is not an invalid key.
func TestVerifyKeyWithoutDatabase(t *testing.T) {
	s, err := Open(t.Context(), "sqlite::memory:")
	if err != nil {
		t.Fatal(err)
	}
	_, presented := createKey(t, s, KeySpec{Name: "k"})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.VerifyKey(t.Context(), presented); err == nil || errors.Is(err, ErrInvalidKey) {
		t.Errorf("%v", err)
	}
}

// The first request's client goes away while it looks the key up; a second one waits for the same answer.
func TestLookUpOutlivesItsRequest(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	_, presented := createKey(t, s, KeySpec{Name: "k"})
	ctx, cancel := withCancel(t)
	cancel()
	if _, err := s.VerifyKey(ctx, presented); err != nil {
		t.Errorf("%v", err)
	}
}

func TestLastUsed(t *testing.T) {
	url := fileURL(t)
	synctest.Test(t, func(t *testing.T) {
		s, other := openURL(t, url), openURL(t, url)
		_, presented := createKey(t, s, KeySpec{Name: "used"})
		time.Sleep(time.Second) // keys are listed by age
		createKey(t, s, KeySpec{Name: "unused"})
		used := func(s *Store) (time.Time, time.Time) {
			t.Helper()
			keys, err := s.Keys(t.Context())
			if err != nil || len(keys) != 2 {
				t.Fatal(keys, err)
			}
			return keys[0].LastUsed, keys[1].LastUsed
		}
		time.Sleep(time.Hour + 30*time.Second)
		if _, err := s.VerifyKey(t.Context(), presented); err != nil {
			t.Fatal(err)
		}
		want := time.Now().UTC().Truncate(time.Minute)
		if a, b := used(s); !a.Equal(want) || !b.IsZero() {
			t.Errorf("here at once: %v and %v, want %v and never", a, b, want)
		}
		if a, _ := used(other); !a.IsZero() {
			t.Errorf("it was written on the request's path: %v", a)
		}
		time.Sleep(housekeepingInterval)
		synctest.Wait()
		if a, b := used(other); !a.Equal(want) || !b.IsZero() {
			t.Errorf("elsewhere a minute later: %v and %v, want %v and never", a, b, want)
		}
		if len(s.keys.records) != 0 {
			t.Error("housekeeping left an expired record in the cache")
		}
	})
}

func TestLastUsedSurvivesClose(t *testing.T) {
	url := fileURL(t)
	s, err := Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	_, presented := createKey(t, s, KeySpec{Name: "k"})
	if _, err := s.VerifyKey(t.Context(), presented); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	keys, err := openURL(t, url).Keys(t.Context())
	if err != nil || len(keys) != 1 || keys[0].LastUsed.IsZero() {
		t.Errorf("%+v, %v", keys, err)
	}
}

// What can't be written down now is not lost.
func TestFailedFlushIsTriedAgain(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	key, presented := createKey(t, s, KeySpec{Name: "k"})
	if _, err := s.VerifyKey(t.Context(), presented); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := withCancel(t)
	cancel()
	if err := s.flushUses(ctx); err == nil {
		t.Error("a cancelled flush reported success")
	}
	if s.uses.last(key.ID).IsZero() {
		t.Error("the use is lost")
	}
	if err := s.flushUses(t.Context()); err != nil || len(s.uses.pending) != 0 {
		t.Errorf("%v, %d left", err, len(s.uses.pending))
	}
}

func TestVerifyKeyAllocations(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	_, presented := createKey(t, s, KeySpec{Name: "k"})
	allocs := testing.AllocsPerRun(1000, func() {
		if _, err := s.VerifyKey(t.Context(), presented); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 0 && !raceEnabled { // the race detector drops what is pooled
		t.Errorf("%v allocations with a warm cache", allocs)
	}
}

func BenchmarkVerifyKey(b *testing.B) {
	s := openURL(b, fileURL(b))
	_, valid := createKey(b, s, KeySpec{Name: "k"})
	bench := func(name, presented string) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.VerifyKey(b.Context(), presented)
			}
		})
	}
	_, unknown := clientToken.mint()
	bench("warm", valid)
	bench("unknown", unknown)
	bench("mismatch", altered(valid))
	bench("malformed", valid[1:])
	b.Run("warm-parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				s.VerifyKey(b.Context(), valid)
			}
		})
	})
	b.Run("cold", func(b *testing.B) {
		b.ReportAllocs()
		id, _ := clientToken.parse(valid)
		for b.Loop() {
			s.keys.forget(KeyID(id))
			s.VerifyKey(b.Context(), valid)
		}
	})
}
