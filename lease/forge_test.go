package lease

import (
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/execution"
)

// This file makes leases by hand, from the specification and crypto packages alone: a second implementation of the
// format, which can also write everything that the first one never would. With fixed keys its output is fixed too.

const (
	testCredential = "sk-canary-0123456789abcdef"
	testEdge       = "spiffe://example.org/edge/main"
	testNode       = "spiffe://example.org/node/gpu1"
	testGeneration = 7
	testRevision   = 3
)

// testNow is the time of the vectors.
var testNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// fixedKey is a private key that depends on its name alone.
func fixedKey(curve elliptic.Curve, name string) *ecdsa.PrivateKey {
	size := (curve.Params().BitSize + 7) / 8
	scalar := make([]byte, size)
	sum := sha256.Sum256([]byte("lease test key: " + name))
	copy(scalar[size-len(sum):], sum[:])
	key, err := ecdsa.ParseRawPrivateKey(curve, scalar)
	if err != nil {
		panic(err)
	}
	return key
}

var (
	recipientKey = fixedKey(elliptic.P256(), "recipient")
	edgeKey      = fixedKey(elliptic.P256(), "edge signing key")
	nextEdgeKey  = fixedKey(elliptic.P256(), "next edge signing key")
	strangerKey  = fixedKey(elliptic.P256(), "somebody else")
)

func thumb(key *ecdsa.PublicKey) string {
	id, err := thumbprint(key)
	if err != nil {
		panic(err)
	}
	return string(id)
}

func b64(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

func quoted(s string) string { return `"` + s + `"` }

// object is a JSON object in the order in which it is written; values are JSON.
type object []member

type member struct{ name, value string }

func (o *object) set(name, value string) {
	for i := range *o {
		if (*o)[i].name == name {
			(*o)[i].value = value
			return
		}
	}
	o.add(name, value)
}

func (o *object) add(name, value string) { *o = append(*o, member{name, value}) }

func (o *object) drop(name string) {
	*o = slices.DeleteFunc(*o, func(m member) bool { return m.name == name })
}

func (o object) String() string {
	var parts []string
	for _, m := range o {
		parts = append(parts, `"`+m.name+`":`+m.value)
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// draft is a lease in the making. newDraft gives a good one; a test changes what it is about.
type draft struct {
	claims, inner, outer, epk object
	payload                   []byte                                // instead of the claims
	sign                      func(input []byte) []byte             // over the inner header and payload
	rewrite                   func(inner string) string             // or nil: changes what is encrypted
	to                        *ecdsa.PublicKey                      // whom it is encrypted to
	key                       string                                // segment 2
	finish                    func(parts []string, _ *draft) string // or nil: makes the text
}

func newDraft() *draft {
	d := &draft{sign: es256(edgeKey), to: &recipientKey.PublicKey}
	d.claims = object{
		{"v", "1"}, {"iss", quoted(testEdge)}, {"aud", quoted(testNode)}, {"sub", quoted("team-a")},
		{"jti", quoted(b64([]byte("0123456789abcdef")))},
		{"iat", unix(testNow)}, {"nbf", unix(testNow)}, {"exp", unix(testNow.Add(DefaultLife))},
		{"gen", fmt.Sprint(testGeneration)}, {"rkt", quoted(thumb(&recipientKey.PublicKey))},
		{"run", quoted("run_abc")}, {"att", "1"}, {"rev", fmt.Sprint(testRevision)},
		{"route", quoted("chat")}, {"slot", quoted("openai")}, {"profile", quoted("openai-default")},
		{"tgt", quoted("https://api.example.com")}, {"rdg", quoted(testDigest().String())},
		{"hdr", quoted("authorization-bearer")}, {"cred", quoted(b64([]byte(testCredential)))},
	}
	d.inner = object{{"alg", quoted("ES256")}, {"kid", quoted(thumb(&edgeKey.PublicKey))}, {"typ", quoted("lease+jwt")}}
	d.epk = object{{"kty", quoted("EC")}, {"crv", quoted("P-256")}, {"x", ""}, {"y", ""}}
	d.setPoint(&ephemeralKey().PublicKey)
	d.outer = object{
		{"alg", quoted("ECDH-ES")}, {"enc", quoted("A256GCM")}, {"epk", ""}, {"kid", quoted(thumb(&recipientKey.PublicKey))},
		{"typ", quoted("lease+jwe")}, {"cty", quoted("lease+jwt")},
	}
	return d
}

func testDigest() Digest {
	digest, err := RequestDigest("POST", "/v1/chat/completions", "application/json", sha256.Sum256([]byte(`{"model":"m"}`)))
	if err != nil {
		panic(err)
	}
	return digest
}

func unix(t time.Time) string { return fmt.Sprint(t.Unix()) }

func ephemeralKey() *ecdsa.PrivateKey { return fixedKey(elliptic.P256(), "ephemeral") }

func (d *draft) setPoint(key *ecdsa.PublicKey) {
	point, err := key.Bytes()
	if err != nil {
		panic(err)
	}
	half := (len(point) - 1) / 2
	d.epk.set("x", quoted(b64(point[1:1+half])))
	d.epk.set("y", quoted(b64(point[1+half:])))
}

// es256 signs as RFC 6979 says: the same input, the same signature.
func es256(key *ecdsa.PrivateKey) func([]byte) []byte {
	return func(input []byte) []byte {
		sum := sha256.Sum256(input)
		return rawSignature(key, sum[:], crypto.SHA256)
	}
}

func rawSignature(key *ecdsa.PrivateKey, sum []byte, hash crypto.Hash) []byte {
	der, err := key.Sign(nil, sum, hash)
	if err != nil {
		panic(err)
	}
	var rs struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &rs); err != nil {
		panic(err)
	}
	size := (key.Params().BitSize + 7) / 8
	return append(rs.R.FillBytes(make([]byte, size)), rs.S.FillBytes(make([]byte, size))...)
}

// jws is the inner token.
func (d *draft) jws() string {
	payload := d.payload
	if payload == nil {
		payload = []byte(d.claims.String())
	}
	input := b64([]byte(d.inner.String())) + "." + b64(payload)
	inner := input + "." + b64(d.sign([]byte(input)))
	if d.rewrite != nil {
		inner = d.rewrite(inner)
	}
	return inner
}

func (d *draft) token() []byte { return d.encrypt([]byte(d.jws())) }

// encrypt is ECDH-ES with A256GCM (RFC 7518, 4.6 and 5.3), whatever the header says.
func (d *draft) encrypt(plaintext []byte) []byte {
	if i := slices.IndexFunc(d.outer, func(m member) bool { return m.name == "epk" && m.value == "" }); i >= 0 {
		d.outer[i].value = d.epk.String()
	}
	header := b64([]byte(d.outer.String()))
	block, err := aes.NewCipher(d.contentKey())
	if err != nil {
		panic(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	iv := sha256.Sum256([]byte(header)) // fixed for the same token, and no key is used for two of them in earnest
	sealed := gcm.Seal(nil, iv[:12], plaintext, []byte(header))
	cut := len(sealed) - gcm.Overhead()
	parts := []string{header, d.key, b64(iv[:12]), b64(sealed[:cut]), b64(sealed[cut:])}
	if d.finish != nil {
		return []byte(d.finish(parts, d))
	}
	return []byte(strings.Join(parts, "."))
}

func (d *draft) contentKey() []byte {
	private, err := ephemeralKey().ECDH()
	if err != nil {
		panic(err)
	}
	var public *ecdh.PublicKey
	if public, err = d.to.ECDH(); err != nil {
		panic(err)
	}
	shared, err := private.ECDH(public)
	if err != nil {
		panic(err)
	}
	text := binary.BigEndian.AppendUint32(nil, 1)
	text = append(text, shared...)
	text = append(binary.BigEndian.AppendUint32(text, uint32(len("A256GCM"))), "A256GCM"...)
	text = append(text, 0, 0, 0, 0, 0, 0, 0, 0) // apu, apv
	text = binary.BigEndian.AppendUint32(text, 256)
	key := sha256.Sum256(text)
	return key[:]
}

// world is a Node that waits for the lease of newDraft.
type world struct {
	*Opener
	want     Expectation
	counters *Counters
	minimum  execution.Revision
	keys     KeySet
	policy   bool
}

func newWorld(t testing.TB, change ...func(*OpenerConfig)) *world {
	t.Helper()
	w := &world{counters: &Counters{}, minimum: testRevision, policy: true, keys: keySet(t, edgeKey, nextEdgeKey)}
	w.want = Expectation{
		Run: "run_abc", Attempt: 1, Principal: "team-a", Route: "chat", Slot: "openai", Profile: "openai-default",
		Target: "https://api.example.com", Digest: testDigest(),
	}
	recipient, err := recipientOf(recipientKey)
	if err != nil {
		t.Fatal(err)
	}
	cfg := OpenerConfig{
		Issuer: testEdge, Audience: testNode, Generation: testGeneration, Recipient: recipient, Clock: &EdgeClock{},
		Keys:            func() KeySet { return w.keys },
		MinimumRevision: func(execution.SlotName) execution.Revision { return w.minimum },
		Policy:          func(execution.SlotName, execution.ProfileName, Target) bool { return w.policy },
		Counters:        w.counters,
	}
	cfg.Clock.Observe(testNow, time.Now(), time.Now())
	for _, f := range change {
		f(&cfg)
	}
	if w.Opener, err = NewOpener(cfg); err != nil {
		t.Fatal(err)
	}
	return w
}

func keySet(t testing.TB, keys ...*ecdsa.PrivateKey) KeySet {
	t.Helper()
	var jwks [][]byte
	for _, key := range keys {
		_, jwk, err := publicJWK(&key.PublicKey, "sig", "ES256")
		if err != nil {
			t.Fatal(err)
		}
		jwks = append(jwks, jwk)
	}
	set, err := ParseKeySet(jwks)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// reasonOf opens a token and returns why that was refused, 0 if it was not. It holds the error to its promises.
func (w *world) reasonOf(t testing.TB, token []byte) Reason {
	t.Helper()
	opened, err := w.Open(token, w.want)
	if err == nil {
		opened.Close()
		return 0
	}
	return refusal(t, err)
}

func refusal(t testing.TB, err error) Reason {
	t.Helper()
	rejected, ok := err.(*RejectedError)
	if !ok {
		t.Fatalf("not a *RejectedError: %v", err)
	}
	if err.Error() != "lease rejected" {
		t.Errorf("the error says more than it may: %q", err)
	}
	if rejected.Reason == 0 {
		t.Error("refused for no reason")
	}
	return rejected.Reason
}

// refuses checks that the Node refuses the draft for the reason.
func (w *world) refuses(t testing.TB, want Reason, d *draft) {
	t.Helper()
	if got := w.reasonOf(t, d.token()); got != want {
		t.Errorf("refused for %q, want %q", got, want)
	}
}
