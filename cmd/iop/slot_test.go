package main

import (
	"encoding/csv"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"iop/gateway/admin"
)

// valueCanary is a provider's secret that nothing may repeat.
const valueCanary = "sk-value-canary-77aa"

// vault is a site with a master key and a file with a value; it notes all that its commands print.
type vault struct {
	*site
	masterKey, value string // files
	printed          strings.Builder
}

// newVault makes a site, with an Edge that has the master key or without an Edge.
func newVault(t *testing.T, running bool) *vault {
	t.Helper()
	v := &vault{site: newSite(t)}
	v.masterKey, v.value = filepath.Join(v.dir, "master-key"), writeFile(t, "value", valueCanary+"\n")
	v.try(exitOK, "master-key", "create", v.masterKey)
	t.Setenv("IOP_EDGE_MASTER_KEY_FILE", v.masterKey)
	if running {
		v.startEdge()
	}
	t.Cleanup(func() {
		out := v.printed.String()
		if v.edge != nil {
			out += v.edge.output()
		}
		if strings.Contains(out, "value-canary") {
			t.Errorf("a value was printed:\n%s", out)
		}
	})
	return v
}

// try runs a command that must end with that status, and returns what it printed. A fault is one line.
func (v *vault) try(want int, args ...string) string {
	v.t.Helper()
	status, stdout, stderr := execute(v.t, args...)
	v.printed.WriteString(stdout + stderr)
	faults := 0
	for line := range strings.Lines(stderr) {
		if !strings.HasPrefix(line, "{") { // no line of a log
			faults++
		}
	}
	if status != want || want != exitOK && faults != 1 {
		v.t.Fatalf("iop %s: status %d, want %d: %s%s", strings.Join(args, " "), status, want, stdout, stderr)
	}
	return stdout + stderr
}

// inBothWays runs a test on the state and through an Edge.
func inBothWays(t *testing.T, test func(v *vault, running bool)) {
	t.Run("on the state", func(t *testing.T) { test(newVault(t, false), false) })
	t.Run("through the Edge", func(t *testing.T) { test(newVault(t, true), true) })
}

// TestSlotCommands: a slot's life, as an operator has it.
func TestSlotCommands(t *testing.T) {
	inBothWays(t, func(v *vault, running bool) {
		v.try(exitOK, "profile", "set", "openai", "--header", "authorization-bearer", "--base-url", "https://api.example.com/")
		if out := v.try(exitOK, "slot", "set", "main", "--profile", "openai", "--value-file", v.value); !strings.Contains(out, "main is set, revision ") || !strings.Contains(out, "done") {
			t.Errorf("set: %s", out)
		}
		var change admin.SlotChange
		v.ask(&change, "slot", "disable", "main")
		// Without an Edge nobody can tell the Nodes, and the answer does not pretend so.
		if want := map[bool]string{true: admin.Done, false: admin.Pending}[running]; change.State != want || change.Slot.Enabled || change.Note != admin.ReleasedNote ||
			(change.Until == nil) != running {
			t.Errorf("disabled %+v, %+v", change, change.Slot)
		}
		v.try(exitOK, "slot", "enable", "main")
		if out := v.try(exitOK, "slot", "revoke", "main", "--rotate"); !strings.Contains(out, "needs     rotation at the provider") || !strings.Contains(out, admin.ReleasedNote) {
			t.Errorf("revoke: %s", out)
		}
		if out := v.try(exitFailed, "slot", "rotate", "main", "--value-file", v.value); !strings.Contains(out, "the provider") {
			t.Errorf("the revoked value again: %s", out)
		}
		if out := v.try(exitOK, "slot", "list"); !strings.Contains(out, "revoked, rotate at the provider") {
			t.Errorf("list: %s", out)
		}
		v.try(exitOK, "slot", "rotate", "main", "--value-file", writeFile(t, "other", valueCanary+"2\r\n"))
		if out := v.try(exitOK, "slot", "show", "main"); !strings.Contains(out, "state     in use") {
			t.Errorf("show: %s", out)
		}
		if out := v.try(exitFailed, "profile", "delete", "openai"); !strings.Contains(out, "a slot uses the profile") {
			t.Errorf("a profile in use: %s", out)
		}
		v.try(exitOK, "slot", "delete", "main")
		v.try(exitFailed, "slot", "show", "main")
		v.try(exitOK, "profile", "delete", "openai")
		v.audited(t, map[bool]string{true: "admin", false: byCommand}[running])
	})
}

// audited looks at what TestSlotCommands has left in the audit.
func (v *vault) audited(t *testing.T, actor string) {
	t.Helper()
	var list listing[admin.AuditEntry]
	v.ask(&list, "audit", "--slot", "main", "--since", "1h")
	var actions []string
	for _, e := range list.Data {
		actions = append(actions, e.Action)
		if e.Actor != actor {
			t.Errorf("by %s, want %s", e.Actor, actor)
		}
	}
	if got, want := strings.Join(actions, " "), "slot_deleted slot_rotated slot_revoked slot_enabled slot_disabled slot_set"; got != want {
		t.Errorf("audit %q, want %q", got, want)
	}
	rows, err := csv.NewReader(strings.NewReader(v.must("audit", "--csv", "--limit", "0"))).ReadAll()
	if err != nil || len(rows) < 8 || strings.Join(rows[0], ",") != strings.Join(auditColumns, ",") {
		t.Errorf("%v: %q", err, rows)
	}
	if out := v.try(exitOK, "audit", "--limit", "2"); strings.Count(out, "\n") != 3 || !strings.Contains(out, "profile_deleted") {
		t.Errorf("audit --limit 2:\n%s", out)
	}
}

// TestValueComesFromStandardInput: as it was piped in, without one line break.
func TestValueComesFromStandardInput(t *testing.T) {
	v := newVault(t, false)
	v.try(exitOK, "profile", "set", "p", "--header", "api-key", "--base-url", "https://a.example.com")
	set := func(text string) (err error) {
		root := newRootCommand()
		root.SetArgs([]string{"slot", "set", "main", "--profile", "p"})
		root.SetIn(strings.NewReader(text))
		root.SetOut(&v.printed)
		root.SetErr(&v.printed)
		return root.ExecuteContext(t.Context())
	}
	if err := set(valueCanary + "\n"); err != nil {
		t.Errorf("a line: %v", err)
	}
	for name, text := range map[string]string{"two breaks": valueCanary + "\n\n", "nothing": "", "a break": "\n", "too long": strings.Repeat("x", 2049), "a space": valueCanary + " "} {
		if err := set(text); err == nil || strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := set(strings.Repeat("x", 2048) + "\r\n"); err != nil {
		t.Errorf("the longest: %v", err)
	}
}

// TestValueIsNoArgument: who gives it as one anyway is not answered with it.
func TestValueIsNoArgument(t *testing.T) {
	v := newVault(t, false)
	for _, args := range [][]string{
		{"slot", "set", "main", valueCanary, "--profile", "p"}, {"slot", "rotate", "main", valueCanary}, {"slot", "set", "main", "--profile", "p", "--value", valueCanary},
		{"slot", "rotate", "main", "-" + valueCanary}, {"slot", "rotate", "main", "--value=" + valueCanary}, {"slot", "revoke", "main", "--rotate=" + valueCanary},
		{"slot", "set"}, {"slot", "set", "main"}, {"slot", "set", "main", "--profile", "p", "--value-file", v.value + "x"},
	} {
		v.try(exitUsage, args...)
	}
}

// TestNoMasterKey: without one no value is sealed, and what stops a slot needs none.
func TestNoMasterKey(t *testing.T) {
	v := newVault(t, false)
	v.try(exitOK, "profile", "set", "p", "--header", "x-api-key", "--base-url", "https://a.example.com")
	v.try(exitOK, "slot", "set", "main", "--profile", "p", "--value-file", v.value)
	t.Setenv("IOP_EDGE_MASTER_KEY_FILE", "")
	if out := v.try(exitFailed, "slot", "set", "main", "--profile", "p", "--value-file", v.value); !strings.Contains(out, "--master-key-file") {
		t.Errorf("set: %s", out)
	}
	v.try(exitOK, "slot", "revoke", "main")
	if out := v.try(exitOK, "master-key", "list"); !strings.Contains(out, "unknown") {
		t.Errorf("list: %s", out)
	}
	v.startEdge()
	var warning struct{ Slots int }
	v.edge.object("does not hold their key", &warning)
	if warning.Slots != 1 {
		t.Errorf("the Edge warns of %d slots", warning.Slots)
	}
	if out := v.try(exitFailed, "slot", "rotate", "main", "--value-file", writeFile(t, "b", "b")); !strings.Contains(out, "IOP_EDGE_MASTER_KEY_FILE") {
		t.Errorf("rotate: %s", out)
	}
	loose := writeFile(t, "loose", "x")
	if err := os.Chmod(loose, 0o644); err != nil {
		t.Fatal(err)
	}
	v.try(exitUsage, "edge", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--master-key-file", loose)
}

// TestMasterKeyChange: a second key, read at SIGHUP or from the file, seals what the first one did.
func TestMasterKeyChange(t *testing.T) {
	inBothWays(t, func(v *vault, running bool) {
		v.try(exitOK, "profile", "set", "p", "--header", "x-api-key", "--base-url", "https://a.example.com")
		v.try(exitOK, "slot", "set", "main", "--profile", "p", "--value-file", v.value)
		v.try(exitFailed, "master-key", "create", v.masterKey)
		var added struct{ ID string }
		v.ask(&added, "master-key", "add", v.masterKey)
		if running {
			if out := v.try(exitFailed, "master-key", "rewrap"); !strings.Contains(out, "SIGHUP") {
				t.Errorf("an Edge that has not read the file: %s", out)
			}
			hangUp(t)
			eventually(t, "the Edge has read it", func() bool {
				return strings.Contains(v.must("master-key", "list"), added.ID+"  0")
			})
		}
		var done admin.Rewrapped
		v.ask(&done, "master-key", "rewrap")
		if done.Moved != 1 || string(done.MasterKey) != added.ID {
			t.Errorf("%+v, want one under %s", done, added.ID)
		}
		var keys listing[admin.MasterKey]
		v.ask(&keys, "master-key", "list")
		if len(keys.Data) != 2 || keys.Data[0].Slots+keys.Data[1].Slots != 1 {
			t.Errorf("%+v", keys.Data)
		}
		data, err := os.ReadFile(v.masterKey)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if line = strings.TrimSpace(line); len(line) > 20 && !strings.HasPrefix(line, "#") && strings.Contains(v.printed.String(), line) {
				t.Error("a master key was printed")
			}
		}
	})
}

// TestNodeListCommands: who may connect, who may not.
func TestNodeListCommands(t *testing.T) {
	inBothWays(t, func(v *vault, _ bool) {
		v.try(exitOK, "node-list", "allow", "gpu-3", "--slots", "openai*,b", "--profiles", "openai")
		v.try(exitOK, "node-list", "allow", "gpu-4")
		v.try(exitOK, "node-list", "deny", "gpu-5")
		v.try(exitOK, "node-list", "deny", "--serial", "0A:bc")
		out := v.try(exitOK, "node-list", "show")
		for _, want := range []string{"openai*,b", "certificate abc", "gpu-4", "denied"} {
			if !strings.Contains(out, want) {
				t.Errorf("%q is missing:\n%s", want, out)
			}
		}
		v.try(exitOK, "node-list", "disallow", "gpu-4")
		v.try(exitFailed, "node-list", "disallow", "gpu-4")
		v.try(exitOK, "node-list", "undeny", "--serial", "abc")
		v.try(exitOK, "node-list", "undeny", "gpu-5")
		var list admin.NodeList
		v.ask(&list, "node-list", "show")
		if len(list.Allowed) != 1 || len(list.Denied) != 0 || len(list.Allowed[0].Slots) != 2 {
			t.Errorf("%+v", list)
		}
		for _, args := range []string{"allow", "allow a --slots x", "deny", "deny a --serial 0a", "deny --serial xyz", "undeny a b"} {
			v.try(exitUsage, append([]string{"node-list"}, strings.Fields(args)...)...)
		}
	})
}

func TestWrongCredentialCommands(t *testing.T) {
	v := newVault(t, false)
	for _, args := range []string{
		"profile set p", "profile set p --header cookie --base-url https://a", "profile set p --header api-key",
		"audit --since -1h", "audit --since 1d --from 2026-01-01", "audit --from x", "audit --action eaten", "audit --limit -1", "audit --csv --json",
		"master-key create",
	} {
		v.try(exitUsage, strings.Fields(args)...)
	}
	v.try(exitOK, "node-list", "allow", "gpu-4") // makes the state
	v.try(exitFailed, "profile", "set", "p", "--header", "api-key", "--base-url", "ftp://a")
	v.try(exitFailed, "audit", "--state", "sqlite://"+filepath.Join(v.dir, "none", "iop.db"))
}

// TestValueInTheClear: who sends a value to another machine is told that the way there is not encrypted.
func TestValueInTheClear(t *testing.T) {
	v := newVault(t, false)
	t.Setenv("IOP_ADMIN_URL", "http://edge.invalid:8481")
	t.Setenv("IOP_ADMIN_TOKEN", "adm-iop_x")
	if _, _, stderr := execute(t, "slot", "rotate", "main", "--value-file", v.value); !strings.Contains(stderr, "edge.invalid:8481 without encryption") {
		t.Errorf("no warning: %q", stderr)
	}
	if _, _, stderr := execute(t, "slot", "disable", "main"); strings.Contains(stderr, "encryption") {
		t.Errorf("a warning without a value: %q", stderr)
	}
}
