package main

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"iop/identity"
)

// caSite is a directory in which a test works as an operator does, with relative names.
func caSite(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
}

// mustCA runs a command line that must, and returns what it printed.
func mustCA(t *testing.T, args ...string) string {
	t.Helper()
	status, stdout, stderr := execute(t, args...)
	if status != exitOK || stderr != "" {
		t.Fatalf("iop %s: status %d: %s", strings.Join(args, " "), status, stderr)
	}
	return stdout
}

// writeCSR makes a key and a request as openssl would on a Node.
func writeCSR(t *testing.T, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "wish"}, DNSNames: []string{"wish"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	putFile(t, name+".csr", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: raw}))
	putFile(t, name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

func putFile(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestCA walks the way from nothing to an Edge and a Node with identities that a Source takes, and through a change of
// the authority.
func TestCA(t *testing.T) {
	caSite(t)
	out := mustCA(t, "ca", "init", "--trust-domain", "iop.example.org")
	if !strings.Contains(out, "authority of iop.example.org in iop-ca") || !strings.Contains(out, "SHA-256 ") {
		t.Errorf("init: %s", out)
	}
	writeCSR(t, "node")
	out = mustCA(t, "ca", "issue", "--role", "node", "--name", "gpu-3", "--csr", "node.csr")
	if !strings.Contains(out, "spiffe://iop.example.org/node/gpu-3 until ") || !strings.Contains(out, "node-gpu-3.pem") {
		t.Errorf("issue: %s", out)
	}
	if _, err := os.Stat("node-gpu-3.key"); err == nil {
		t.Error("a key was made although a request was given")
	}
	var issued issuedAnswer
	out = mustCA(t, "ca", "issue", "--role", "edge", "--name", "main", "--gen-key", "--ttl", "720h", "--json")
	if err := json.Unmarshal([]byte(out), &issued); err != nil || issued.ID != "spiffe://iop.example.org/edge/main" ||
		issued.Certificate != "edge-main.pem" || issued.Key != "edge-main.key" || len(issued.Serial) != 32 {
		t.Errorf("%+v, %v: %s", issued, err, out)
	}
	putFile(t, "bundle.pem", []byte(mustCA(t, "ca", "bundle")))
	openIdentity(t, "spiffe://iop.example.org/node/gpu-3", "node-gpu-3.pem", "node.key", "bundle.pem")
	openIdentity(t, issued.ID, issued.Certificate, issued.Key, "bundle.pem")

	// The next authority: both in one bundle, and the Node renewed from the new one.
	mustCA(t, "ca", "init", "--ca", "ca-2", "--trust-domain", "iop.example.org", "--life", "8760h")
	putFile(t, "both.pem", []byte(mustCA(t, "ca", "bundle", "--ca", "ca-2", "--with", "bundle.pem")))
	openIdentity(t, "spiffe://iop.example.org/node/gpu-3", "node-gpu-3.pem", "node.key", "both.pem")
	mustCA(t, "ca", "issue", "--ca", "ca-2", "--role", "node", "--name", "gpu-3", "--csr", "node.csr", "--replace")
	openIdentity(t, "spiffe://iop.example.org/node/gpu-3", "node-gpu-3.pem", "node.key", "both.pem")

	noted := notedNames(t, "iop-ca/issued.log")
	if strings.Join(noted, " ") != "spiffe://iop.example.org/node/gpu-3 spiffe://iop.example.org/edge/main" {
		t.Errorf("noted: %v", noted)
	}
}

// openIdentity checks that Edge and Node would start with these files.
func openIdentity(t *testing.T, id identity.ID, cert, key, bundle string) {
	t.Helper()
	files, err := identity.OpenFiles(identity.FilesConfig{ID: id, CertFile: cert, KeyFile: key, BundleFile: bundle})
	if err != nil {
		t.Fatal(err)
	}
	files.Close()
}

func notedNames(t *testing.T, path string) (names []string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var entry identity.LogEntry
		if err := json.Unmarshal(lines.Bytes(), &entry); err != nil {
			t.Fatal(err)
		}
		names = append(names, string(entry.ID))
	}
	return names
}

func TestCAFromStandardInput(t *testing.T) {
	caSite(t)
	mustCA(t, "ca", "init", "--trust-domain", "iop")
	writeCSR(t, "node")
	request, err := os.ReadFile("node.csr")
	if err != nil {
		t.Fatal(err)
	}
	root := newRootCommand()
	var out strings.Builder
	root.SetOut(&out)
	root.SetIn(bytes.NewReader(request))
	root.SetArgs([]string{"ca", "issue", "--role", "node", "--name", "n", "--csr", "-"})
	if err := root.ExecuteContext(t.Context()); err != nil || !strings.Contains(out.String(), "spiffe://iop/node/n until") {
		t.Errorf("%v: %s", err, &out)
	}
}

func TestCAInspect(t *testing.T) {
	caSite(t)
	mustCA(t, "ca", "init", "--trust-domain", "iop.example.org")
	mustCA(t, "ca", "init", "--ca", "other", "--trust-domain", "iop.example.org")
	mustCA(t, "ca", "issue", "--role", "node", "--name", "gpu-3", "--gen-key")
	writeCSR(t, "node")

	out := mustCA(t, "ca", "inspect", "node-gpu-3.pem", "--bundle", "iop-ca/ca.pem")
	for _, want := range []string{"identity      spiffe://iop.example.org/node/gpu-3", "key           ECDSA P-256", "SHA-256 "} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	if strings.Contains(out, "FAULT") {
		t.Errorf("a fault in:\n%s", out)
	}
	var list listing[identity.Description]
	if err := json.Unmarshal([]byte(mustCA(t, "ca", "inspect", "iop-ca/ca.pem", "--json")), &list); err != nil || len(list.Data) != 1 ||
		list.Data[0].Kind != "authority" || list.Data[0].TrustDomain != "iop.example.org" {
		t.Errorf("%+v, %v", list, err)
	}
	mustCA(t, "ca", "inspect", "node.csr")

	status, out, stderr := execute(t, "ca", "inspect", "node-gpu-3.pem", "--bundle", "other/ca.pem")
	if status != exitFailed || !strings.Contains(out, "FAULT") || !strings.Contains(stderr, "would be refused") {
		t.Errorf("another authority: status %d: %s%s", status, out, stderr)
	}
	status, out, stderr = execute(t, "ca", "inspect", "node-gpu-3.key")
	if status != exitFailed || out != "" || !strings.Contains(stderr, "private key") {
		t.Errorf("a key: status %d: %s%s", status, out, stderr)
	}
}

// TestCARefuses: wrong use has its own status, and each refusal is one line that leaves nothing behind.
func TestCARefuses(t *testing.T) {
	caSite(t)
	mustCA(t, "ca", "init", "--trust-domain", "iop.example.org")
	mustCA(t, "ca", "issue", "--role", "node", "--name", "taken", "--gen-key")
	putFile(t, "garbage.csr", []byte("garbage"))
	tests := []struct {
		args   string
		status int
		stderr string
	}{
		{"ca", exitUsage, "needs a command"},
		{"ca init", exitUsage, "--trust-domain"},
		{"ca init --ca x --trust-domain Example.org", exitUsage, "--trust-domain"},
		{"ca init --ca x --trust-domain iop --life 1s", exitUsage, "--life"},
		{"ca init --trust-domain iop.example.org", exitFailed, "never overwritten"},
		{"ca issue --name x --gen-key", exitUsage, "--role"},
		{"ca issue --role admin --name x --gen-key", exitUsage, "--role"},
		{"ca issue --role node --gen-key", exitUsage, "a name must have"},
		{"ca issue --role node --name a/b --gen-key", exitUsage, "a name may hold"},
		{"ca issue --role node --name x", exitUsage, "--csr"},
		{"ca issue --role node --name x --csr garbage.csr --gen-key", exitUsage, "--gen-key"},
		{"ca issue --role node --name x --gen-key --ttl 2161h", exitUsage, "valid for"},
		{"ca issue --role node --name x --gen-key --ttl 0", exitUsage, "--ttl"},
		{"ca issue --role node --name x --csr garbage.csr", exitFailed, "certificate request"},
		{"ca issue --role node --name x --csr missing.csr", exitFailed, "no such file"},
		{"ca issue --role node --name taken --gen-key", exitFailed, "exists already"},
		{"ca issue --role node --name x --gen-key --ca missing", exitFailed, "no such file"},
		{"ca bundle --ca missing", exitFailed, "no such file"},
		{"ca bundle --with garbage.csr", exitFailed, "no PEM certificate"},
		{"ca bundle --with node-taken.pem", exitFailed, "not an authority"},
		{"ca inspect", exitUsage, "needs FILE"},
		{"ca inspect garbage.csr", exitFailed, "no PEM certificate"},
	}
	before := filesHere(t)
	for _, test := range tests {
		t.Run(test.args, func(t *testing.T) {
			status, stdout, stderr := execute(t, strings.Fields(test.args)...)
			if status != test.status || !strings.Contains(stderr, test.stderr) || stdout != "" || strings.Count(stderr, "\n") != 1 {
				t.Errorf("status %d, stdout %q, stderr %q; want %d, %q", status, stdout, stderr, test.status, test.stderr)
			}
		})
	}
	if after := filesHere(t); after != before {
		t.Errorf("before: %s\nafter:  %s", before, after)
	}
	if noted := notedNames(t, "iop-ca/issued.log"); len(noted) != 1 {
		t.Errorf("noted: %v", noted)
	}
}

func filesHere(t *testing.T) string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*", "*/*", ".*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return strings.Join(all, " ")
}
