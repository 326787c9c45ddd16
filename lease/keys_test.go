package lease

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	josejson "github.com/go-jose/go-jose/v4/json"
)

// TestRotation: a key is announced before it signs and verifies until its last lease has expired; no lease is refused on
// the way.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, keys, sealer, to := edgeWorld(t)
		refresh := func() (ids []string) {
			var err error
			if w.keys, err = ParseKeySet(keys.Public()); err != nil {
				t.Fatal(err)
			}
			for id := range w.keys.keys {
				ids = append(ids, string(id))
			}
			return ids
		}
		first := keys.Current()
		var early *TooEarlyError
		if err := keys.Rotate(); !errors.As(err, &early) || time.Until(early.At) != PublishAhead || keys.Current() != first {
			t.Fatalf("rotated before the next key was announced for long: %v", err)
		}
		for round := range 5 {
			time.Sleep(PublishAhead)
			before := seal(t, sealer, to)
			was := keys.Current()
			if err := keys.Rotate(); err != nil {
				t.Fatal(err)
			}
			// The Node has not heard of it yet: it knows the key that signs now, as it was announced.
			if _, known := w.keys.keys[keys.Current()]; !known || keys.Current() == was {
				t.Fatalf("round %d: the Node does not know the new key", round)
			}
			if got := w.reasonOf(t, seal(t, sealer, to)); got != 0 {
				t.Errorf("round %d: refused for %q", round, got)
			}
			if n := len(refresh()); n != 3 {
				t.Errorf("round %d: %d keys announced, want the former, the current and the next", round, n)
			}
			if got := w.reasonOf(t, before); got != 0 {
				t.Errorf("round %d: sealed before the rotation, refused for %q", round, got)
			}
			time.Sleep(keepFor)
			if n := len(refresh()); n != 2 {
				t.Errorf("round %d: %d keys announced when the old one's leases have expired", round, n)
			}
		}
	})
}

func TestRevokeKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, keys, _, _ := edgeWorld(t)
		time.Sleep(PublishAhead)
		old := keys.Current()
		if err := keys.Rotate(); err != nil {
			t.Fatal(err)
		}
		current, next := keys.Current(), keys.next.id
		for _, id := range []Thumbprint{old, next, current} {
			if found, err := keys.Revoke(id); !found || err != nil {
				t.Error(found, err)
			}
			if all := string(bytes.Join(keys.Public(), nil)); strings.Contains(all, string(id)) {
				t.Error("a revoked key is still announced")
			}
			if found, err := keys.Revoke(id); found || err != nil {
				t.Error("found twice", err)
			}
		}
		if n := len(keys.Public()); n != 2 || keys.Current() == current {
			t.Errorf("%d keys", n)
		}
	})
}

// TestKeysStayFew: however often keys are rotated, a Node takes the set.
func TestKeysStayFew(t *testing.T) {
	keys, err := NewSigningKeys()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 * maxKeys {
		keys.next.announced = time.Time{}
		if err := keys.Rotate(); err != nil {
			t.Fatal(err)
		}
		if _, err := ParseKeySet(keys.Public()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStrictJWK: what is not exactly a public key of the right kind is refused, for both kinds.
func TestStrictJWK(t *testing.T) {
	recipient, err := NewRecipient()
	if err != nil {
		t.Fatal(err)
	}
	good := string(recipient.PublicJWK())
	if _, err := ParseRecipient([]byte(good)); err != nil {
		t.Fatal(err)
	}
	private, err := jose.JSONWebKey{Key: recipient.private.Load(), KeyID: string(recipient.id), Use: "enc", Algorithm: "ECDH-ES"}.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	_, p384, err := publicJWK(&fixedKey(elliptic.P384(), "x").PublicKey, "enc", "ECDH-ES")
	if err != nil {
		t.Fatal(err)
	}
	_, forSigning, err := publicJWK(&edgeKey.PublicKey, "sig", "ES256")
	if err != nil {
		t.Fatal(err)
	}
	bad := map[string]string{
		"private": string(private), "another curve": string(p384), "for signing": string(forSigning), "empty": "", "null": "null", "a list": "[]",
		"another id":    strings.Replace(good, string(recipient.id), thumb(&edgeKey.PublicKey), 1),
		"another key":   replaceMember(t, good, "x", quoted(b64(bytes.Repeat([]byte{9}, 32)))),
		"an x5c":        strings.Replace(good, "{", `{"x5c":["AAAA"],`, 1),
		"use twice":     strings.Replace(good, "{", `{"use":"enc",`, 1),
		"two of them":   good + good,
		"too long":      strings.Replace(good, "{", "{"+strings.Repeat(" ", maxJWKLength), 1),
		"another use":   strings.Replace(good, `"enc"`, `"sig"`, 1),
		"without an id": strings.Replace(good, `"kid"`, `"kit"`, 1),
	}
	for name, jwk := range bad {
		if _, err := ParseRecipient([]byte(jwk)); err == nil {
			t.Errorf("a recipient key that is %s: accepted", name)
		} else if strings.Contains(err.Error(), "AAAA") {
			t.Errorf("%s: the error repeats the key: %v", name, err)
		}
		if _, err := ParseKeySet([][]byte{forSigning, []byte(jwk)}); (err == nil) != (name == "for signing") {
			t.Errorf("a verification key that is %s: %v", name, err)
		}
	}
	if _, err := ParseKeySet(nil); err == nil {
		t.Error("an empty set: accepted")
	}
	if _, err := ParseKeySet(make([][]byte, maxKeys+1)); err == nil {
		t.Error("a huge set: accepted")
	}
}

func replaceMember(t *testing.T, text, name, value string) string {
	t.Helper()
	members, ok := parseObject([]byte(text))
	if !ok {
		t.Fatal(text)
	}
	members[name] = josejson.RawMessage(value)
	out, err := josejson.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestThumbprint is RFC 7638 by hand.
func TestThumbprint(t *testing.T) {
	for _, key := range []*ecdsa.PrivateKey{recipientKey, edgeKey, strangerKey} {
		point, err := key.PublicKey.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		digest := sum(fmt.Appendf(nil, `{"crv":"P-256","kty":"EC","x":%q,"y":%q}`, b64(point[1:33]), b64(point[33:])))
		if got := thumb(&key.PublicKey); got != b64(digest[:]) {
			t.Errorf("thumbprint %s, want %s", got, b64(digest[:]))
		}
	}
}

// TestSigningKeyIDsAreNoFlags: iop signing-key revoke takes an ID as its argument.
func TestSigningKeyIDsAreNoFlags(t *testing.T) {
	for range 500 { // all of them but one time in 2600
		key, err := newSigningKey()
		if err != nil {
			t.Fatal(err)
		}
		if key.id[0] == '-' {
			t.Fatalf("%s", key.id)
		}
	}
}
