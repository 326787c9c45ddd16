package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// event is a line of `go test -json`; see `go doc test2json`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build-output and build-fail
	Test       string
	Elapsed    float64
	Output     string
}

// name is how a test is called in the report.
func (e event) name() string {
	if e.Test == "" {
		return e.Package
	}
	return e.Package + " " + e.Test
}

// reader turns events into a report: a line per package, the whole output of what failed, nothing of what passed.
type reader struct {
	w      io.Writer
	output map[string][]string // by test, until it has ended
	failed map[string]bool     // packages with a failed test
	result result
}

// read copies lines that are no events as they are: they come from the go command itself.
func read(in io.Reader, w io.Writer, path string) (ok bool, err error) {
	r := &reader{w: w, output: map[string][]string{}, failed: map[string]bool{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			r.line(line)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return false, err
		}
	}
	if r.result.Passed == 0 && len(r.result.Failed) == 0 {
		r.result.Failed = append(r.result.Failed, "a run without any test")
	}
	return len(r.result.Failed) == 0, r.result.save(path)
}

func (r *reader) line(line []byte) {
	var e event
	if line[0] != '{' || json.Unmarshal(line, &e) != nil || e.Action == "" {
		fmt.Fprintf(r.w, "%s", line)
		return
	}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.w, e.Output)
	case "output":
		r.output[e.name()] = append(r.output[e.name()], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.packageEnded(e)
		} else {
			r.testEnded(e)
		}
	}
}

func (r *reader) testEnded(e event) {
	output := r.output[e.name()]
	delete(r.output, e.name())
	switch e.Action {
	case "pass":
		r.result.Passed++
	case "skip":
		r.result.Skipped = append(r.result.Skipped, skipped{Test: e.name(), Reason: skipReason(output)})
	case "fail":
		r.failed[e.Package] = true
		r.result.Failed = append(r.result.Failed, e.name())
		fmt.Fprintf(r.w, "%s\n", strings.Join(output, ""))
	}
}

// packageEnded counts a package as failed only where none of its tests did: it did not build, or it panicked, or its
// goroutines leaked. A test that was still running then has no end of its own, so its output belongs to the package.
func (r *reader) packageEnded(e event) {
	if e.Action == "fail" {
		for name, output := range r.output {
			if strings.HasPrefix(name, e.Package+" ") {
				fmt.Fprint(r.w, strings.Join(output, ""))
				delete(r.output, name)
			}
		}
		fmt.Fprint(r.w, strings.Join(r.output[e.Package], ""))
		if !r.failed[e.Package] {
			r.result.Failed = append(r.result.Failed, e.Package)
		}
	}
	delete(r.output, e.Package)
	if e.Action != "skip" { // a package without tests
		fmt.Fprintf(r.w, "%-5s %s (%.1fs)\n", map[string]string{"pass": "ok", "fail": "FAIL"}[e.Action], e.Package, e.Elapsed)
	}
}

// skipReason is what the test said last before it was skipped: "file.go:12: why".
func skipReason(output []string) string {
	reason := ""
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "===") || strings.HasPrefix(line, "---") {
			continue
		}
		reason = line
	}
	_, why, ok := strings.Cut(reason, ": ")
	if ok {
		return why
	}
	return reason
}
