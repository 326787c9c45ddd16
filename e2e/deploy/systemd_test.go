package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// units are the services, each with its drop-in for managed mode.
var units = []string{"edge", "node"}

// directives are the values of a unit's directive, in their order.
func directives(text, name string) (values []string) {
	for _, m := range regexp.MustCompile(`(?m)^`+name+`=(.*)$`).FindAllStringSubmatch(text, -1) {
		values = append(values, m[1])
	}
	return values
}

// installUnits lays the units out as /etc/systemd/system has them, with a program that exists.
func installUnits(t *testing.T, managed bool) string {
	t.Helper()
	dir := t.TempDir()
	for _, unit := range units {
		name := "iop-" + unit + ".service"
		writeFile(t, filepath.Join(dir, name), strings.ReplaceAll(readFile(t, deployDir, "systemd", name), "/usr/local/bin/iop", "/bin/true"))
		if !managed {
			continue
		}
		if err := os.Mkdir(filepath.Join(dir, name+".d"), 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, name+".d", "managed.conf"), readFile(t, deployDir, "systemd", "iop-"+unit+".managed.conf"))
	}
	return dir
}

// TestUnitsAreValid: systemd understands every line, in both modes, and finds little that the services could still do.
func TestUnitsAreValid(t *testing.T) {
	analyze := needs(t, "systemd-analyze")
	for _, managed := range []bool{false, true} {
		dir := installUnits(t, managed)
		for _, unit := range units {
			file := filepath.Join(dir, "iop-"+unit+".service")
			if out, err := tryCommand(nil, nil, "sh", "-c", `"$0" verify "$1" 2>&1`, analyze, file); err != nil || out != "" {
				t.Errorf("%s, managed %v: %v\n%s", unit, managed, err, out)
			}
			out := command(t, nil, analyze, "security", "--offline=true", "--no-pager", file)
			m := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`).FindStringSubmatch(out)
			if m == nil {
				t.Fatalf("no exposure level in:\n%s", out)
			}
			if level, err := strconv.ParseFloat(m[1], 64); err != nil || level >= 2 {
				t.Errorf("%s, managed %v: exposure %s, %v", unit, managed, m[1], err)
			}
		}
	}
}

// TestUnitsUseRealSettings: commands and variables in the units are the binary's.
func TestUnitsUseRealSettings(t *testing.T) {
	documented := readFile(t, docsDir, "configuration.md")
	for _, unit := range units {
		text := readFile(t, deployDir, "systemd", "iop-"+unit+".service")
		if start := directives(text, "ExecStart"); !slices.Equal(start, []string{"/usr/local/bin/iop " + unit}) {
			t.Errorf("%s starts %q", unit, start)
		}
		all := append(directives(text, "Environment"), directives(readFile(t, deployDir, "systemd", "iop-"+unit+".managed.conf"), "Environment")...)
		if len(all) < 4 {
			t.Errorf("%s has %d variables", unit, len(all))
		}
		for _, pair := range all {
			name, _, _ := strings.Cut(pair, "=")
			// A secret's form with a file is explained once; the master key's name ends so itself.
			plain := strings.TrimSuffix(name, "_FILE")
			if !strings.HasPrefix(name, "IOP_"+strings.ToUpper(unit)+"_") || !strings.Contains(documented, "`"+name+"`") && !strings.Contains(documented, "`"+plain+"`") {
				t.Errorf("%s: %s is no setting", unit, name)
			}
		}
	}
}

// TestUnitsStopInTime: systemd waits longer than the drain that it asked for takes.
func TestUnitsStopInTime(t *testing.T) {
	for _, unit := range units {
		text := readFile(t, deployDir, "systemd", "iop-"+unit+".service")
		stop, err := time.ParseDuration(strings.Join(directives(text, "TimeoutStopSec"), ""))
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`_DRAIN_TIMEOUT=(\S+)`).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("%s says nothing of its drain", unit)
		}
		if drain, err := time.ParseDuration(m[1]); err != nil || stop < drain+10*time.Second {
			t.Errorf("%s stops within %s and drains for %s, %v", unit, stop, drain, err)
		}
		if restart := directives(text, "Restart"); !slices.Equal(restart, []string{"always"}) {
			t.Errorf("%s: restart %q", unit, restart)
		}
	}
}

// systemCalls are those that a unit's SystemCallFilter lines leave.
func systemCalls(t *testing.T, unit string) []string {
	t.Helper()
	analyze := needs(t, "systemd-analyze")
	allowed := map[string]bool{}
	var add func(set string, allow bool)
	add = func(set string, allow bool) {
		lines := strings.Split(command(t, nil, analyze, "syscall-filter", "--no-pager", set), "\n")
		for _, line := range lines[1:] {
			switch name := strings.TrimSpace(line); {
			case name == "" || strings.HasPrefix(name, "#"):
			case strings.HasPrefix(name, "@"):
				add(name, allow)
			default:
				allowed[name] = allow
			}
		}
	}
	for _, line := range directives(readFile(t, deployDir, "systemd", "iop-"+unit+".service"), "SystemCallFilter") {
		denied, deny := strings.CutPrefix(line, "~")
		for set := range strings.FieldsSeq(denied) {
			add(set, !deny)
		}
	}
	add("@default", true) // always allowed
	var names []string
	for name, ok := range allowed {
		if ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// TestUnitsForbidWhatTheyNeverNeed: the filters were understood here as systemd understands them.
func TestUnitsForbidWhatTheyNeverNeed(t *testing.T) {
	for _, unit := range units {
		names := systemCalls(t, unit)
		for call, want := range map[string]bool{"read": true, "futex": true, "mount": false, "ptrace": false, "setuid": false, "setpriority": false} {
			if slices.Contains(names, call) != want {
				t.Errorf("%s may call %s: %v", unit, call, !want)
			}
		}
	}
}
