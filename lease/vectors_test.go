package lease

import (
	"bytes"
	"compress/flate"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/vectors.json again")

const vectorFile = "testdata/vectors.json"

// vectors is the file: what a Node must do with each token, for implementers in any language.
type vectors struct {
	Comment   string            `json:"comment"`
	Now       int64             `json:"now"` // the Edge's time at which each token is opened
	Issuer    string            `json:"issuer"`
	Audience  string            `json:"audience"`
	Gen       uint64            `json:"generation"`
	Recipient string            `json:"recipient_private_key"` // P-256 scalar, base64url
	Keys      []json.RawMessage `json:"verification_keys"`
	Minimum   uint64            `json:"minimum_revision"`
	Expect    map[string]string `json:"expect"`
	Vectors   []vector          `json:"vectors"`
}

type vector struct {
	Name   string `json:"name"`
	Threat int    `json:"threat,omitempty"` // the row of the threat table
	// Reason is the failure class that it must give; empty: it opens, and gives Credential.
	Reason     string `json:"reason"`
	Credential string `json:"credential,omitempty"`
	Token      string `json:"token"`
}

// generateVectors makes the file's contents from fixed keys and a fixed time: every run gives the same bytes.
func generateVectors(t testing.TB) vectors {
	t.Helper()
	v := vectors{
		Comment: "Made by vectors_test.go; go test ./lease -run TestVectors -update writes it again. Keys and credentials are of no use anywhere.",
		Now:     testNow.Unix(), Issuer: testEdge, Audience: testNode, Gen: testGeneration, Minimum: testRevision,
		Expect: map[string]string{
			"run": "run_abc", "att": "1", "sub": "team-a", "route": "chat", "slot": "openai", "profile": "openai-default",
			"tgt": "https://api.example.com", "rdg": testDigest().String(), "method": "POST", "path": "/v1/chat/completions",
			"content_type": "application/json", "body": `{"model":"m"}`,
		},
	}
	scalar, err := recipientKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	v.Recipient = b64(scalar)
	for _, key := range []*ecdsa.PrivateKey{edgeKey, nextEdgeKey} {
		_, jwk, err := publicJWK(&key.PublicKey, "sig", "ES256")
		if err != nil {
			t.Fatal(err)
		}
		v.Keys = append(v.Keys, jwk)
	}
	b := &vectorBuilder{}
	for _, group := range []func(*vectorBuilder){
		good, tokenTexts, outerHeaders, ephemeralKeys, innerHeaders, algorithms, signatures, missingClaims, claimForms, claimValues, times, injections,
	} {
		group(b)
	}
	v.Vectors = b.list
	return v
}

type vectorBuilder struct{ list []vector }

// add makes a vector of a draft that change has spoilt.
func (b *vectorBuilder) add(threat int, reason Reason, name string, change func(*draft)) {
	d := newDraft()
	change(d)
	v := vector{Name: name, Threat: threat, Reason: reason.String(), Token: string(d.token())}
	if reason == 0 {
		v.Credential = testCredential
	}
	b.list = append(b.list, v)
}

func good(b *vectorBuilder) {
	b.add(0, 0, "as it should be", func(*draft) {})
	b.add(0, 0, "members in another order", func(d *draft) {
		slices.Reverse(d.claims)
		slices.Reverse(d.inner)
		slices.Reverse(d.outer)
		slices.Reverse(d.epk)
	})
	b.add(0, 0, "signed with the next key", func(d *draft) {
		d.inner.set("kid", quoted(thumb(&nextEdgeKey.PublicKey)))
		d.sign = es256(nextEdgeKey)
	})
	b.add(0, 0, "a newer revision", func(d *draft) { d.claims.set("rev", "4") })
	b.add(7, 0, "issued two seconds ahead", func(d *draft) {
		d.claims.set("iat", unix(testNow.Add(Leeway)))
		d.claims.set("nbf", unix(testNow.Add(Leeway)))
	})
	b.add(8, 0, "the longest life", func(d *draft) { d.claims.set("exp", unix(testNow.Add(MaxLife))) })
	for _, header := range []Header{HeaderXAPIKey, HeaderAPIKey} {
		b.add(0, 0, "header "+header.String(), func(d *draft) { d.claims.set("hdr", quoted(header.String())) })
	}
}

// tokenTexts spoils the token's text alone.
func tokenTexts(b *vectorBuilder) {
	finish := func(threat int, reason Reason, name string, change func(parts []string) string) {
		b.add(threat, reason, name, func(d *draft) {
			d.finish = func(parts []string, _ *draft) string { return change(parts) }
		})
	}
	join := func(parts []string) string { return strings.Join(parts, ".") }
	finish(13, ReasonMalformed, "empty", func([]string) string { return "" })
	finish(13, ReasonMalformed, "four segments", func(p []string) string { return join(p[:4]) })
	finish(13, ReasonMalformed, "six segments", func(p []string) string { return join(append(p, p[4])) })
	finish(13, ReasonHeader, "empty segments", func([]string) string { return "...." })
	finish(13, ReasonDecryption, "cut in the tag", func(p []string) string { s := join(p); return s[:len(s)-2] })
	finish(13, ReasonDecryption, "no ciphertext", func(p []string) string { p[3] = ""; return join(p) })
	finish(1, ReasonMalformed, "line feed at the end", func(p []string) string { return join(p) + "\n" })
	finish(1, ReasonMalformed, "CRLF in the ciphertext", func(p []string) string { p[3] = p[3][:8] + "\r\n" + p[3][8:]; return join(p) })
	finish(1, ReasonMalformed, "space at the start", func(p []string) string { return " " + join(p) })
	finish(1, ReasonMalformed, "padding", func(p []string) string { return join(p) + "==" })
	finish(1, ReasonMalformed, "junk in the second segment", func(p []string) string { p[1] = "AAAA"; return join(p) })
	finish(1, ReasonHeader, "loose last character of the header", func(p []string) string { p[0] = loosen(p[0]); return join(p) })
	finish(14, ReasonTooLarge, "8193 bytes", func(p []string) string { return join(p) + strings.Repeat("A", MaxTokenLength+1-len(join(p))) })
	finish(12, ReasonMalformed, "JSON form with 32 recipients", func(p []string) string {
		recipient := `{"header":{"alg":"PBES2-HS256+A128KW","p2c":1000000,"p2s":"AAAA"},"encrypted_key":"AAAA"}`
		all := strings.TrimSuffix(strings.Repeat(recipient+",", 32), ",")
		return fmt.Sprintf(`{"protected":%q,"recipients":[%s],"iv":%q,"ciphertext":%q,"tag":%q}`, p[0], all, p[2], "AAAA", p[4])
	})
	finish(16, ReasonDecryption, "header changed after it was sealed", func(p []string) string {
		header, err := encoding.DecodeString(p[0])
		if err != nil {
			panic(err)
		}
		p[0] = b64(append([]byte(" "), header...))
		return join(p)
	})
	for i, name := range []string{2: "nonce", 3: "ciphertext", 4: "tag"} {
		if name != "" {
			finish(0, ReasonDecryption, "changed "+name, func(p []string) string { p[i] = flip(p[i]); return join(p) })
		}
	}
}

// loosen changes bits of the last character that decode to nothing; the text must have such bits.
func loosen(segment string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	if len(segment)%4 == 0 {
		panic("every bit of the last character counts")
	}
	last := strings.IndexByte(alphabet, segment[len(segment)-1])
	return segment[:len(segment)-1] + string(alphabet[last^1])
}

func flip(segment string) string {
	if segment[0] == 'A' {
		return "B" + segment[1:]
	}
	return "A" + segment[1:]
}

func outerHeaders(b *vectorBuilder) {
	extra := []member{
		{"crit", `["exp"]`}, {"jku", quoted("https://attacker.example/jwks")}, {"x5u", quoted("https://attacker.example/x5u")},
		{"jwk", jwkOf(strangerKey)}, {"x5c", `["AAAA"]`}, {"apu", quoted("QQ")}, {"apv", quoted("QQ")}, {"b64", "false"},
		{"ALG", quoted("ECDH-ES")}, {"anything", "1"}, {"alg", quoted("ECDH-ES")}, {"kid", quoted("x")},
	}
	for _, m := range extra {
		b.add(16, ReasonHeader, "outer header with "+m.name, func(d *draft) { d.outer.add(m.name, m.value) })
	}
	b.add(16, ReasonHeader, "outer header with an escaped name", func(d *draft) {
		d.outer.drop("alg")
		d.outer.add(`\u0061lg`, quoted("ECDH-ES"))
	})
	for _, name := range []string{"alg", "enc", "epk", "kid", "typ", "cty"} {
		b.add(16, ReasonHeader, "outer header without "+name, func(d *draft) { d.outer.drop(name) })
	}
	b.add(16, ReasonHeader, "outer type of a JWT", func(d *draft) { d.outer.set("typ", quoted("JWT")) })
	b.add(16, ReasonHeader, "outer content type of a JWT", func(d *draft) { d.outer.set("cty", quoted("JWT")) })
	b.add(17, ReasonRecipientKey, "sealed to an unknown key", func(d *draft) {
		d.outer.set("kid", quoted(thumb(&strangerKey.PublicKey)))
		d.to = &strangerKey.PublicKey
	})
	b.add(17, ReasonRecipientKey, "an older generation's key", func(d *draft) { d.outer.set("kid", quoted(thumb(&edgeKey.PublicKey))) })
	b.add(17, ReasonRecipientKey, "outer key id that is a path", func(d *draft) { d.outer.set("kid", quoted("../../etc/passwd")) })
	b.add(17, ReasonRecipientKey, "outer key id that is a number", func(d *draft) { d.outer.set("kid", "1") })
	b.add(17, ReasonDecryption, "sealed to another key under this one's id", func(d *draft) { d.to = &strangerKey.PublicKey })
	b.add(14, ReasonHeader, "outer header of 4 KiB", func(d *draft) { d.outer.set("typ", quoted(strings.Repeat("x", 4096))) })
}

func jwkOf(key *ecdsa.PrivateKey) string {
	_, jwk, err := publicJWK(&key.PublicKey, "sig", "ES256")
	if err != nil {
		panic(err)
	}
	return string(jwk)
}

func ephemeralKeys(b *vectorBuilder) {
	point := func(name string, change func(*draft)) { b.add(18, ReasonEphemeralKey, name, change) }
	point("epk off the curve", func(d *draft) { d.epk.set("y", quoted(b64(bytes.Repeat([]byte{1}, 32)))) })
	point("epk at infinity", func(d *draft) {
		d.epk.set("x", quoted(b64(make([]byte, 32))))
		d.epk.set("y", quoted(b64(make([]byte, 32))))
	})
	point("epk of P-384", func(d *draft) {
		d.epk.set("crv", quoted("P-384"))
		d.setPoint(&fixedKey(elliptic.P384(), "other curve").PublicKey)
	})
	point("epk of P-384 under the name of P-256", func(d *draft) { d.setPoint(&fixedKey(elliptic.P384(), "other curve").PublicKey) })
	point("epk with a private part", func(d *draft) { d.epk.add("d", quoted(b64(bytes.Repeat([]byte{1}, 32)))) })
	point("epk with a short coordinate", func(d *draft) { d.epk.set("x", quoted("AAAA")) })
	point("epk with a loose coordinate", func(d *draft) {
		x := d.epk[2].value
		d.epk.set("x", quoted(loosen(x[1:len(x)-1])))
	})
	point("epk without y", func(d *draft) { d.epk.drop("y") })
	point("epk with x twice", func(d *draft) { d.epk.add("x", d.epk[2].value) })
	point("epk that is a string", func(d *draft) { d.outer.set("epk", quoted("AAAA")) })
	point("epk that is null", func(d *draft) { d.outer.set("epk", "null") })
	point("epk of another kind", func(d *draft) {
		d.epk = object{{"kty", quoted("OKP")}, {"crv", quoted("X25519")}, {"x", d.epk[2].value}}
	})
}

func innerHeaders(b *vectorBuilder) {
	extra := []member{
		{"crit", `["exp"]`}, {"crit", `["b64"]`}, {"b64", "true"}, {"jku", quoted("https://attacker.example/jwks")},
		{"x5u", quoted("https://attacker.example/x5u")}, {"jwk", jwkOf(strangerKey)}, {"x5c", `["AAAA"]`}, {"nonce", quoted("AAAA")},
		{"cty", quoted("JWT")}, {"Typ", quoted("lease+jwt")}, {"kid", quoted(thumb(&edgeKey.PublicKey))},
	}
	for i, m := range extra {
		b.add(16, ReasonInnerHeader, fmt.Sprintf("inner header with %s, %d", m.name, i), func(d *draft) { d.inner.add(m.name, m.value) })
	}
	b.add(16, ReasonInnerHeader, "signed with the key in its own header", func(d *draft) {
		d.inner.add("jwk", jwkOf(strangerKey))
		d.sign = es256(strangerKey)
	})
	for _, name := range []string{"alg", "kid", "typ"} {
		b.add(16, ReasonInnerHeader, "inner header without "+name, func(d *draft) { d.inner.drop(name) })
	}
	b.add(16, ReasonInnerHeader, "inner type of the outer", func(d *draft) { d.inner.set("typ", quoted("lease+jwe")) })
	b.add(17, ReasonSigningKey, "unknown signing key", func(d *draft) {
		d.inner.set("kid", quoted(thumb(&strangerKey.PublicKey)))
		d.sign = es256(strangerKey)
	})
	b.add(17, ReasonSigningKey, "unknown key id, known key", func(d *draft) { d.inner.set("kid", quoted(thumb(&strangerKey.PublicKey))) })
	b.add(17, ReasonSigningKey, "inner key id that is a path", func(d *draft) { d.inner.set("kid", quoted("../"+thumb(&edgeKey.PublicKey))) })
	b.add(17, ReasonSigningKey, "empty inner key id", func(d *draft) { d.inner.set("kid", quoted("")) })
	b.add(17, ReasonInnerHeader, "inner key id that is a list", func(d *draft) { d.inner.set("kid", `["`+thumb(&edgeKey.PublicKey)+`"]`) })
	b.add(17, ReasonSignature, "signed with another known key", func(d *draft) { d.sign = es256(nextEdgeKey) })
}

func algorithms(b *vectorBuilder) {
	public, err := edgeKey.PublicKey.Bytes()
	if err != nil {
		panic(err)
	}
	ed := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32))
	p384 := fixedKey(elliptic.P384(), "other curve")
	inner := func(alg string, sign func([]byte) []byte) {
		b.add(11, ReasonInnerHeader, "inner algorithm "+alg, func(d *draft) {
			d.inner.set("alg", quoted(alg))
			d.sign = sign
		})
	}
	inner("none", func([]byte) []byte { return nil })
	inner("HS256", func(input []byte) []byte {
		mac := hmac.New(sha256.New, public)
		mac.Write(input)
		return mac.Sum(nil)
	})
	inner("RS256", func([]byte) []byte { return make([]byte, 256) }) // stands for any: it is refused by its name
	inner("ES384", func(input []byte) []byte {
		sum := sha512.Sum384(input)
		return rawSignature(p384, sum[:], crypto.SHA384)
	})
	inner("EdDSA", func(input []byte) []byte { return ed25519.Sign(ed, input) })
	inner("es256", es256(edgeKey))
	for _, alg := range []string{"RSA1_5", "RSA-OAEP-256", "dir", "A128KW", "ECDH-ES+A256KW", "PBES2-HS256+A128KW", "none"} {
		b.add(11, ReasonHeader, "outer algorithm "+alg, func(d *draft) { d.outer.set("alg", quoted(alg)) })
	}
	for _, enc := range []string{"A128GCM", "A256CBC-HS512", "none"} {
		b.add(11, ReasonHeader, "content encryption "+enc, func(d *draft) { d.outer.set("enc", quoted(enc)) })
	}
	b.add(12, ReasonHeader, "PBES2 with a billion rounds", func(d *draft) {
		d.outer.set("alg", quoted("PBES2-HS256+A128KW"))
		d.outer.add("p2c", "1000000000")
		d.outer.add("p2s", quoted("AAAAAAAAAAAAAAAA"))
	})
	b.list = append(b.list, vector{Name: "240 kB in a small token", Threat: 15, Reason: ReasonHeader.String(), Token: string(zipBomb())})
}

// zipBomb is a token that says zip and holds 240 kB of nothing, correctly encrypted.
func zipBomb() []byte {
	var packed bytes.Buffer
	w, err := flate.NewWriter(&packed, flate.BestCompression)
	if err != nil {
		panic(err)
	}
	if _, err := w.Write(make([]byte, 240_000)); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	d := newDraft()
	d.outer.add("zip", quoted("DEF"))
	return d.encrypt(packed.Bytes())
}

func signatures(b *vectorBuilder) {
	b.add(0, ReasonSignature, "changed payload", func(d *draft) {
		d.rewrite = func(inner string) string {
			other := newDraft()
			other.claims.set("run", quoted("run_other"))
			parts := strings.Split(inner, ".")
			parts[1] = strings.Split(other.jws(), ".")[1]
			return strings.Join(parts, ".")
		}
	})
	b.add(0, ReasonSignature, "signature of zeroes", func(d *draft) { d.sign = func([]byte) []byte { return make([]byte, 64) } })
	b.add(0, ReasonSignature, "no signature", func(d *draft) { d.sign = func([]byte) []byte { return nil } })
	b.add(13, ReasonInnerMalformed, "inner token of two segments", func(d *draft) {
		d.rewrite = func(inner string) string { return inner[:strings.LastIndex(inner, ".")] }
	})
	b.add(13, ReasonInnerMalformed, "inner token in JSON", func(d *draft) { d.rewrite = func(string) string { return `{"payload":"AAAA","signatures":[]}` } })
	b.add(13, ReasonInnerMalformed, "empty inner token", func(d *draft) { d.rewrite = func(string) string { return "" } })
	b.add(13, ReasonInnerMalformed, "line feed in the inner token", func(d *draft) { d.rewrite = func(inner string) string { return inner + "\n" } })
	b.add(10, ReasonSigningKey, "another Edge's lease, whole", func(d *draft) {
		d.claims.set("iss", quoted("spiffe://example.org/edge/other"))
		d.inner.set("kid", quoted(thumb(&strangerKey.PublicKey)))
		d.sign = es256(strangerKey)
	})
	b.add(3, ReasonAudience, "another Node's lease, sealed again for this one", func(d *draft) {
		d.claims.set("aud", quoted("spiffe://example.org/node/gpu2"))
		d.claims.set("rkt", quoted(thumb(&strangerKey.PublicKey)))
	})
	b.add(3, ReasonRecipient, "sealed again with another key", func(d *draft) { d.claims.set("rkt", quoted(thumb(&strangerKey.PublicKey))) })
}

func missingClaims(b *vectorBuilder) {
	for _, name := range claimNames {
		b.add(8, ReasonClaims, "without "+name, func(d *draft) { d.claims.drop(name) })
	}
	for _, name := range claimNames[1:] {
		b.add(8, ReasonClaims, name+" is null", func(d *draft) { d.claims.set(name, "null") })
	}
}

// claimForms are claims that no comparison is needed to refuse.
func claimForms(b *vectorBuilder) {
	bad := func(threat int, name, value string) {
		b.add(threat, ReasonClaims, fmt.Sprintf("%s is %.40s", name, value), func(d *draft) { d.claims.set(name, value) })
	}
	b.add(16, ReasonClaims, "an unknown claim", func(d *draft) { d.claims.add("admin", "true") })
	b.add(16, ReasonClaims, "exp twice", func(d *draft) { d.claims.add("exp", unix(testNow.Add(MaxLife))) })
	b.add(16, ReasonClaims, "exp in capitals", func(d *draft) { d.claims.drop("exp"); d.claims.add("EXP", unix(testNow.Add(MaxLife))) })
	b.add(16, ReasonClaims, "something after the claims", func(d *draft) { d.payload = []byte(d.claims.String() + "{}") })
	b.add(16, ReasonClaims, "claims in a list", func(d *draft) { d.payload = []byte("[" + d.claims.String() + "]") })
	b.add(16, ReasonClaims, "no claims", func(d *draft) { d.payload = []byte("{}") })
	b.add(16, ReasonClaims, "broken UTF-8", func(d *draft) { d.claims.set("sub", "\"team-\xff\"") })
	b.add(0, ReasonVersion, "version 2", func(d *draft) { d.claims.set("v", "2") })
	b.add(0, ReasonVersion, "version as text", func(d *draft) { d.claims.set("v", quoted("1")) })
	bad(9, "aud", `["`+testNode+`"]`)
	bad(9, "aud", `""`)
	for _, value := range []string{quoted(unix(testNow)), unix(testNow) + ".5", "1e10", "-1", "18446744073709551615", "9007199254740993", "true"} {
		bad(8, "exp", value)
	}
	bad(8, "iat", "[]")
	bad(8, "jti", quoted("AAAA"))
	bad(8, "jti", quoted(strings.Repeat("A", 23)))
	bad(8, "jti", quoted(loosen(b64([]byte("0123456789abcdef")))))
	bad(0, "gen", "0")
	bad(0, "rev", "0")
	bad(0, "att", "4294967296")
	bad(0, "rkt", quoted("AAAA"))
	bad(0, "rdg", quoted("AAAA"))
	bad(0, "hdr", quoted("x-anything"))
	bad(14, "cred", quoted(b64(bytes.Repeat([]byte("x"), MaxCredentialLength+1))))
	bad(14, "cred", `""`)
	bad(14, "sub", quoted(strings.Repeat("x", maxTextLength+1)))
	bad(0, "cred", quoted(loosen(b64([]byte(testCredential)))))
}

// claimValues are claims that are well formed and belong to something else.
func claimValues(b *vectorBuilder) {
	other := func(threat int, reason Reason, name, value string) {
		b.add(threat, reason, "another "+name, func(d *draft) { d.claims.set(name, value) })
	}
	other(9, ReasonAudience, "aud", quoted("spiffe://example.org/node/gpu2"))
	other(10, ReasonIssuer, "iss", quoted("spiffe://example.org/edge/other"))
	other(4, ReasonGeneration, "gen", "6")
	other(0, ReasonRun, "run", quoted("run_other"))
	other(0, ReasonAttempt, "att", "2")
	other(5, ReasonRevision, "rev", "2")
	other(0, ReasonPrincipal, "sub", quoted("team-b"))
	other(0, ReasonRoute, "route", quoted("other"))
	other(0, ReasonSlot, "slot", quoted("other"))
	other(0, ReasonProfile, "profile", quoted("other"))
	other(0, ReasonTarget, "tgt", quoted("https://attacker.example"))
	other(24, ReasonRequestDigest, "rdg", quoted(Digest(sha256.Sum256([]byte("other"))).String()))
	b.add(9, ReasonAudience, "audience in another case", func(d *draft) { d.claims.set("aud", quoted(strings.ToUpper(testNode))) })
}

func times(b *vectorBuilder) {
	at := func(threat int, reason Reason, name string, iat, nbf, exp int64) {
		b.add(threat, reason, name, func(d *draft) {
			d.claims.set("iat", fmt.Sprint(testNow.Unix()+iat))
			d.claims.set("nbf", fmt.Sprint(testNow.Unix()+nbf))
			d.claims.set("exp", fmt.Sprint(testNow.Unix()+exp))
		})
	}
	at(6, ReasonExpired, "expires now", -30, -30, 0)
	at(6, ReasonExpired, "expired a second ago", -31, -31, -1)
	at(7, ReasonNotYetValid, "issued four seconds ahead", 4, 0, 30)
	at(7, ReasonNotYetValid, "valid in four seconds", 0, 4, 30)
	at(8, ReasonLifetime, "a life of 61 s", 0, 0, 61)
	at(8, ReasonLifetime, "expires when it is issued", 0, -1, 0)
	at(8, ReasonLifetime, "expires before it is issued", 0, 0, -1)
	at(8, ReasonLifetime, "expires before it is valid", 0, 31, 30)
	b.add(8, ReasonLifetime, "issued at the epoch", func(d *draft) { d.claims.set("iat", "0") })
}

// injections are values that would break out of a header or an address.
func injections(b *vectorBuilder) {
	for _, value := range []string{"sk-x\r\nX-Evil: 1", "sk-x\n", "sk x", "sk\x00", "sk-é", "sk\x7f"} {
		b.add(38, ReasonClaims, fmt.Sprintf("credential %q", value), func(d *draft) { d.claims.set("cred", quoted(b64([]byte(value)))) })
	}
	for _, value := range []string{
		`https://api.example.com\r\nX-Evil: 1`, `https://user:pass@api.example.com`, `https://api.example.com/`, `https://api.example.com:443`,
		`HTTPS://api.example.com`, `https://API.example.com`, `https://api.example.com/../x`, `https://api.example.com?x=1`, `https://api.example.com#x`,
		`https://api.example.com/%2e%2e`, `file:///etc/passwd`, `https://`, `//api.example.com`, `https://api.example.com\\x`,
	} {
		b.add(38, ReasonClaims, "target "+value, func(d *draft) { d.claims.set("tgt", quoted(value)) })
	}
	for _, name := range []string{"hdr", "slot", "profile", "route", "sub", "run", "iss", "aud"} {
		b.add(38, ReasonClaims, name+" with CRLF", func(d *draft) { d.claims.set(name, quoted(`x\r\nX-Evil: 1`)) })
	}
}

func readVectors(t testing.TB) (raw []byte, v vectors) {
	t.Helper()
	raw, err := os.ReadFile(vectorFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	return raw, v
}

// TestVectorsAreCurrent makes the file again. With -update it writes it.
func TestVectorsAreCurrent(t *testing.T) {
	fresh, err := json.MarshalIndent(generateVectors(t), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	fresh = append(fresh, '\n')
	if *update {
		if err := os.WriteFile(vectorFile, fresh, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if committed, _ := readVectors(t); !bytes.Equal(fresh, committed) {
		t.Error("testdata/vectors.json is not what this file makes; run: go test ./lease -run TestVectors -update")
	}
}

// TestVectors holds the package to the committed file: each token opens, or gives its failure class.
func TestVectors(t *testing.T) {
	_, file := readVectors(t)
	if len(file.Vectors) < 150 {
		t.Fatalf("only %d vectors", len(file.Vectors))
	}
	names, classes := map[string]bool{}, map[string]bool{}
	for _, v := range file.Vectors {
		if names[v.Name] {
			t.Errorf("two vectors are called %q", v.Name)
		}
		names[v.Name], classes[v.Reason] = true, true
		t.Run(v.Name, func(t *testing.T) { v.check(t) })
	}
	// What a single token can't show has tests of its own.
	stateful := []Reason{ReasonClosed, ReasonPolicy, ReasonClockUnknown, ReasonReplay, ReasonReplayCacheFull, ReasonForgotten, ReasonRevoked}
	for _, r := range Reasons() {
		if !classes[r.String()] && !slices.Contains(stateful, r) {
			t.Errorf("no vector gives %q", r)
		}
	}
}

// check opens the vector's token at a Node that has seen nothing yet.
func (v vector) check(t *testing.T) {
	w := newWorld(t)
	opened, err := w.Open([]byte(v.Token), w.want)
	if err != nil {
		if got := refusal(t, err); got.String() != v.Reason {
			t.Errorf("refused for %q, want %q", got, v.Reason)
		}
		if w.replay.count() != 0 || len(w.live) != 0 {
			t.Error("a refused lease left something behind")
		}
		return
	}
	defer opened.Close()
	if v.Reason != "" {
		t.Errorf("opened, want %q", v.Reason)
	} else if got := opened.Credential().Reveal(); string(got) != v.Credential {
		t.Errorf("another credential than the vector's")
	}
}

// threatVectors runs the vectors of a row of the threat table.
func threatVectors(t *testing.T, row, atLeast int) {
	t.Helper()
	_, file := readVectors(t)
	n := 0
	for _, v := range file.Vectors {
		if v.Threat == row && v.Reason != "" {
			n++
			t.Run(v.Name, func(t *testing.T) { v.check(t) })
		}
	}
	if n < atLeast {
		t.Errorf("%d vectors for row %d, want %d", n, row, atLeast)
	}
}
