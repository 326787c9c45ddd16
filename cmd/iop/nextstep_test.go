package main

import (
	"strings"
	"testing"
)

// TestErrorsNameTheNextStep: who meets one is told what to do, on one line.
func TestErrorsNameTheNextStep(t *testing.T) {
	edge := startEdge(t)
	url := " --admin-url http://" + edge.admin
	there := url + " --state " + edge.state
	for _, line := range []string{"nodes", "routes", "key list", "join-token list", "slot list"} {
		if status, _, stderr := execute(t, strings.Fields(line+there)...); status != exitOK || !strings.HasPrefix(stderr, "none yet: ") {
			t.Errorf("iop %s: status %d, %q", line, status, stderr)
		}
	}
	for line, want := range map[string]string{
		"key show nosuch" + there:                                      "iop key list",
		"key revoke nosuch" + there:                                    "iop key list",
		"join-token revoke nosuch" + there:                             "iop join-token list",
		"slot show nosuch" + there:                                     "iop slot list",
		"profile delete nosuch" + there:                                "iop profile list",
		"drain nosuch" + there:                                         "iop nodes",
		"nodes show nosuch" + there:                                    "iop nodes",
		"cancel run_x" + there:                                         "iop runs",
		"signing-key rotate" + there:                                   "managed-mode.md",
		"status --state sqlite://none/iop.db" + url:                    "IOP_EDGE_STATE",
		"status --admin-url http://127.0.0.1:1 --admin-token adm":      "iop edge",
		"status --admin-token wrong" + url:                             "IOP_ADMIN_TOKEN_FILE",
		"status --admin-token wrong --admin-url http://" + edge.public: "IOP_ADMIN_URL",
		"edge --admin-listen 127.0.0.1:0 --listen " + edge.public + " --state sqlite://" + t.TempDir() + "/state/iop.db": "iop doctor edge",
		"edge --state sqlite://" + t.TempDir(): "iop doctor edge",
		"node --edge ws://127.0.0.1:1":         "iop join-token create",
		"dev --listen " + edge.public:          "--listen",
	} {
		status, stdout, stderr := execute(t, strings.Fields(line)...)
		told := strings.TrimSpace(stderr)
		last := told[strings.LastIndex(told, "\n")+1:]
		if status == exitOK || !strings.Contains(last, want) || stdout != "" {
			t.Errorf("iop %s: status %d, %q, %q; want %q", line, status, stdout, stderr, want)
		}
	}
}
