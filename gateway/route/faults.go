package route

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"iop/gateway/spelling"
)

// maxFaults is how many faults of a file are told: who has more begins with these.
const maxFaults = 20

// maxKept bounds what is collected before the first are picked.
const maxKept = 500

// Fault is one thing that is wrong in a file.
type Fault struct {
	File         string
	Line, Column int    // from 1; both 0 for a fault of the whole file, Column alone where the text is no YAML
	Path         string // such as routes[1].policy, or empty
	Message      string // what is wrong, and what would be right
}

// String returns the fault as editors and terminals understand it: "iop.yaml:12:5: routes[1].policy: ...".
func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d", f.Line)
	}
	if f.Column > 0 {
		fmt.Fprintf(&b, ":%d", f.Column)
	}
	b.WriteString(": ")
	if f.Path != "" {
		b.WriteString(f.Path + ": ")
	}
	b.WriteString(f.Message)
	return b.String()
}

// ConfigError is why a file makes no Table: its first faults, in the file's order.
type ConfigError struct {
	Faults []Fault // at least one
	More   int     // how many others there are
}

// Error returns a line per fault.
func (e *ConfigError) Error() string {
	lines := make([]string, 0, len(e.Faults)+1)
	for _, f := range e.Faults {
		lines = append(lines, f.String())
	}
	if e.More > 0 {
		lines = append(lines, fmt.Sprintf("%s: and %d more", e.Faults[0].File, e.More))
	}
	return strings.Join(lines, "\n")
}

// faultList collects the faults of one file.
type faultList struct {
	file  string
	list  []Fault
	total int
}

func (l *faultList) add(line, column int, path, message string) {
	if l.total++; len(l.list) < maxKept {
		l.list = append(l.list, Fault{l.file, line, column, path, message})
	}
}

// err returns a *ConfigError, or nil when there are no faults.
func (l *faultList) err() error {
	if l.total == 0 {
		return nil
	}
	slices.SortStableFunc(l.list, func(a, b Fault) int {
		return cmp.Or(a.Line-b.Line, a.Column-b.Column)
	})
	kept := l.list[:min(len(l.list), maxFaults)]
	return &ConfigError{Faults: slices.Clip(kept), More: l.total - len(kept)}
}

// suggest ends a message about a name that is none of those that may stand there: the nearest, or all of them.
func suggest(got string, names []string) string {
	if best := spelling.Nearest(got, names); best != "" {
		return fmt.Sprintf("did you mean %s?", best)
	}
	if len(names) == 1 {
		return "allowed: " + names[0]
	}
	return "allowed: " + strings.Join(names, ", ")
}

// excerpt makes a value of the file fit to stand in a message.
func excerpt(s string) string {
	const limit = 60
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "..."
	}
	return fmt.Sprintf("%q", s)
}
