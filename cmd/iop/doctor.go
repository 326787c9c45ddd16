package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"time"

	"github.com/spf13/cobra"
)

// verdict is how a check of `iop doctor` went.
type verdict string

// The verdicts.
const (
	verdictOK      verdict = "ok"
	verdictWarning verdict = "warning" // it works, and something should be seen to
	verdictFailed  verdict = "failed"  // it does not work so
)

// checkup is one line of `iop doctor`. It holds no secret.
type checkup struct {
	Check  string  `json:"check"`
	Result verdict `json:"result"`
	Found  string  `json:"found"`
	Do     string  `json:"do,omitempty"` // the next step; empty with ok
}

// diagnosis is what `iop doctor --json` prints.
type diagnosis struct {
	Checks   []checkup `json:"checks"`
	Warnings int       `json:"warnings"`
	Failed   int       `json:"failed"`
}

// doctor makes checks and notes what they find. It belongs to one goroutine.
type doctor struct {
	diagnosis
	show func(checkup) // called with each, as it comes
	root *cobra.Command
}

func (d *doctor) note(c checkup) {
	c.Found = onTerminal(c.Found)
	c.Do = onTerminal(c.Do)
	switch c.Result {
	case verdictWarning:
		d.Warnings++
	case verdictFailed:
		d.Failed++
	}
	d.Checks = append(d.Checks, c)
	d.show(c)
}

func (d *doctor) ok(check, format string, args ...any) {
	d.note(checkup{check, verdictOK, fmt.Sprintf(format, args...), ""})
}

// warn and fail take the next step before what was found.
func (d *doctor) warn(check, do, format string, args ...any) {
	d.note(checkup{check, verdictWarning, fmt.Sprintf(format, args...), do})
}

func (d *doctor) fail(check, do, format string, args ...any) {
	d.note(checkup{check, verdictFailed, fmt.Sprintf(format, args...), do})
}

func newDoctorCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "doctor",
		Short: "Find problems that would keep an Edge or a Node from working, and suggest fixes",
		Long: `Find problems that would keep an Edge or a Node from working, and suggest fixes.

It takes the flags and variables of "iop edge" or "iop node", so it is run where
they run and as they are started. Nothing needs to run, nothing is made, changed
or brought up to date. Each line says ok, warning or failed; where one failed,
the exit status is 1.`,
		Example: "  iop doctor edge\n  iop doctor node --edge wss://edge.example.org/tunnel/v1 --join-token-file token",
	}, newDoctorEdgeCommand(), newDoctorNodeCommand())
}

// doctorCommand completes cmd: examine makes the checks.
func doctorCommand(cmd *cobra.Command, examine func(context.Context, *doctor)) *cobra.Command {
	var asJSON bool
	jsonFlag(cmd, &asJSON)
	cmd.Args = exactly()
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		out := cmd.OutOrStdout()
		d := &doctor{root: cmd.Root(), show: func(c checkup) {
			if !asJSON {
				printCheckup(out, c)
			}
		}}
		d.Checks = []checkup{}
		show := d.show
		stop := onlyOnTerminal(cmd.ErrOrStderr(), "still looking")
		d.show = func(c checkup) { // a line of progress makes way for each that is found
			stop()
			show(c)
			stop = onlyOnTerminal(cmd.ErrOrStderr(), "still looking")
		}
		examine(cmd.Context(), d)
		stop()
		if err := d.finish(out, asJSON); err != nil {
			return err
		}
		if d.Failed > 0 {
			return errTold
		}
		return nil
	}
	return cmd
}

func (d *doctor) finish(w io.Writer, asJSON bool) error {
	if asJSON {
		return printJSON(w, d.diagnosis)
	}
	_, err := fmt.Fprintf(w, "\n%s, %s, %d failed\n", counted(len(d.Checks), "check"), counted(d.Warnings, "warning"), d.Failed)
	return err
}

func printCheckup(w io.Writer, c checkup) {
	fmt.Fprintf(w, "%-8s %-14s %s\n", c.Result, c.Check, c.Found)
	if c.Do != "" {
		fmt.Fprintf(w, "%-8s %-14s -> %s\n", "", "", c.Do)
	}
}

// settingsLoaded notes how the settings of the command fared, and which variables nobody reads.
func (d *doctor) settingsLoaded(err error) {
	if err != nil {
		d.fail("settings", "set it as the message says; docs/configuration.md lists all settings", "%s", err)
	} else {
		d.ok("settings", "all values are valid")
	}
	for _, s := range strays(d.root, os.Environ()) {
		d.warn("settings", "correct the name, or unset it", "%s", s)
	}
}

// privateFile notes whether nobody but its owner can read a file with a secret. It reports whether the file can be used.
func (d *doctor) privateFile(check, path string) bool {
	info, err := os.Stat(path)
	if err == nil {
		var file *os.File
		if file, err = os.Open(path); err == nil {
			file.Close()
		}
	}
	switch {
	case err != nil:
		d.fail(check, "name a file that this user can read", "can't read %s: %s", path, pathFault(err))
		return false
	case !info.Mode().IsRegular():
		d.fail(check, "name a file", "%s is not a regular file", path)
		return false
	case opened(info.Mode(), 0o077):
		d.warn(check, "chmod 600 "+path, "%s has mode %#o: others can read the secret in it", path, info.Mode().Perm())
		return true
	}
	d.ok(check, "%s is readable only by its owner", path)
	return true
}

// opened reports whether a mode lets others do what it should not.
func opened(mode fs.FileMode, bits fs.FileMode) bool {
	return runtime.GOOS != "windows" && mode.Perm()&bits != 0
}

// Bounds of what is near enough to its end to be told.
const (
	soonExpired     = 14 * day
	soonIdentityEnd = 0.2 // of a certificate's life
)

// remains notes how long a certificate is still valid.
func (d *doctor) remains(check, what string, begin, end time.Time) {
	now := time.Now()
	left := end.Sub(now)
	switch {
	case now.Before(begin):
		d.fail(check, "correct this machine's clock, or wait", "%s is not valid before %s", what, begin.UTC().Format(time.RFC3339))
	case left <= 0:
		d.fail(check, "renew it", "%s expired %s ago, at %s", what, brief(-left), end.UTC().Format(time.RFC3339))
	case left < soonExpired && left < time.Duration(soonIdentityEnd*float64(end.Sub(begin))):
		d.warn(check, "renew it before then", "%s expires in %s", what, brief(left))
	default:
		d.ok(check, "%s is valid for %s", what, brief(left))
	}
}
