package lease

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// FuzzOpen gives a Node tokens: as they come, and correctly sealed around what comes. Only the one good lease opens, and
// nothing else leaves a trace.
func FuzzOpen(f *testing.F) {
	_, file := readVectors(f)
	for _, v := range file.Vectors {
		f.Add([]byte(v.Token), false)
	}
	inner := newDraft().jws()
	f.Add([]byte(inner), true)
	f.Add([]byte(inner[:len(inner)-1]), true)
	f.Add([]byte("e30.e30.e30"), true)
	w := newWorld(f)
	f.Fuzz(func(t *testing.T, data []byte, seal bool) {
		token := data
		if seal {
			token = newDraft().encrypt(data)
		}
		w.replay, w.live = newReplayCache(10), map[*Opened]struct{}{}
		opened, err := w.Open(token, w.want)
		if err != nil {
			refusal(t, err)
			if w.replay.count() != 0 || len(w.live) != 0 {
				t.Error("a refused lease left something behind")
			}
			return
		}
		// Whoever can write one that opens knows the signing key, or has one of the seeds.
		if got := opened.Credential().Reveal(); string(got) != testCredential {
			t.Errorf("a lease with the credential %q", got)
		}
		if again := w.reasonOf(t, token); again != ReasonReplay {
			t.Errorf("opened twice: %q", again)
		}
	})
}

// FuzzClaims gives the reader of claims what an Edge in the wrong hands could sign. What it accepts it must write again
// as it was understood, and an ordinary reader must understand the same.
func FuzzClaims(f *testing.F) {
	for _, group := range []func(*vectorBuilder){good, missingClaims, claimForms, claimValues, times, injections} {
		b := &vectorBuilder{}
		group(b)
		for _, v := range b.list {
			f.Add(payloadOf(f, v))
		}
	}
	f.Add([]byte(`{"v":1,"v":1}`))
	f.Add([]byte(`[[[[[[[[`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		given := bytes.Clone(payload)
		claims, credential, reason := parseClaims(payload)
		if reason != 0 {
			if claims != nil || credential.Reveal() != nil {
				t.Error("refused, and yet something came out")
			}
			return
		}
		if err := claims.check(); err != nil {
			t.Errorf("accepted with a bad %v", err)
		}
		value := credential.Reveal()
		if len(value) > MaxCredentialLength || bytes.ContainsAny(value, "\r\n \x00") {
			t.Errorf("accepted the credential %q", value)
		}
		written, err := claims.marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		same(t, given, written)
		again, credentialAgain, reason := parseClaims(written)
		if reason != 0 || *again != *claims || !credentialAgain.Equal(credential) {
			t.Errorf("written as %s: refused for %q, or something else", written, reason)
		}
	})
}

// same checks that encoding/json reads the same values in both.
func same(t *testing.T, a, b []byte) {
	t.Helper()
	var x, y map[string]any
	if err := json.Unmarshal(a, &x); err != nil {
		t.Fatalf("accepted what is no JSON: %v", err)
	}
	if err := json.Unmarshal(b, &y); err != nil {
		t.Fatal(err)
	}
	if len(x) != len(claimNames) || len(y) != len(x) {
		t.Errorf("%d and %d claims", len(x), len(y))
	}
	for name := range x {
		if x[name] != y[name] {
			t.Errorf("%s is %v and %v", name, x[name], y[name])
		}
	}
}

// payloadOf decrypts a vector to its claims.
func payloadOf(f *testing.F, v vector) []byte {
	f.Helper()
	w := newWorld(f)
	inner, reason := w.decrypt([]byte(v.Token))
	if reason != 0 {
		f.Fatalf("%s: %s", v.Name, reason)
	}
	payload, err := encoding.DecodeString(strings.Split(string(inner), ".")[1])
	if err != nil {
		f.Fatal(err)
	}
	return payload
}

// FuzzJWK gives both ends keys as a peer might send them. What is accepted is a point of P-256 under its own name.
func FuzzJWK(f *testing.F) {
	recipient, err := recipientOf(recipientKey)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(recipient.PublicJWK())
	f.Add([]byte(jwkOf(edgeKey)))
	f.Add([]byte(`{"kty":"EC","crv":"P-256","x":"","y":"","kid":"","use":"enc","alg":"ECDH-ES"}`))
	f.Fuzz(func(t *testing.T, jwk []byte) {
		if to, err := ParseRecipient(jwk); err == nil && !bytes.Contains(jwk, []byte(to.id)) {
			t.Errorf("accepted under the name %s: %s", to.id, jwk)
		}
		set, err := ParseKeySet([][]byte{jwk})
		if err != nil {
			return
		}
		for id, key := range set.keys {
			if string(id) != thumb(key) {
				t.Errorf("accepted under the name %s: %s", id, jwk)
			}
		}
	})
}
