package gateway

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// pairFor makes a certificate and its key as PEM.
func pairFor(t *testing.T, name string, from, until time.Duration) (cert, key []byte) {
	t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotBefore: now.Add(from), NotAfter: now.Add(until),
	}, &x509.Certificate{SerialNumber: big.NewInt(1)}, &secret.PublicKey, secret)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

// pairFiles are the two files of a pair, and what is logged of them.
type pairFiles struct {
	*publicPair
	t    *testing.T
	logs bytes.Buffer
}

func newPairFiles(t *testing.T, dir string, until time.Duration) *pairFiles {
	f := &pairFiles{t: t}
	cert, key := pairFor(t, "one", -2*time.Hour, until)
	f.write(filepath.Join(dir, "tls.crt"), cert)
	f.write(filepath.Join(dir, "tls.key"), key)
	pair, err := openPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), slog.New(slog.NewTextHandler(&f.logs, nil)))
	if err != nil {
		t.Fatal(err)
	}
	f.publicPair = pair
	return f
}

func (f *pairFiles) write(path string, content []byte) {
	f.t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		f.t.Fatal(err)
	}
}

// has fails unless clients get the certificate of that name, with or without a fault, and the log has so many faults.
func (f *pairFiles) has(name, fault string, told int) {
	f.t.Helper()
	pair, _ := f.get(nil)
	v := f.view()
	if pair.Leaf.DNSNames[0] != name || v.Names[0] != name || !strings.Contains(v.Fault, fault) || (fault == "") != (v.Fault == "") {
		f.t.Errorf("clients get %q; fault %q", pair.Leaf.DNSNames, v.Fault)
	}
	if got := strings.Count(f.logs.String(), "was refused"); got != told {
		f.t.Errorf("%d faults were logged, want %d:\n%s", got, told, f.logs.String())
	}
}

// TestPairIsReadAgain: a renewed pair takes effect when two looks have found it, whole or not at all.
func TestPairIsReadAgain(t *testing.T) {
	t.Parallel()
	f := newPairFiles(t, t.TempDir(), time.Hour)
	f.files.Look()
	f.files.Look()
	f.has("one", "", 0)
	cert, key := pairFor(t, "two", -time.Hour, 2*time.Hour)
	f.write(f.certFile, cert)
	f.files.Look() // the key is on its way
	f.has("one", "", 0)
	f.write(f.keyFile, key)
	f.files.Look()
	f.has("one", "", 0)
	f.files.Look()
	f.has("two", "", 0)

	// The key comes late: the former pair stays in use, the fault is told once, and what is whole in the end is taken.
	cert, key = pairFor(t, "three", -time.Hour, time.Hour)
	f.write(f.certFile, cert)
	for range 5 {
		f.files.Look()
	}
	f.has("two", "private key does not match", 1)
	f.write(f.keyFile, key)
	f.files.Look()
	f.files.Look()
	f.has("three", "", 1)
	if !strings.Contains(f.logs.String(), "TLS certificate loaded") || strings.Contains(f.logs.String(), "PRIVATE KEY") {
		t.Error(f.logs.String())
	}
}

// TestPairIsKeptWhereTheNextIsBad: whatever is wrong with the files, clients get what they got, and it is told once.
func TestPairIsKeptWhereTheNextIsBad(t *testing.T) {
	t.Parallel()
	old, oldKey := pairFor(t, "old", -3*time.Hour, -time.Hour)
	early, earlyKey := pairFor(t, "early", time.Hour, 2*time.Hour)
	good, goodKey := pairFor(t, "one", -time.Hour, time.Hour)
	for name, c := range map[string]struct {
		cert, key []byte
		fault     string
	}{
		"empty":        {nil, goodKey, "failed to find any PEM data"},
		"half":         {good[:len(good)/2], goodKey, "failed to find any PEM data"},
		"no key":       {good, good, "found a certificate rather than a key"},
		"another key":  {good, oldKey, "does not match"},
		"expired":      {old, oldKey, "expired at"},
		"not yet":      {early, earlyKey, "not valid before"},
		"large":        {bytes.Repeat([]byte("#"), maxPairFile+1), goodKey, "larger than"},
		"swapped over": {goodKey, good, "failed to find certificate PEM data"},
	} {
		f := newPairFiles(t, t.TempDir(), time.Hour)
		f.write(f.certFile, c.cert)
		f.write(f.keyFile, c.key)
		for range 4 {
			f.files.Look()
		}
		t.Log(name)
		f.has("one", c.fault, 1)
		if err := f.files.Reload(); err == nil || !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: SIGHUP says %v", name, err)
		}
		f.files.Look()
		f.has("one", c.fault, 1)
		if err := os.Remove(f.keyFile); err != nil {
			t.Fatal(err)
		}
		f.files.Look()
		f.files.Look()
		f.has("one", "no such file", 2) // another fault
		next, nextKey := pairFor(t, "next", -time.Hour, time.Hour)
		f.write(f.certFile, next)
		f.write(f.keyFile, nextKey)
		if err := f.files.Reload(); err != nil { // at once
			t.Errorf("%s: %v", name, err)
		}
		f.has("next", "", 2)
	}
}

// TestExpiredPairIsReplacedByAny: where the certificate in use is expired, another expired one is no worse.
func TestExpiredPairIsReplacedByAny(t *testing.T) {
	t.Parallel()
	f := newPairFiles(t, t.TempDir(), -time.Minute)
	cert, key := pairFor(t, "two", -time.Hour, -time.Second)
	f.write(f.certFile, cert)
	f.write(f.keyFile, key)
	if err := f.files.Reload(); err != nil {
		t.Fatal(err)
	}
	f.has("two", "", 0)
}

// TestPairBehindSymbolicLinks: Kubernetes swaps the link ..data of a mounted secret, certbot the links in live/.
func TestPairBehindSymbolicLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(dir, name+".new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, name+".new"), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, version := range []string{"..v1", "..v2"} {
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	f := newPairFiles(t, filepath.Join(dir, "..v1"), time.Hour)
	link("..v1", "..data")
	link("..data/tls.crt", "tls.crt")
	link("..data/tls.key", "tls.key")
	pair, err := openPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), f.log)
	if err != nil {
		t.Fatal(err)
	}
	f.publicPair = pair
	cert, key := pairFor(t, "two", -time.Hour, time.Hour)
	f.write(filepath.Join(dir, "..v2", "tls.crt"), cert)
	f.write(filepath.Join(dir, "..v2", "tls.key"), key)
	f.files.Look()
	f.has("one", "", 0)
	link("..v2", "..data")
	if err := os.RemoveAll(filepath.Join(dir, "..v1")); err != nil {
		t.Fatal(err)
	}
	f.files.Look()
	f.files.Look()
	f.has("two", "", 0)
}
