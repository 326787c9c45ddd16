package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"iop/identity"
)

// TestCARequest: from a key that never leaves its machine to an identity that a Source takes.
func TestCARequest(t *testing.T) {
	caSite(t)
	mustCA(t, "ca", "init", "--trust-domain", "iop.example.org")
	putFile(t, "bundle.pem", []byte(mustCA(t, "ca", "bundle")))
	var made requestedAnswer
	out := mustCA(t, "ca", "request", "--role", "node", "--name", "gpu-3", "--trust-domain", "iop.example.org", "--json")
	if err := json.Unmarshal([]byte(out), &made); err != nil || made != (requestedAnswer{"spiffe://iop.example.org/node/gpu-3", "node-gpu-3.key", "node-gpu-3.csr"}) {
		t.Fatalf("%+v, %v: %s", made, err, out)
	}
	if info, err := os.Stat(made.Key); err != nil || info.Mode() != 0o600 {
		t.Errorf("the key's file: %v, %v", info.Mode(), err)
	}
	var seen listing[identity.Description]
	if err := json.Unmarshal([]byte(mustCA(t, "ca", "inspect", made.Request, "--json")), &seen); err != nil || len(seen.Data) != 1 || seen.Data[0].ID != made.ID {
		t.Errorf("the request says %+v, %v", seen, err)
	}
	mustCA(t, "ca", "issue", "--role", "node", "--name", "gpu-3", "--csr", made.Request)
	openIdentity(t, made.ID, "node-gpu-3.pem", made.Key, "bundle.pem")

	if out := mustCA(t, "ca", "request", "--role", "edge", "--name", "main", "--trust-domain", "iop.example.org"); out != "key for spiffe://iop.example.org/edge/main in edge-main.key, request in edge-main.csr\n" {
		t.Error(out)
	}
}

// TestCARequestReplacesNothing: a key that is there stays, and so does a request.
func TestCARequestReplacesNothing(t *testing.T) {
	for _, there := range []string{"node-a.key", "node-a.csr"} {
		caSite(t)
		putFile(t, there, []byte("mine"))
		status, _, stderr := execute(t, "ca", "request", "--role", "node", "--name", "a", "--trust-domain", "x.org")
		if status != exitFailed || !strings.Contains(stderr, there+" already exists") {
			t.Errorf("%s: status %d: %s", there, status, stderr)
		}
		files, err := os.ReadDir(".")
		if data, readErr := os.ReadFile(there); err != nil || readErr != nil || string(data) != "mine" || len(files) != 1 {
			t.Errorf("%s: %q, %d files, %v %v", there, data, len(files), err, readErr)
		}
	}
}

// TestCANamesTheFault: wrong use of request and issue names the flag.
func TestCANamesTheFault(t *testing.T) {
	caSite(t)
	mustCA(t, "ca", "init", "--trust-domain", "iop.example.org")
	for args, want := range map[string]string{
		"request --role king --name a --trust-domain x.org":   `--role must be "edge" or "node"`,
		"request --role node --trust-domain x.org":            "--name: a name must have",
		"request --role node --name a:b --trust-domain x.org": "--name: a name in a certificate can't hold ':'",
		"request --role node --name a/b --trust-domain x.org": "--name: a name may hold letters",
		"request --role node --name a":                        "--trust-domain: ",
		"issue --role node --name a:b --gen-key":              "--name: a name in a certificate can't hold ':'",
		"issue --role node --gen-key":                         "--name: a name must have",
	} {
		status, stdout, stderr := execute(t, append([]string{"ca"}, strings.Fields(args)...)...)
		if status != exitUsage || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("iop ca %s: status %d, want %q: %s%s", args, status, want, stdout, stderr)
		}
	}
	if files, err := os.ReadDir("."); err != nil || len(files) != 1 {
		t.Errorf("%d files, %v", len(files), err)
	}
}
