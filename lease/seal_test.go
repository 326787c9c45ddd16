package lease

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
)

func sum(body []byte) [sha256.Size]byte { return sha256.Sum256(body) }

func secret(t testing.TB, value string) Secret {
	t.Helper()
	s, err := NewSecret([]byte(value))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// edge is an Edge, and the recipient of newWorld as it sees it.
func edge(t testing.TB) (*SigningKeys, *Sealer, *RecipientPublic) {
	t.Helper()
	keys, err := NewSigningKeys()
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := NewSealer(SealerConfig{Issuer: testEdge, Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	recipient, err := recipientOf(recipientKey)
	if err != nil {
		t.Fatal(err)
	}
	to, err := ParseRecipient(recipient.PublicJWK())
	if err != nil {
		t.Fatal(err)
	}
	return keys, sealer, to
}

// binding is what newWorld waits for.
func binding() Binding {
	return Binding{
		Audience: testNode, Generation: testGeneration, Run: "run_abc", Attempt: 1, Principal: "team-a", Route: "chat",
		Slot: "openai", Profile: "openai-default", Revision: testRevision, Target: "https://api.example.com",
		Digest: testDigest(), Header: HeaderBearer,
	}
}

func seal(t testing.TB, s *Sealer, to *RecipientPublic) []byte {
	t.Helper()
	token, _, _, err := s.Seal(binding(), secret(t, testCredential), to)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// edgeWorld is a Node with an Edge whose leases it opens.
func edgeWorld(t testing.TB) (*world, *SigningKeys, *Sealer, *RecipientPublic) {
	t.Helper()
	keys, sealer, to := edge(t)
	w := newWorld(t, func(cfg *OpenerConfig) {
		cfg.Clock = &EdgeClock{}
		cfg.Clock.Observe(time.Now(), time.Now(), time.Now())
	})
	var err error
	if w.keys, err = ParseKeySet(keys.Public()); err != nil {
		t.Fatal(err)
	}
	return w, keys, sealer, to
}

func TestSealAndOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, sealer, to := edgeWorld(t)
		b := binding()
		b.Principal, b.Route, b.Attempt = "Käthe & <co> \"quoted\"", "models/é", 0
		w.want.Principal, w.want.Route, w.want.Attempt = b.Principal, b.Route, 0
		began := time.Now()
		token, id, expires, err := sealer.Seal(b, secret(t, testCredential), to)
		if err != nil {
			t.Fatal(err)
		}
		opened, err := w.Open(token, w.want)
		if err != nil {
			t.Fatalf("refused for %q", refusal(t, err))
		}
		defer opened.Close()
		want := Claims{
			ID: id, Issuer: testEdge, Audience: testNode, Generation: b.Generation, Recipient: to.Thumbprint(),
			IssuedAt: began.UTC(), NotBefore: began.UTC(), Expires: began.Add(DefaultLife).UTC(), Run: b.Run, Attempt: 0,
			Principal: b.Principal, Route: b.Route, Slot: b.Slot, Profile: b.Profile, Revision: b.Revision,
			Target: b.Target, Digest: b.Digest, Header: b.Header,
		}
		if got := fmt.Sprintf("%+v", opened.Claims); got != fmt.Sprintf("%+v", want) {
			t.Errorf("opened %s\nwant   %+v", got, want)
		}
		if !expires.Equal(want.Expires) || !opened.Credential().Equal(secret(t, testCredential)) || w.counters.Opened() != 1 {
			t.Errorf("expires %s; counted %d", expires, w.counters.Opened())
		}
	})
}

// TestSealedFormat holds what Seal writes to the specification, member by member.
func TestSealedFormat(t *testing.T) {
	_, sealer, to := edge(t)
	token := seal(t, sealer, to)
	if len(token) < 1000 || len(token) > 1700 {
		t.Errorf("an ordinary lease has %d bytes", len(token))
	}
	parts := segments(token, 5)
	header, err := encoding.AppendDecode(nil, parts[0])
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(header, &got); err != nil {
		t.Fatal(err)
	}
	epk, _ := got["epk"].(map[string]any)
	if epk["kty"] != "EC" || epk["crv"] != "P-256" || len(epk) != 4 {
		t.Errorf("epk %v", epk)
	}
	delete(got, "epk")
	want := fmt.Sprint(map[string]any{"alg": "ECDH-ES", "enc": "A256GCM", "kid": string(to.Thumbprint()), "typ": "lease+jwe", "cty": "lease+jwt"})
	if fmt.Sprint(got) != want {
		t.Errorf("header %v\nwant   %s", got, want)
	}
	if len(parts[1]) != 0 || bytes.Contains(token, []byte(testCredential)) {
		t.Error("there is an encrypted key, or a credential")
	}
}

// TestSealNeverTwice: two leases of the same binding have nothing in common but the header's constant part.
func TestSealNeverTwice(t *testing.T) {
	_, sealer, to := edge(t)
	one, two := segments(seal(t, sealer, to), 5), segments(seal(t, sealer, to), 5)
	for _, i := range []int{0, 2, 3, 4} {
		if bytes.Equal(one[i], two[i]) {
			t.Errorf("segment %d is the same twice", i)
		}
	}
}

func TestSealLimits(t *testing.T) {
	w, _, sealer, to := edgeWorld(t)
	// The longest credential with ordinary names fits.
	token, _, _, err := sealer.Seal(binding(), secret(t, strings.Repeat("x", MaxCredentialLength)), to)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.reasonOf(t, token); got != 0 {
		t.Errorf("%d bytes: refused for %q", len(token), got)
	}
	// With the longest of everything it does not, and that is said here, not by the Node.
	b := binding()
	b.Audience = Audience(strings.Repeat("a", maxIdentityLength))
	b.Principal = execution.PrincipalID(strings.Repeat("p", maxTextLength))
	b.Target = Target("https://" + strings.Repeat("a", maxTargetLength-8))
	_, _, _, err = sealer.Seal(b, secret(t, strings.Repeat("x", MaxCredentialLength)), to)
	if err == nil || !strings.Contains(err.Error(), "more than 8192") {
		t.Errorf("the longest of everything: %v", err)
	}
	wiped := secret(t, testCredential)
	wiped.Wipe()
	for _, none := range []Secret{{}, wiped} {
		if _, _, _, err := sealer.Seal(binding(), none, to); err == nil {
			t.Error("a lease without a credential")
		}
	}
}

func TestSealerConfig(t *testing.T) {
	keys, _, _ := edge(t)
	for _, cfg := range []SealerConfig{
		{Keys: keys}, {Issuer: testEdge}, {Issuer: testEdge, Keys: keys, Life: MaxLife + time.Second},
		{Issuer: testEdge, Keys: keys, Life: -time.Second}, {Issuer: testEdge, Keys: keys, Life: 1500 * time.Millisecond}, {Issuer: "a b", Keys: keys},
	} {
		if _, err := NewSealer(cfg); err == nil {
			t.Errorf("accepted: %+v", cfg)
		}
	}
}
