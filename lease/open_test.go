package lease

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The tests here are named after the rows of the threat table. Each says with which check removed it was seen to fail.

// TestReplayThreat01: a lease opens once, however its text is written the second time.
//
// Seen to fail, each: with an insert that did not mind an id that it had seen; without the check of the alphabet; with the
// ordinary decoder in the place of the strict one; with any second segment allowed.
func TestReplayThreat01(t *testing.T) {
	w := newWorld(t)
	token := newDraft().token()
	first, err := w.Open(token, w.want)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	parts := strings.Split(string(token), ".")
	again := map[string]Reason{
		string(token):        ReasonReplay,
		string(token) + "\n": ReasonMalformed,
		string(token[:700]) + "\r\n" + string(token[700:]):                              ReasonMalformed,
		strings.Join([]string{parts[0], "AAAA", parts[2], parts[3], parts[4]}, "."):     ReasonMalformed,
		strings.Join([]string{parts[0], "", parts[2], parts[3], loosen(parts[4])}, "."): ReasonReplay,
		strings.Join([]string{loosen(parts[0]), "", parts[2], parts[3], parts[4]}, "."): ReasonHeader,
		string(newDraft().encrypt([]byte(newDraft().jws()))):                            ReasonReplay,
	}
	for text, want := range again {
		if got := w.reasonOf(t, []byte(text)); got != want {
			t.Errorf("refused for %q, want %q", got, want)
		}
	}
	// Sealed again with another content key, and signed again: another text from end to end, the same lease.
	d := newDraft()
	d.claims.drop("jti")
	d.claims.add("jti", quoted(b64([]byte("0123456789abcdef"))))
	w.refuses(t, ReasonReplay, d)
	if n := w.counters.Rejected(ReasonReplay); n < 3 {
		t.Errorf("the alarm counts %d replays", n)
	}
	request, err := http.NewRequest("POST", "https://api.example.com", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Authorize(request); err != nil || request.Header.Get("Authorization") != "Bearer "+testCredential {
		t.Errorf("the first run is affected: %v", err)
	}
	threatVectors(t, 1, 5)
}

// TestConcurrentReplayThreat02: of 100 who open the same lease at the same time exactly one gets it.
//
// Seen to fail: replayCache.insert gave its mutex up between the look and the insertion.
func TestConcurrentReplayThreat02(t *testing.T) {
	for round := range 5 {
		w := newWorld(t)
		token := newDraft().token()
		var won, replays atomic.Int64
		var all sync.WaitGroup
		start := make(chan struct{})
		for range 100 {
			all.Go(func() {
				<-start
				opened, err := w.Open(token, w.want)
				if err == nil {
					won.Add(1)
					opened.Close()
				} else if refusal(t, err) == ReasonReplay {
					replays.Add(1)
				}
			})
		}
		close(start)
		all.Wait()
		if won.Load() != 1 || replays.Load() != 99 {
			t.Fatalf("round %d: %d opened it, %d were told that it is a replay", round, won.Load(), replays.Load())
		}
	}
	// The same without the cryptography, which spreads the callers out.
	for round := range 2000 {
		cache := newReplayCache(10)
		var won atomic.Int64
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if cache.insert([16]byte{1}, testNow) == 0 {
					won.Add(1)
				}
			})
		}
		all.Wait()
		if won.Load() != 1 {
			t.Fatalf("round %d: %d inserted it", round, won.Load())
		}
	}
}

// TestAnotherNodesLeaseThreat03: a Node that re-seals its own lease for another Node gets nowhere.
//
// Seen to fail, each: without the check of aud, without the check of rkt, without the check of the outer key id (the
// other Node then says decryption, since the key is not its own).
func TestAnotherNodesLeaseThreat03(t *testing.T) {
	w := newWorld(t)
	other := newWorld(t, func(cfg *OpenerConfig) {
		var err error
		cfg.Audience = "spiffe://example.org/node/gpu2"
		if cfg.Recipient, err = recipientOf(strangerKey); err != nil {
			t.Fatal(err)
		}
	})
	if got := other.reasonOf(t, newDraft().token()); got != ReasonRecipientKey {
		t.Errorf("as it is: refused for %q", got)
	}
	resealed := newDraft()
	resealed.to = &strangerKey.PublicKey
	resealed.outer.set("kid", quoted(thumb(&strangerKey.PublicKey)))
	if got := other.reasonOf(t, resealed.token()); got != ReasonAudience {
		t.Errorf("sealed again: refused for %q", got)
	}
	// A Node of the same name with another key, as after a reconnect.
	same := newWorld(t, func(cfg *OpenerConfig) {
		var err error
		if cfg.Recipient, err = recipientOf(strangerKey); err != nil {
			t.Fatal(err)
		}
	})
	if got := same.reasonOf(t, resealed.token()); got != ReasonRecipient {
		t.Errorf("sealed again for the same Node: refused for %q", got)
	}
	if got := w.reasonOf(t, newDraft().token()); got != 0 {
		t.Errorf("the rightful Node: refused for %q", got)
	}
	threatVectors(t, 3, 2)
}

// TestOlderGenerationThreat04: after a reconnect the old session's leases do not open, by their key and by their number.
//
// Seen to fail: without the check of gen, without the check of the outer key id (which then says decryption), and with an
// Opener.Close that kept the key.
func TestOlderGenerationThreat04(t *testing.T) {
	old := newWorld(t)
	token := newDraft().token()
	fresh := newWorld(t, func(cfg *OpenerConfig) {
		var err error
		cfg.Generation++
		if cfg.Recipient, err = NewRecipient(); err != nil {
			t.Fatal(err)
		}
	})
	if got := fresh.reasonOf(t, token); got != ReasonRecipientKey {
		t.Errorf("a new key: refused for %q", got)
	}
	kept := newWorld(t, func(cfg *OpenerConfig) { cfg.Generation++ })
	if got := kept.reasonOf(t, token); got != ReasonGeneration {
		t.Errorf("a new number: refused for %q", got)
	}
	old.Close()
	if got := old.reasonOf(t, token); got != ReasonClosed {
		t.Errorf("after the session: refused for %q", got)
	}
	if old.cfg.Recipient.private.Load() != nil {
		t.Error("the key outlives its session")
	}
	threatVectors(t, 4, 1)
}

// TestOlderRevisionThreat05: a lease of a value that has been replaced does not open, nor is it used.
//
// Seen to fail, each: without the check of rev in Open, without the one in Authorize.
func TestOlderRevisionThreat05(t *testing.T) {
	w := newWorld(t)
	token := newDraft().token()
	w.minimum++
	if got := w.reasonOf(t, token); got != ReasonRevision {
		t.Errorf("refused for %q", got)
	}
	w.minimum--
	opened, err := w.Open(token, w.want)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	w.minimum++
	if got := authorize(t, opened); got != ReasonRevision {
		t.Errorf("between open and send: refused for %q", got)
	}
	threatVectors(t, 5, 1)
}

// authorize uses an opened lease and returns why that was refused. A refused request has no credential.
func authorize(t testing.TB, opened *Opened) Reason {
	t.Helper()
	request := &http.Request{Header: http.Header{}}
	err := opened.Authorize(request)
	if err == nil {
		return 0
	}
	if len(request.Header) != 0 {
		t.Errorf("refused, and the request has %v", request.Header)
	}
	return refusal(t, err)
}

// TestExpiryThreat06: a lease is dead at exp exactly, when it is opened and when it is used.
//
// Seen to fail, each: with now.After(exp) instead of !now.Before(exp) in Open, with Leeway added to exp, without the check
// in Authorize.
func TestExpiryThreat06(t *testing.T) {
	for _, tc := range []struct {
		before time.Duration // how long before exp it is opened
		want   Reason
	}{
		{time.Second, 0}, {time.Nanosecond, 0}, {0, ReasonExpired}, {-time.Nanosecond, ReasonExpired}, {-time.Second, ReasonExpired}, {-time.Hour, ReasonExpired},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			exp := testNow.Add(DefaultLife)
			w.sleepUntil(t, exp.Add(-tc.before))
			if got := w.reasonOf(t, newDraft().token()); got != tc.want {
				t.Errorf("%s before exp: refused for %q, want %q", tc.before, got, tc.want)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		opened, err := w.Open(newDraft().token(), w.want)
		if err != nil {
			t.Fatal(err)
		}
		defer opened.Close()
		w.sleepUntil(t, opened.Expires.Add(-time.Nanosecond))
		if got := authorize(t, opened); got != 0 {
			t.Errorf("just before exp: refused for %q", got)
		}
		w.sleepUntil(t, opened.Expires)
		if got := authorize(t, opened); got != ReasonExpired {
			t.Errorf("opened in time, used at exp: refused for %q", got)
		}
	})
	threatVectors(t, 6, 2)
}

// sleepUntil waits until the Node believes that the Edge has this time.
func (w *world) sleepUntil(t testing.TB, edge time.Time) {
	t.Helper()
	now, known := w.cfg.Clock.Now()
	if !known {
		t.Fatal("the clock knows nothing")
	}
	time.Sleep(edge.Sub(now))
}

// TestFutureThreat07: iat and nbf may be two seconds ahead, no more.
//
// Seen to fail, each: without the check of iat, without the check of nbf, with a leeway of a minute.
func TestFutureThreat07(t *testing.T) {
	for _, name := range []string{"iat", "nbf"} {
		for ahead, want := range map[time.Duration]Reason{0: 0, Leeway: 0, Leeway + time.Nanosecond: ReasonNotYetValid, 10 * time.Second: ReasonNotYetValid} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				at := testNow.Add(20 * time.Second)
				d := newDraft()
				d.claims.set(name, unix(at))
				d.claims.set("exp", unix(testNow.Add(50*time.Second)))
				w.sleepUntil(t, at.Add(-ahead))
				w.refuses(t, want, d)
			})
		}
	}
	threatVectors(t, 7, 2)
}

// TestMissingClaimsThreat08: each claim must be there, and a life has an end.
//
// Seen to fail, each: without hasExactly in parseClaims, a missing claim being taken for what the run expects (every vector
// "without ..."); without the limit of exp-iat; without exp > iat; without exp > nbf.
func TestMissingClaimsThreat08(t *testing.T) { threatVectors(t, 8, 45) }

// TestAudienceThreat09: one audience, which is this Node.
//
// Seen to fail: without the check of aud; for the list and the empty one, with a read that ignored the error and a check
// that did not look at aud (another class).
func TestAudienceThreat09(t *testing.T) { threatVectors(t, 9, 4) }

// TestIssuerThreat10: two Edges of the same CA. A lease of the one does not open in a tunnel to the other, even if the
// one's keys were known there.
//
// Seen to fail, each: without the check of iss, and with a look-up that took the first known key for an unknown id.
func TestIssuerThreat10(t *testing.T) {
	w := newWorld(t)
	d := newDraft()
	d.claims.set("iss", quoted("spiffe://example.org/edge/other"))
	d.inner.set("kid", quoted(thumb(&strangerKey.PublicKey)))
	d.sign = es256(strangerKey)
	w.refuses(t, ReasonSigningKey, d)
	w.keys = keySet(t, edgeKey, strangerKey)
	w.refuses(t, ReasonIssuer, d)
	threatVectors(t, 10, 2)
}
