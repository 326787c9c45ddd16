// Command testcount makes test runs readable and counts them.
//
//	go test -json ... | testcount read RESULT   print what a person wants to see, keep the counts in RESULT
//	testcount check RESULT NAME COMMAND...      run a command that counts as one test (status 77: skipped)
//	testcount sum SUMMARY RESULT...             print what failed or was skipped, and "N passed, N failed" last
//
// read and check exit with status 1 when something failed; sum also when nothing passed, and when a test was skipped
// without a word of why.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

func main() {
	ok, err := dispatch(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "testcount:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

func dispatch(args []string) (ok bool, err error) {
	switch {
	case len(args) == 2 && args[0] == "read":
		return read(os.Stdin, os.Stdout, args[1])
	case len(args) >= 4 && args[0] == "check":
		return check(args[1], args[2], args[3:])
	case len(args) >= 3 && args[0] == "sum":
		return sum(os.Stdout, args[1], args[2:])
	}
	return false, errors.New("wrong use: it is testcount read RESULT, or check RESULT NAME COMMAND, or sum SUMMARY RESULTS")
}

// result is what one run came to. A test is named "package Test/sub".
type result struct {
	Passed  int       `json:"passed"`
	Failed  []string  `json:"failed"`
	Skipped []skipped `json:"skipped"`
}

type skipped struct {
	Test   string `json:"test"`
	Reason string `json:"reason"`
}

func (r result) save(path string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

func load(path string) (r result, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(data, &r)
}

// exitSkipped is how a command says that it could not be run here; its last line says why.
const exitSkipped = 77

// check runs a command as one test. Its output is shown when it fails, or when it has something to say.
func check(path, name string, command []string) (ok bool, err error) {
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == exitSkipped {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		reason := lines[len(lines)-1]
		fmt.Printf("skip  %s: %s\n", name, reason)
		return true, result{Skipped: []skipped{{name, reason}}}.save(path)
	}
	if err != nil {
		fmt.Printf("FAIL  %s: %v\n%s", name, err, out)
		return false, result{Failed: []string{name}}.save(path)
	}
	fmt.Printf("ok    %s\n%s", name, out)
	return true, result{Passed: 1}.save(path)
}

// sum prints the whole and keeps its last line in summary.
func sum(w io.Writer, summary string, paths []string) (ok bool, err error) {
	var total result
	for _, path := range paths {
		r, err := load(path)
		if err != nil {
			total.Failed = append(total.Failed, fmt.Sprintf("no result of a run: %v", err))
			continue
		}
		total.Passed += r.Passed
		total.Failed = append(total.Failed, r.Failed...)
		total.Skipped = append(total.Skipped, r.Skipped...)
	}
	for _, s := range total.Skipped {
		if s.Reason == "" {
			total.Failed = append(total.Failed, s.Test+" (skipped without saying why)")
			continue
		}
		fmt.Fprintf(w, "skipped: %s: %s\n", s.Test, s.Reason)
	}
	for _, name := range total.Failed {
		fmt.Fprintf(w, "failed: %s\n", name)
	}
	line := fmt.Sprintf("%d passed, %d failed", total.Passed, len(total.Failed))
	if len(total.Skipped) > 0 {
		line += fmt.Sprintf(", %d skipped", len(total.Skipped))
	}
	fmt.Fprintln(w, line)
	return len(total.Failed) == 0 && total.Passed > 0, os.WriteFile(summary, []byte(line+"\n"), 0o644)
}
