package state

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestKeysRoundTrip(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		full := KeySpec{
			Name: "full'; DROP TABLE api_keys; --", Owner: "team", Routes: []string{"llama*", "*/x"},
			RPM: 1, TPM: MaxLimit, Concurrency: 3, MonthlyTokens: 4, Weight: 1000, Priority: -100, Expires: time.Now().Add(time.Hour),
		}
		made, secret := createKey(t, s, full)
		bare, _ := createKey(t, s, KeySpec{Name: "bare"})
		if !strings.HasPrefix(secret, "sk-iop_"+string(made.ID)) || len(secret) != 53 {
			t.Errorf("key %q of id %s", secret, made.ID)
		}
		if made.Created.IsZero() || !made.RevokedAt.IsZero() || !made.LastUsed.IsZero() || made.Expires.Sub(full.Expires).Abs() > time.Millisecond {
			t.Errorf("%+v", made)
		}
		full.Routes[0] = "changed by the caller"
		keys, err := s.Keys(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []Key{made, bare} {
			i := slices.IndexFunc(keys, func(k Key) bool { return k.ID == want.ID })
			if i < 0 || fmt.Sprintf("%+v", keys[i]) != fmt.Sprintf("%+v", want) {
				t.Errorf("listed %+v, created %+v", keys, want)
			}
		}
		if len(keys) != 2 || made.Routes[0] != "llama*" {
			t.Errorf("%+v", keys)
		}
	})
}

func TestRevokeKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openURL(t, "sqlite::memory:")
		key, _ := createKey(t, s, KeySpec{Name: "k"})
		if err := s.RevokeKey(t.Context(), "nobody00", "x"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "nobody00") {
			t.Errorf("no such key: %v", err)
		}
		if err := s.RevokeKey(t.Context(), key.ID, "a\nb"); err == nil {
			t.Error("a bad name of who revokes was taken")
		}
		revoked := time.Now().UTC()
		for _, by := range []string{"alice", "mallory"} {
			if err := s.RevokeKey(t.Context(), key.ID, by); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute)
		}
		keys, err := s.Keys(t.Context())
		if err != nil || len(keys) != 1 || keys[0].RevokedBy != "alice" || !keys[0].RevokedAt.Equal(revoked) {
			t.Errorf("%+v, %v; want the first revocation, at %v", keys, err, revoked)
		}
	})
}

func TestJoinTokens(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		anyNode, presented := createJoinToken(t, s, JoinTokenSpec{})
		bound, _ := createJoinToken(t, s, JoinTokenSpec{Node: "gpu-1", TTL: time.Hour})
		if !strings.HasPrefix(presented, "njt-iop_"+string(anyNode.ID)) || bound.Expires.Sub(bound.Created) != time.Hour {
			t.Errorf("%q, %+v, %+v", presented, anyNode, bound)
		}
		if got, err := s.VerifyJoinToken(ctx, presented); err != nil || !reflect.DeepEqual(*got, anyNode) {
			t.Errorf("VerifyJoinToken: %+v, %v", got, err)
		}
		listed, err := s.JoinTokens(ctx)
		if err != nil || len(listed) != 2 || !reflect.DeepEqual(listed[0], anyNode) && !reflect.DeepEqual(listed[1], anyNode) || !reflect.DeepEqual(listed[0], bound) && !reflect.DeepEqual(listed[1], bound) {
			t.Errorf("JoinTokens: %+v, %v", listed, err)
		}
		_, unknown := joinToken.mint()
		_, key := createKey(t, s, KeySpec{Name: "k"})
		for _, bad := range []string{"", "njt-iop_", presented[:len(presented)-1], altered(presented), unknown, key} {
			if got, err := s.VerifyJoinToken(ctx, bad); got != nil || !errors.Is(err, ErrTokenUnknown) {
				t.Errorf("%q: %+v, %v", bad, got, err)
			}
		}
		for range 2 {
			if err := s.RevokeJoinToken(ctx, anyNode.ID, "alice"); err != nil {
				t.Error(err)
			}
		}
		if got, err := s.VerifyJoinToken(ctx, presented); got != nil || !errors.Is(err, ErrTokenRevoked) {
			t.Errorf("revoked: %+v, %v", got, err)
		}
		if _, err := s.VerifyJoinToken(ctx, altered(presented)); !errors.Is(err, ErrTokenUnknown) {
			t.Errorf("who lacks the secret learns of the revocation: %v", err)
		}
		if err := s.RevokeJoinToken(ctx, "nobody00", "alice"); !errors.Is(err, ErrNotFound) {
			t.Errorf("no such token: %v", err)
		}
	})
}

func TestJoinTokenExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openURL(t, "sqlite::memory:")
		_, presented := createJoinToken(t, s, JoinTokenSpec{TTL: time.Hour})
		_, endless := createJoinToken(t, s, JoinTokenSpec{})
		time.Sleep(time.Hour - time.Millisecond)
		if _, err := s.VerifyJoinToken(t.Context(), presented); err != nil {
			t.Errorf("before it expires: %v", err)
		}
		time.Sleep(time.Millisecond)
		if _, err := s.VerifyJoinToken(t.Context(), presented); !errors.Is(err, ErrTokenExpired) {
			t.Errorf("on the instant: %v", err)
		}
		time.Sleep(30 * 24 * time.Hour)
		if _, err := s.VerifyJoinToken(t.Context(), endless); err != nil {
			t.Errorf("a token without end: %v", err)
		}
	})
}
