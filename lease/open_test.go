package lease

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
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

// TestAlgorithmsThreat11: one algorithm in each place.
//
// Seen to fail: with "alg" and "enc" no longer among the exact members and the library's lists widened by the algorithm.
func TestAlgorithmsThreat11(t *testing.T) { threatVectors(t, 11, 14) }

// TestCostlyFormsThreat12: neither a billion rounds of PBES2 nor 32 recipients reach the library.
//
// Seen to fail: without the checks of alphabet and segments the JSON form came as far as its header; with the algorithms
// checked neither here nor by the library's lists, and p2c and p2s allowed, PBES2 came as far as the key. Both give
// another class.
func TestCostlyFormsThreat12(t *testing.T) { threatVectors(t, 12, 2) }

// TestTruncatedThreat13: cut anywhere, a lease is refused.
//
// Seen to fail: a segments that does not count the dots panics here.
func TestTruncatedThreat13(t *testing.T) {
	w := newWorld(t)
	token := newDraft().token()
	for n := range token {
		if w.reasonOf(t, token[:n]) == 0 {
			t.Fatalf("%d of %d bytes open", n, len(token))
		}
		if w.reasonOf(t, token[n+1:]) == 0 {
			t.Fatalf("all but the first %d bytes open", n+1)
		}
	}
	inner := newDraft().jws()
	for n := 0; n < len(inner); n += 7 {
		if w.reasonOf(t, newDraft().encrypt([]byte(inner[:n]))) == 0 {
			t.Fatalf("%d of %d bytes of the inner token open", n, len(inner))
		}
	}
	if w.replay.count() != 0 {
		t.Error("a cut lease was remembered as opened")
	}
	if got := w.reasonOf(t, token); got != 0 {
		t.Errorf("the whole one: refused for %q", got)
	}
	threatVectors(t, 13, 8)
}

// TestOversizedThreat14: a token that is too long costs nothing but the look at its length.
//
// Seen to fail: without the check of the length (class and allocations), and without the limits of credential and texts.
func TestOversizedThreat14(t *testing.T) {
	w := newWorld(t)
	huge := bytes.Repeat([]byte("A"), 64<<20)
	if got := w.reasonOf(t, huge); got != ReasonTooLarge {
		t.Errorf("64 MiB: refused for %q", got)
	}
	if n := testing.AllocsPerRun(10, func() { w.Open(huge, w.want) }); n > 2 {
		t.Errorf("%.0f allocations for a token that is too long, want those of the error and the expectation", n)
	}
	if got := w.reasonOf(t, huge[:MaxTokenLength]); got != ReasonMalformed {
		t.Errorf("8192 bytes: refused for %q", got)
	}
	threatVectors(t, 14, 5)
}

// TestZipBombThreat15: a compressed token is refused by its header, before it is unpacked.
//
// Seen to fail: with zip allowed in checkOuter and not asked for in decrypt, the bomb goes off: class inner_malformed,
// and more than 240 kB allocated.
func TestZipBombThreat15(t *testing.T) {
	w := newWorld(t)
	bomb := zipBomb()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10 {
		if got := w.reasonOf(t, bomb); got != ReasonHeader {
			t.Fatalf("refused for %q", got)
		}
	}
	runtime.ReadMemStats(&after)
	if spent := (after.TotalAlloc - before.TotalAlloc) / 10; spent > 64<<10 {
		t.Errorf("%d bytes allocated for a bomb of %d bytes", spent, len(bomb))
	}
	threatVectors(t, 15, 1)
}

// TestHeadersThreat16: whatever else a header or the claims hold is refused, and nothing of it is fetched.
//
// Seen to fail: with hasExactly without its comparison of lengths; doubled members with encoding/json, which lets the last
// one win; the escaped name with a decodeHeader that allowed backslashes; the key in the header with a verify that used it.
func TestHeadersThreat16(t *testing.T) {
	dialed := trapDials(t)
	threatVectors(t, 16, 40)
	if dialed.Load() != 0 {
		t.Error("something was fetched")
	}
}

// trapDials counts whatever goes through the one client that a library would use.
func trapDials(t *testing.T) *atomic.Int64 {
	t.Helper()
	var dialed atomic.Int64
	transport, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		t.Fatal("the default transport is something else")
	}
	was := transport.DialContext
	transport.DialContext = func(_ context.Context, network, address string) (net.Conn, error) {
		dialed.Add(1)
		return nil, fmt.Errorf("no network in this test: %s %s", network, address)
	}
	t.Cleanup(func() { transport.DialContext = was })
	return &dialed
}

// TestKeyIDsThreat17: a key id names one key, and no other is tried. A revoked signing key verifies nothing.
//
// Seen to fail: with a verify that tried every key of the set, without the check of the outer key id (class decryption),
// and with a Revoke that left the key among the old ones.
func TestKeyIDsThreat17(t *testing.T) {
	threatVectors(t, 17, 10)
	keys, sealer, to := edge(t)
	w := newWorld(t, func(cfg *OpenerConfig) { cfg.Clock.Observe(time.Now(), time.Now(), time.Now()) })
	refresh := func() {
		var err error
		if w.keys, err = ParseKeySet(keys.Public()); err != nil {
			t.Fatal(err)
		}
	}
	refresh()
	if got := w.reasonOf(t, seal(t, sealer, to)); got != 0 {
		t.Fatalf("refused for %q", got)
	}
	token, revoked := seal(t, sealer, to), keys.Current()
	if found, err := keys.Revoke(revoked); !found || err != nil {
		t.Fatal(found, err)
	}
	refresh()
	if got := w.reasonOf(t, token); got != ReasonSigningKey {
		t.Errorf("under a revoked key: refused for %q", got)
	}
	if keys.Current() == revoked {
		t.Error("the revoked key goes on signing")
	}
	if got := w.reasonOf(t, seal(t, sealer, to)); got != 0 {
		t.Errorf("under the key that took its place: refused for %q", got)
	}
}

// TestEphemeralKeyThreat18: the sender's key is a public point of P-256.
//
// Seen to fail: without the look at epk each vector gives another class, decryption at best.
func TestEphemeralKeyThreat18(t *testing.T) { threatVectors(t, 18, 11) }

// TestRevokedThreat19: a revocation wins, whether it comes before the lease, after it, or at the same time.
//
// Seen to fail, each: without the look at the tombstones in enlist; without the end of what is open in Revoke; with an
// authorize that did not look; with a Revoke that took what is open before it set the tombstone, and gave the mutex up
// between (the parallel part).
func TestRevokedThreat19(t *testing.T) {
	byAny := []Revocation{
		{Lease: execution.LeaseID(b64([]byte("0123456789abcdef")))}, {Run: "run_abc"}, {Principal: "team-a"},
		{Slot: "openai", Below: testRevision + 1}, {Slot: "openai"}, {Run: "run_abc", Principal: "team-a"},
	}
	for _, r := range byAny {
		before := newWorld(t)
		if open, err := before.Revoke(r); open != 0 || err != nil {
			t.Error(open, err)
		}
		if got := before.reasonOf(t, newDraft().token()); got != ReasonRevoked {
			t.Errorf("%+v, then opened: refused for %q", r, got)
		}
		after := newWorld(t)
		opened, err := after.Open(newDraft().token(), after.want)
		if err != nil {
			t.Fatal(err)
		}
		if open, err := after.Revoke(r); open != 1 || err != nil {
			t.Error(open, err)
		}
		if got := authorize(t, opened); got != ReasonRevoked {
			t.Errorf("opened, then %+v: refused for %q", r, got)
		}
	}
	for round := range 300 {
		w := newWorld(t)
		token := newDraft().token()
		var both sync.WaitGroup
		var opened *Opened
		both.Go(func() { opened, _ = w.Open(token, w.want) })
		both.Go(func() { w.Revoke(Revocation{Run: "run_abc"}) })
		both.Wait()
		if opened != nil && authorize(t, opened) == 0 {
			t.Fatalf("round %d: used after its revocation", round)
		}
	}
}

// TestRevokedWhileStreamingThreat20: who holds an open lease learns at once that it is withdrawn, and so does everyone
// when the session ends. The rest of the row is the Node's.
//
// Seen to fail, each: without closing the channel in endLocked; with an authorize that did not look.
func TestRevokedWhileStreamingThreat20(t *testing.T) {
	for name, end := range map[string]func(*world){
		"revoked": func(w *world) { w.Revoke(Revocation{Principal: "team-a"}) },
		"closed":  func(w *world) { w.Close() },
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			opened, err := w.Open(newDraft().token(), w.want)
			if err != nil {
				t.Fatal(err)
			}
			if got := authorize(t, opened); got != 0 {
				t.Fatalf("refused for %q", got)
			}
			aborted := make(chan struct{})
			go func() {
				<-opened.Revoked()
				close(aborted)
			}()
			synctest.Wait()
			select {
			case <-aborted:
				t.Errorf("%s: aborted before", name)
			default:
			}
			end(w)
			synctest.Wait()
			select {
			case <-aborted:
			default:
				t.Fatalf("%s: not told", name)
			}
			if opened.Credential().Reveal() != nil {
				t.Errorf("%s: the credential is still there", name)
			}
			if got := authorize(t, opened); got != ReasonRevoked {
				t.Errorf("%s: refused for %q", name, got)
			}
			opened.Close() // and once more, harmlessly
		})
	}
}

// TestReplayFloodThreat21: valid leases beyond the bound are refused, the memory holds, nothing alive is forgotten, and
// room comes back with time.
//
// Seen to fail: without the comparison with the bound; with one that dropped the oldest bucket instead; with a dropLocked
// that dropped nothing.
func TestReplayFloodThreat21(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bound = 200
		w := newWorld(t, func(cfg *OpenerConfig) { cfg.ReplayBound = bound })
		numbered := func(n int) []byte {
			d := newDraft()
			d.claims.set("jti", quoted(b64(fmt.Appendf(nil, "%016d", n))))
			now, _ := w.cfg.Clock.Now()
			d.claims.set("iat", unix(now))
			d.claims.set("nbf", unix(now))
			d.claims.set("exp", unix(now.Add(MaxLife)))
			return d.token()
		}
		first := numbered(0)
		for n := range bound {
			if got := w.reasonOf(t, numbered(n)); got != 0 {
				t.Fatalf("lease %d: refused for %q", n, got)
			}
		}
		for n := range 10 {
			if got := w.reasonOf(t, numbered(bound+n)); got != ReasonReplayCacheFull {
				t.Fatalf("beyond the bound: refused for %q", got)
			}
		}
		if got := w.reasonOf(t, first); got != ReasonReplay {
			t.Errorf("the first again: refused for %q", got)
		}
		time.Sleep(keepFor - time.Second)
		if got := w.reasonOf(t, numbered(2*bound)); got != ReasonReplayCacheFull {
			t.Errorf("while all may be alive: refused for %q", got)
		}
		time.Sleep(bucketSpan + time.Second)
		if got := w.reasonOf(t, numbered(3*bound)); got != 0 {
			t.Errorf("when all have expired: refused for %q", got)
		}
	})
	cache := newReplayCache(DefaultReplayBound)
	grown := heapGrowth(func() {
		for n := range 4 * DefaultReplayBound {
			cache.insert([16]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}, testNow)
		}
	})
	if cache.count() != DefaultReplayBound || grown > 6<<20 {
		t.Errorf("%d leases take %d bytes", cache.count(), grown)
	}
	runtime.KeepAlive(cache)
}

// heapGrowth is by how much the live heap is larger after f.
func heapGrowth(f func()) int64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.GC()
	runtime.ReadMemStats(&after)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc)
}

// TestGarbageFloodThreat22: what is forged, misdirected or expired takes no room in the replay cache.
//
// Seen to fail: with the replay cache asked before the claims were compared.
func TestGarbageFloodThreat22(t *testing.T) {
	_, file := readVectors(t)
	w := newWorld(t)
	tried := 0
	for _, v := range file.Vectors {
		if v.Reason != "" {
			tried++
			if w.reasonOf(t, []byte(v.Token)) == 0 {
				t.Errorf("%s: opened", v.Name)
			}
		}
	}
	if tried < 200 || w.replay.count() != 0 {
		t.Errorf("%d leases remembered after %d bad ones", w.replay.count(), tried)
	}
}

// TestWrongClockThreat23: the Node's own clock decides nothing, however wrong it is.
//
// Seen to fail: with time.Now() in the place of the Edge's time in checkTime and in Authorize.
func TestWrongClockThreat23(t *testing.T) {
	for _, offset := range []time.Duration{-10 * time.Minute, -3 * time.Second, 0, 3 * time.Second, 10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			d := newDraft()
			at := time.Now().Add(offset).Truncate(time.Second)
			d.claims.set("iat", unix(at))
			d.claims.set("nbf", unix(at))
			d.claims.set("exp", unix(at.Add(DefaultLife)))
			w := newWorld(t, func(cfg *OpenerConfig) {
				cfg.Clock = &EdgeClock{}
				cfg.Clock.Observe(at, time.Now(), time.Now())
			})
			opened, err := w.Open(d.token(), w.want)
			if err != nil {
				t.Fatalf("offset %s: refused for %q", offset, refusal(t, err))
			}
			if got := authorize(t, opened); got != 0 {
				t.Errorf("offset %s: use refused for %q", offset, got)
			}
			opened.Close()
			time.Sleep(DefaultLife)
			d.claims.set("jti", quoted(b64([]byte("fedcba9876543210"))))
			w.refuses(t, ReasonExpired, d)
		})
	}
}

// TestSwappedRequestThreat24: one changed byte of the request, anywhere, and the lease does not open.
//
// Seen to fail: without the comparison of the digests.
func TestSwappedRequestThreat24(t *testing.T) {
	body := []byte(`{"model":"m"}`)
	digest := func(method, path, contentType string, body []byte) Digest {
		d, err := RequestDigest(method, path, contentType, sum(body))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	w := newWorld(t)
	refused := func(d Digest) {
		t.Helper()
		w.want.Digest = d
		w.refuses(t, ReasonRequestDigest, newDraft())
	}
	for i := range body {
		swapped := slices.Clone(body)
		swapped[i] ^= 1
		refused(digest("POST", "/v1/chat/completions", "application/json", swapped))
	}
	refused(digest("PUT", "/v1/chat/completions", "application/json", body))
	refused(digest("POST", "/v1/completions", "application/json", body))
	refused(digest("POST", "/v1/chat/completions", "text/plain", body))
	refused(Digest{})
	w.want.Digest = digest("POST", "/v1/chat/completions", "application/json", body)
	w.refuses(t, 0, newDraft())
	threatVectors(t, 24, 1)
}

// TestInjectionThreat38: no credential, header or address that would break out of its place passes, at open and at seal.
//
// Seen to fail, each: with a NewSecret that takes every byte; with a Target.Validate that accepts everything; with visible
// and text accepting control characters; with a Header taken by its name.
func TestInjectionThreat38(t *testing.T) {
	threatVectors(t, 38, 25)
	_, sealer, to := edge(t)
	for _, value := range []string{"", "sk-x\r\nX-Evil: 1", "sk-x\n", "sk x", "\tsk", "sk\x00", "sk-\xff", strings.Repeat("x", MaxCredentialLength+1)} {
		if _, err := NewSecret([]byte(value)); err == nil {
			t.Errorf("a credential of %q", value)
		} else if value != "" && strings.Contains(err.Error(), value) {
			t.Errorf("the error shows it: %v", err)
		}
	}
	for name, change := range map[string]func(*Binding){
		"tgt":     func(b *Binding) { b.Target = "https://api.example.com\r\nX: 1" },
		"hdr":     func(b *Binding) { b.Header = 9 },
		"slot":    func(b *Binding) { b.Slot = "a\r\nb" },
		"profile": func(b *Binding) { b.Profile = "a b" },
		"route":   func(b *Binding) { b.Route = "a\nb" },
		"sub":     func(b *Binding) { b.Principal = "a\x00b" },
		"run":     func(b *Binding) { b.Run = "a b" },
		"aud":     func(b *Binding) { b.Audience = "a\rb" },
		"rdg":     func(b *Binding) { b.Digest = Digest{} },
		"gen":     func(b *Binding) { b.Generation = 0 },
		"rev":     func(b *Binding) { b.Revision = 0 },
	} {
		b := binding()
		change(&b)
		if _, _, _, err := sealer.Seal(b, secret(t, testCredential), to); err == nil || !strings.Contains(err.Error(), "claim "+name+" ") {
			t.Errorf("a bad %s is sealed: %v", name, err)
		}
	}
}

// TestPolicy: the Node's own configuration has the last word on where a credential goes.
func TestPolicy(t *testing.T) {
	w := newWorld(t)
	w.policy = false
	w.refuses(t, ReasonPolicy, newDraft())
	w.policy = true
	w.refuses(t, 0, newDraft())
}

// TestClockUnknown: without the Edge's time nothing opens.
func TestClockUnknown(t *testing.T) {
	w := newWorld(t, func(cfg *OpenerConfig) { cfg.Clock = &EdgeClock{} })
	w.refuses(t, ReasonClockUnknown, newDraft())
}

// TestHeaders: each of the closed set goes where it says, in the place of what a client sent.
func TestHeaders(t *testing.T) {
	for header, want := range map[Header][2]string{
		HeaderBearer:  {"Authorization", "Bearer " + testCredential},
		HeaderXAPIKey: {"X-Api-Key", testCredential},
		HeaderAPIKey:  {"Api-Key", testCredential},
	} {
		w := newWorld(t)
		d := newDraft()
		d.claims.set("hdr", quoted(header.String()))
		opened, err := w.Open(d.token(), w.want)
		if err != nil {
			t.Fatal(err)
		}
		request := &http.Request{Header: http.Header{want[0]: {"of the client", "twice"}, "Accept": {"*/*"}}}
		if err := opened.Authorize(request); err != nil {
			t.Fatal(err)
		}
		if got := request.Header.Values(want[0]); len(got) != 1 || got[0] != want[1] || len(request.Header) != 2 {
			t.Errorf("%s: %d values, %d headers", header, len(got), len(request.Header))
		}
		opened.Close()
		if got := authorize(t, opened); got != ReasonClosed {
			t.Errorf("%s: used after Close, refused for %q", header, got)
		}
	}
}

// TestOpenerRefusesHalfAConfiguration: nothing of it may be missing.
func TestOpenerRefusesHalfAConfiguration(t *testing.T) {
	good := newWorld(t).cfg
	for name, change := range map[string]func(*OpenerConfig){
		"issuer": func(c *OpenerConfig) { c.Issuer = "" }, "audience": func(c *OpenerConfig) { c.Audience = "" },
		"generation": func(c *OpenerConfig) { c.Generation = 0 }, "recipient": func(c *OpenerConfig) { c.Recipient = nil },
		"clock": func(c *OpenerConfig) { c.Clock = nil }, "keys": func(c *OpenerConfig) { c.Keys = nil },
		"minimum": func(c *OpenerConfig) { c.MinimumRevision = nil }, "policy": func(c *OpenerConfig) { c.Policy = nil },
		"bound": func(c *OpenerConfig) { c.ReplayBound = -1 },
	} {
		cfg := good
		change(&cfg)
		if _, err := NewOpener(cfg); err == nil {
			t.Errorf("an Opener without %s", name)
		}
	}
}
