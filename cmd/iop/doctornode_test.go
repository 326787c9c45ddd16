package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"iop/tunnel/wire"
)

// TestDoctorNodeAsksForItsName: name, labels and models are checked with the token, and nothing is registered.
func TestDoctorNodeAsksForItsName(t *testing.T) {
	edge := startEdge(t)
	t.Setenv("IOP_ADMIN_URL", "http://"+edge.admin)
	t.Setenv("IOP_EDGE_STATE", edge.state)
	dir := t.TempDir()
	token := func(name string, args ...string) string {
		path := filepath.Join(dir, name)
		if status, _, stderr := execute(t, append([]string{"join-token", "create", "--out", path}, args...)...); status != exitOK {
			t.Fatal(stderr)
		}
		return path
	}
	bound, labelled := token("bound", "--node", "gpu-3"), token("labelled", "--label", "site=lab", "--model", "*-small")
	provider := "s=" + startSimulator(t)
	var labels []string
	for i := range 30 {
		labels = append(labels, fmt.Sprintf("k%d=%s", i, strings.Repeat("v", 120)))
	}
	for name, test := range map[string]struct {
		args, check, text string
		result            verdict
	}{
		"its name":       {"--name gpu-3 --join-token-file " + bound, "name", `"gpu-3"`, verdictOK},
		"another name":   {"--name foo --join-token-file " + bound, "tunnel", `wrong_node (403): the join token is for node "gpu-3", not "foo"`, verdictFailed},
		"reserved":       {"--name gpu-3 --join-token-file " + labelled, "tunnel", `node_reserved (403): the node name "gpu-3"`, verdictFailed},
		"its label":      {"--name bar --labels site=lab --join-token-file " + labelled, "name", `"bar"`, verdictOK},
		"another label":  {"--name bar --labels site=home --join-token-file " + labelled, "tunnel", "label_not_allowed (403)", verdictFailed},
		"another model":  {"--name bar --join-token-file " + labelled, "models", "does not allow 4 of the 5 models", verdictWarning},
		"too many bytes": {"--name bar --labels " + strings.Join(labels, ",") + " --join-token-file " + labelled, "labels", "over 3072", verdictFailed},
	} {
		t.Run(name, func(t *testing.T) {
			_, d := diagnose(t, append([]string{"node", "--edge", "ws://" + edge.public, "--provider", provider}, strings.Fields(test.args)...)...)
			d.has(t, test.check, test.result, test.text)
		})
	}
	if _, stdout, _ := execute(t, "nodes", "--json"); strings.Contains(stdout, "gpu-3") || strings.Contains(stdout, "bar") {
		t.Errorf("the doctor registered a Node: %s", stdout)
	}
	// A try does not make the name the token's: another one still gets it.
	if _, d := diagnose(t, "node", "--name", "bar", "--edge", "ws://"+edge.public, "--provider", provider, "--join-token-file", token("third")); true {
		d.has(t, "name", verdictOK, `"bar"`)
	}
}

// TestDoctorNodeOfAnOlderEdge: an Edge that answers no trial has checked nothing.
func TestDoctorNodeOfAnOlderEdge(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, buffer, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = buffer.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: " + wire.Subprotocol + "\r\n\r\n")
		_ = buffer.Flush()
		waitForEnd(conn)
	}))
	t.Cleanup(server.Close)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("njt-iop_x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, d := diagnose(t, "node", "--name", "n", "--edge", server.URL, "--join-token-file", token, "--provider", "s="+startSimulator(t))
	d.has(t, "name", verdictWarning, "can't check the name")
}

// waitForEnd reads until the other side closes.
func waitForEnd(conn net.Conn) {
	_, _ = bufio.NewReader(conn).ReadByte()
}
