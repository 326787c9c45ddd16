package state

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestUpdateKey(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		key, presented := createKey(t, s, KeySpec{Name: "k", Owner: "team", Routes: []string{"a*"}, RPM: 1, TPM: 2,
			Concurrency: 3, MonthlyTokens: 4, Weight: 5, Priority: 6, Expires: time.Now().Add(time.Hour)})
		// update changes, and compares what is returned, stored and verified with want.
		update := func(change KeyChange, want Key) {
			t.Helper()
			if _, err := s.VerifyKey(ctx, presented); err != nil { // so that the cache has the old one
				t.Fatal(err)
			}
			got, err := s.UpdateKey(ctx, key.ID, change)
			if err != nil {
				t.Fatal(err)
			}
			stored, err := s.Key(ctx, key.ID)
			if err != nil {
				t.Fatal(err)
			}
			verified, err := s.VerifyKey(ctx, presented)
			if err != nil {
				t.Fatal(err)
			}
			for name, key := range map[string]Key{"returned": got, "stored": stored, "verified": *verified} {
				key.LastUsed = want.LastUsed
				if fmt.Sprint(key) != fmt.Sprint(want) {
					t.Errorf("%s %+v; want %+v", name, key, want)
				}
			}
		}
		update(KeyChange{}, key)
		key.Name, key.RPM, key.Priority = "new", 10, -7
		update(KeyChange{Name: new("new"), RPM: new(int64(10)), Priority: new(-7)}, key)
		key.Routes, key.TPM, key.Weight = []string{"b", "c"}, 20, 1000
		update(KeyChange{Routes: &[]string{"b", "c"}, TPM: new(int64(20)), Weight: new(1000)}, key)
		key.Owner, key.Routes, key.Concurrency, key.MonthlyTokens, key.Expires = "", []string{}, 0, 0, time.Time{}
		update(KeyChange{Owner: new(""), Routes: new([]string(nil)), Concurrency: new(int64(0)),
			MonthlyTokens: new(int64(0)), Expires: new(time.Time{})}, key)

		if err := s.RevokeKey(ctx, key.ID, "test"); err != nil {
			t.Fatal(err)
		}
		if got, err := s.UpdateKey(ctx, key.ID, KeyChange{RPM: new(int64(1))}); err != nil || got.RevokedAt.IsZero() {
			t.Errorf("a revoked key: %+v, %v", got, err)
		}
		if _, err := s.VerifyKey(ctx, presented); invalidReason(err) != InvalidRevoked {
			t.Errorf("a change brought a revoked key back: %v", err)
		}
	})
}

func TestUpdateKeyFaults(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	key, _ := createKey(t, s, KeySpec{Name: "k", RPM: 7})
	for field, change := range map[string]KeyChange{
		"name":           {Name: new("")},
		"owner":          {Owner: new("key:x")},
		"routes":         {Routes: &[]string{"["}},
		"rpm":            {RPM: new(int64(-1))},
		"tpm":            {TPM: new(int64(MaxLimit + 1))},
		"concurrency":    {Concurrency: new(int64(-1))},
		"monthly_tokens": {MonthlyTokens: new(int64(-1))},
		"weight":         {Weight: new(0)},
		"priority":       {Priority: new(101)},
		"expires":        {Expires: new(time.Now())},
	} {
		if field != "rpm" {
			change.RPM = new(int64(9)) // right, but not to be done alone
		}
		_, err := s.UpdateKey(t.Context(), key.ID, change)
		if fault, ok := errors.AsType[*SpecError](err); !ok || fault.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if got, err := s.Key(t.Context(), key.ID); err != nil || got.RPM != 7 {
		t.Errorf("a refused change changed %+v, %v", got, err)
	}
	if _, err := s.UpdateKey(t.Context(), "nobody00", KeyChange{RPM: new(int64(1))}); !errors.Is(err, ErrNotFound) {
		t.Errorf("no such key: %v", err)
	}
	if _, err := s.Key(t.Context(), "nobody00"); !errors.Is(err, ErrNotFound) {
		t.Errorf("no such key: %v", err)
	}
}

// Two Stores on one file stand for two processes.
func TestUpdateByAnotherStore(t *testing.T) {
	url := fileURL(t)
	synctest.Test(t, func(t *testing.T) {
		edge, command := openURL(t, url), openURL(t, url)
		key, presented := createKey(t, command, KeySpec{Name: "k", RPM: 1})
		rpm := func() int64 {
			got, err := edge.VerifyKey(t.Context(), presented)
			if err != nil {
				t.Fatal(err)
			}
			return got.RPM
		}
		rpm()
		if _, err := command.UpdateKey(t.Context(), key.ID, KeyChange{RPM: new(int64(2))}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(keyTTL)
		if got := rpm(); got != 2 {
			t.Errorf("after the TTL: %d a minute", got)
		}
	})
}

// Of changes to different fields at once none is lost.
func TestUpdatesAtOnce(t *testing.T) {
	url := fileURL(t)
	a, b := openURL(t, url), openURL(t, url)
	key, _ := createKey(t, a, KeySpec{Name: "k"})
	var wg sync.WaitGroup
	for i := range int64(20) {
		for s, change := range map[*Store]KeyChange{a: {RPM: new(i + 1)}, b: {TPM: new(i + 1)}} {
			wg.Go(func() {
				if _, err := s.UpdateKey(context.Background(), key.ID, change); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got, err := a.Key(t.Context(), key.ID); err != nil || got.RPM != i+1 || got.TPM != i+1 {
			t.Fatalf("%+v, %v; want %d of both", got, err, i+1)
		}
	}
}

// oldKey inserts a key as a version without monthly tokens, weight and priority does.
const oldKey = `INSERT INTO api_keys (id, digest, pepper_version, name, owner, routes, rpm, tpm, concurrency,
		created_at, expires_at, last_used_at, revoked_at, revoked_by)
	VALUES ($1, '0000000000000000000000000000000000000000000000000000000000000000', 1, $2, '', '[]', 7, 0, 0, $3, 0, 0, $4, '')`

// A state that an older version made is brought up to date with its keys, and a key that such a version, still running,
// adds afterwards has the defaults too.
func TestStateOfOlderVersion(t *testing.T) {
	ctx, url := t.Context(), fileURL(t)
	old := openAtVersion(t, url, 1)
	if _, err := old.write.Exec(oldKey, "before00", "old", 1, 0); err != nil {
		t.Fatal(err)
	}
	s := openURL(t, url)
	if _, err := old.write.Exec(oldKey, "after000", "new", 2, 0); err != nil {
		t.Error(err)
	}
	for _, id := range []KeyID{"before00", "after000"} {
		got, err := s.Key(ctx, id)
		if err != nil || got.RPM != 7 || got.Weight != 1 || got.Priority != 0 || got.MonthlyTokens != 0 {
			t.Errorf("%+v, %v", got, err)
		}
	}
	addAll(t, s, used(1, time.Now()))
}
