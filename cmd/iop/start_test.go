package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrongSettings: each stops the start with one line that names the variable, and never shows a secret.
func TestWrongSettings(t *testing.T) {
	noPEM := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(noPEM, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		args   string
		env    map[string]string
		stderr string
	}{
		{"edge --listen 8480", nil, "IOP_EDGE_LISTEN (--listen)"},
		{"edge", map[string]string{"IOP_EDGE_ADMIN_LISTEN": "x"}, "IOP_EDGE_ADMIN_LISTEN"},
		{"edge --listen 127.0.0.1:9 --admin-listen 127.0.0.1:9", nil, "IOP_EDGE_ADMIN_LISTEN (--admin-listen) must differ from IOP_EDGE_LISTEN"},
		{"runs --limit many", nil, "--limit must be a whole number, not \"many\"; see iop runs --help"},
		{"key create --name a --rpm 1.5", nil, "--rpm must be a whole number, not \"1.5\""},
		{"key create --name a --rpm 99999999999999999999", nil, "--rpm is too large"},
		{"runs --follow=perhaps", nil, "--follow must be true or false"},
		{"runs --folow", nil, "unknown flag: --folow; did you mean --follow?"},
		{"edge --mode managed", nil, "IOP_EDGE_IDENTITY_CERT (--identity-cert) or IOP_EDGE_SPIFFE_SOCKET"},
		{"edge", map[string]string{"IOP_EDGE_TUNNEL_LISTEN": ":8482"}, "managed mode"},
		{"edge --mode open", nil, "IOP_EDGE_MODE"},
		{"edge", map[string]string{"IOP_EDGE_STATE": "postgres://u:" + canary + "@h/db"}, "in this version"},
		{"edge --state sqlite::memory:", nil, "iop dev"},
		{"edge --auth open", nil, "IOP_EDGE_AUTH"},
		{"edge --auth none", nil, "loopback"},
		{"edge --tls-cert x", nil, "IOP_EDGE_TLS_KEY"},
		{"edge --log loud", nil, "IOP_EDGE_LOG"},
		{"edge --queue-limit many", nil, "a whole number"},
		{"edge --queue-timeout 5", nil, "a duration with a unit"},
		{"edge --max-body 0", nil, "IOP_EDGE_MAX_BODY"},
		{"edge --body-budget 1", nil, "IOP_EDGE_BODY_BUDGET"},
		{"edge --drain-timeout -1s", nil, "IOP_EDGE_DRAIN_TIMEOUT"},
		{"node", nil, "IOP_NODE_EDGE (--edge) is required"},
		{"node --edge ws://h", nil, "IOP_NODE_JOIN_TOKEN"},
		{"node --edge ftp://h", map[string]string{"IOP_NODE_JOIN_TOKEN": canary}, "wss://"},
		{"node --edge ws://h --name a/b", map[string]string{"IOP_NODE_JOIN_TOKEN": canary}, "IOP_NODE_NAME"},
		{"node --edge ws://h --provider x", map[string]string{"IOP_NODE_JOIN_TOKEN": canary}, "IOP_NODE_PROVIDERS (--provider)"},
		{"node --edge ws://h --labels x", map[string]string{"IOP_NODE_JOIN_TOKEN": canary}, "IOP_NODE_LABELS"},
		{"node --edge ws://h --drain-timeout -1s", map[string]string{"IOP_NODE_JOIN_TOKEN": canary}, "IOP_NODE_DRAIN_TIMEOUT"},
		{"node --edge ws://h --log loud", map[string]string{"IOP_NODE_JOIN_TOKEN": canary}, "IOP_NODE_LOG"},
		{"node --edge wss://h --ca " + noPEM, map[string]string{"IOP_NODE_JOIN_TOKEN": canary}, "IOP_NODE_CA"},
		{"node --edge wss://h --ca " + noPEM + "x", map[string]string{"IOP_NODE_JOIN_TOKEN": canary}, "no such file"},
		{"dev --listen x", nil, "IOP_DEV_LISTEN"},
		{"dev --log loud", nil, "IOP_DEV_LOG"},
		{"dev --provider a=ftp://" + canary, nil, "IOP_DEV_PROVIDERS"},
		{"bench", nil, "IOP_BENCH_URL"},
		{"bench --url http://h", nil, "IOP_BENCH_MODEL"},
		{"bench --url h --model m", nil, "url must be"},
		{"bench --url http://h --model m --concurrency 0", nil, "(--concurrency) must be from 1 to 10000"},
		{"bench --url http://h --model m --against h", nil, "url must be"},
	}
	for _, test := range tests {
		t.Run(test.args, func(t *testing.T) {
			t.Chdir(t.TempDir()) // where a default state would appear
			for name, value := range test.env {
				t.Setenv(name, value)
			}
			status, _, stderr := execute(t, strings.Fields(test.args)...)
			if status != exitUsage || !strings.Contains(stderr, test.stderr) {
				t.Errorf("status %d, stderr %q; want %d, %q", status, stderr, exitUsage, test.stderr)
			}
			if strings.Count(stderr, "\n") != 1 || strings.Contains(stderr, canary) {
				t.Errorf("stderr %q: want one line, without the secret", stderr)
			}
			if left, _ := os.ReadDir("."); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestUnknownVariablesAreNamed(t *testing.T) {
	t.Setenv("IOP_NODE_PROVIDER", "x=http://y")
	t.Setenv("IOP_NODE_JOIN_TOKEN", canary)
	_, _, stderr := execute(t, "node", "--edge", "ftp://h")
	if !strings.Contains(stderr, "IOP_NODE_PROVIDER is not a setting") {
		t.Errorf("stderr %q", stderr)
	}
}

func TestEdgePortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	state := "sqlite://" + filepath.Join(t.TempDir(), "iop.db")
	status, _, stderr := execute(t, "edge", "--listen", taken.Addr().String(), "--admin-listen", "127.0.0.1:0", "--state", state)
	if status != exitFailed || !strings.Contains(stderr, "address already in use") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
}

// TestEdgeWithoutItsRouteFile: the setting that names the file is named; a fault in the file names its line.
func TestEdgeWithoutItsRouteFile(t *testing.T) {
	args := []string{"edge", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--state", "sqlite://" + filepath.Join(t.TempDir(), "iop.db"), "--config"}
	missing := filepath.Join(t.TempDir(), "iop.yaml")
	if status, _, stderr := execute(t, append(args, missing)...); status != exitFailed || !strings.Contains(stderr, "can't be read (IOP_EDGE_CONFIG, --config): stat "+missing+": no such file") {
		t.Errorf("status %d, %q", status, stderr)
	}
	if status, _, stderr := execute(t, append(args, writeFile(t, "bad.yaml", "routes: 1\n"))...); status != exitFailed || strings.Contains(stderr, "can't be read") {
		t.Errorf("status %d, %q", status, stderr)
	}
	if status, _, stderr := execute(t, "edge", "--check-config", "--config", missing); status != exitFailed || !strings.Contains(stderr, "IOP_EDGE_CONFIG") {
		t.Errorf("status %d, %q", status, stderr)
	}
}
