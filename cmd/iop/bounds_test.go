package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestSettingsAreBounded gives every number and duration that is a setting of any command values that no Edge, Node or
// simulator could work with: each is refused with the bounds. A setting without bounds ends the binary at once.
func TestSettingsAreBounded(t *testing.T) {
	extremes := map[string][]string{
		"duration": {"-1ns", "-24h", "876001h", "2562047h47m16s", "99999999999h", "5", "soon"},
		"int":      {"-1", "-9223372036854775808", "9223372036854775807", "99999999999999999999", "1.5", "1e3"},
		"number":   {"-0.001", "-Inf", "+Inf", "NaN", "1e300", "1e999"},
	}
	found := 0
	walk(newRootCommand(), func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			values, bounded := extremes[f.Value.Type()]
			if f.Annotations[helpAnnotation] == nil || !bounded {
				return
			}
			found++
			args := strings.Fields(cmd.CommandPath())[1:]
			for _, value := range values {
				status, stdout, stderr := execute(t, append(args, "--"+f.Name+"="+value)...)
				if args[0] == "doctor" && status == exitFailed { // it tells all faults of the settings as findings
					status, stderr = exitUsage, stdout
				}
				if status != exitUsage || !strings.Contains(stderr, "--"+f.Name+")") || !strings.Contains(stderr, ", from ") && !strings.Contains(stderr, "must be from ") {
					t.Errorf("iop %s --%s=%s: status %d, %s", strings.Join(args, " "), f.Name, value, status, stderr)
				}
			}
		})
	})
	if found < 20 {
		t.Errorf("only %d settings", found)
	}
}

func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, c := range cmd.Commands() {
		walk(c, visit)
	}
}

// The bounds themselves are right values, and what lies just beyond is not.
func TestBoundsAreInclusive(t *testing.T) {
	for flags, want := range map[string]string{
		"--total-timeout=1ms": "", "--total-timeout=24h": "", "--total-timeout=999us": "--total-timeout", "--total-timeout=0s": "--total-timeout",
		"--total-timeout=24h0m1s": "from 1ms to 24h", "--total-timeout=1194h": "from 1ms to 24h", // 49.75 days
		"--usage-retention=36500d": "", "--usage-retention=36501d": "--usage-retention", "--usage-retention=0d": "",
		"--queue-limit=0": "", "--queue-limit=1000001": "--queue-limit", "--max-body=0": "--max-body",
		"--max-body=1024 --body-budget=1023": "--body-budget",
	} {
		config := newEdgeSettings()
		cmd := &cobra.Command{}
		s := bindSettings(cmd, edgePrefix, &config, nil)
		if err := cmd.ParseFlags(strings.Fields(flags)); err != nil {
			t.Fatal(err)
		}
		err := config.load(s)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", flags, err, want)
		}
	}
	if config := newEdgeSettings(); config.TotalTimeout > 24*time.Hour {
		t.Error("the default is out of bounds")
	}
}
