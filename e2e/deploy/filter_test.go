//go:build docker

package deploy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// seccompProfile is a unit's filter in the form that Docker reads.
func seccompProfile(t *testing.T, unit string) string {
	t.Helper()
	// What the engine itself needs before it becomes our program.
	names := append(systemCalls(t, unit), "capset", "chdir", "fchdir", "execve", "setuid", "setgid", "setgroups")
	data, err := json.Marshal(map[string]any{
		"defaultAction": "SCMP_ACT_ERRNO",
		"syscalls":      []map[string]any{{"names": names, "action": "SCMP_ACT_ALLOW"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestUnitFilters: under the system calls that the units leave them, an Edge and a Node do their work. systemd does not run
// here, so the engine enforces the filter.
func TestUnitFilters(t *testing.T) {
	tag := "iop-test/filter:" + strconv.Itoa(os.Getpid())
	makeIOPImage(t, tag)
	run := func(unit string, args ...string) string {
		profile := filepath.Join(t.TempDir(), unit+".json")
		writeFile(t, profile, seccompProfile(t, unit))
		fixed := []string{"run", "-d", "--security-opt", "seccomp=" + profile, "--cap-drop", "ALL", "--security-opt", "no-new-privileges"}
		id := strings.TrimSpace(command(t, nil, docker, append(fixed, args...)...))
		t.Cleanup(func() {
			if t.Failed() {
				out, _ := tryCommand(nil, nil, "sh", "-c", `"$0" logs "$1" 2>&1`, docker, id)
				t.Logf("%s: %s", unit, out)
			}
			_, _ = tryCommand(nil, nil, docker, "rm", "-f", "-v", id)
		})
		return id
	}
	edge := run("edge", "-v", "/var/lib/iop", tag, "edge")
	eventually(t, 30*time.Second, "the Edge answers", func() bool {
		_, err := tryCommand(nil, nil, docker, "exec", edge, "/iop", "status")
		return err == nil
	})
	token := strings.TrimSpace(command(t, nil, docker, "exec", edge, "/iop", "join-token", "create"))
	sim := run("node", "--network", "container:"+edge, tag, "sim")
	run("node", "--network", "container:"+edge, "-e", "IOP_NODE_EDGE=ws://127.0.0.1:8480/tunnel/v1", "-e", "IOP_NODE_NAME=node-1", "-e", "IOP_NODE_JOIN_TOKEN="+token,
		"-e", "IOP_NODE_PROVIDERS=sim=http://127.0.0.1:8490", tag, "node")
	eventually(t, 30*time.Second, "the Node serves a model", func() bool {
		out, err := tryCommand(nil, nil, docker, "exec", edge, "/iop", "nodes")
		return err == nil && strings.Contains(out, "sim-small")
	})
	for _, id := range []string{edge, sim} {
		command(t, nil, docker, "stop", id)
		if code := strings.TrimSpace(command(t, nil, docker, "inspect", "-f", "{{.State.ExitCode}}", id)); code != "0" {
			t.Errorf("exit status %s", code)
		}
	}
}
