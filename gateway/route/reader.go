package route

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"iop/openai"
	"iop/state"
)

// reader turns YAML nodes into values and notes what is wrong with them. Its methods go on after a fault, so that one
// look at the file finds them all; what they return then is not used.
type reader struct {
	faults faultList
	names  map[string]*yaml.Node // of routes and their aliases, and where they stand
	// managed: targets may name slots.
	managed bool
}

func (r *reader) fault(n *yaml.Node, path, format string, args ...any) {
	r.faults.add(n.Line, n.Column, path, fmt.Sprintf(format, args...))
}

// field is a member that an object may have.
type field struct {
	name   string
	read   func(n *yaml.Node, path string)
	hidden bool // it is known only to be refused
}

// object reads a map whose members are fields.
func (r *reader) object(n *yaml.Node, path string, fields []field) {
	for _, m := range r.members(n, path) {
		at := join(path, m.name)
		f := find(fields, m.name)
		switch {
		case f == nil:
			r.fault(m.key, at, "unknown field; %s", suggest(m.name, visible(fields)))
		case isNull(m.value) && !f.hidden:
			r.fault(m.key, at, "the value is missing; give one, or remove the line")
		default:
			f.read(m.value, at)
		}
	}
}

func find(fields []field, name string) *field {
	for i := range fields {
		if fields[i].name == name {
			return &fields[i]
		}
	}
	return nil
}

func visible(fields []field) (names []string) {
	for _, f := range fields {
		if !f.hidden {
			names = append(names, f.name)
		}
	}
	return names
}

// member is one of a map's.
type member struct {
	name       string
	key, value *yaml.Node
}

// members returns the members of a map, each name once.
func (r *reader) members(n *yaml.Node, path string) (list []member) {
	if n.Kind != yaml.MappingNode {
		r.fault(n, path, "this must be a map (name: value), not %s", describe(n))
		return nil
	}
	lines := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" {
			r.fault(key, path, "a name must be a string, not %s", describe(key))
			continue
		}
		if line, twice := lines[key.Value]; twice {
			r.fault(key, join(path, key.Value), "this is already given, in line %d", line)
			continue
		}
		lines[key.Value] = key.Line
		list = append(list, member{key.Value, key, n.Content[i+1]})
	}
	return list
}

// join returns the path of a member.
func join(path, name string) string {
	if len(name) > 60 || strings.ContainsFunc(name, func(c rune) bool { return !unicode.IsPrint(c) || c == ' ' || c == '.' }) {
		name = "[" + excerpt(name) + "]"
	} else if path != "" {
		name = "." + name
	}
	return path + name
}

// list returns the elements of a list that must have some; empty says what an empty one should be instead.
func (r *reader) list(n *yaml.Node, path, empty string) []*yaml.Node {
	if n.Kind != yaml.SequenceNode {
		r.fault(n, path, "this must be a list ([a, b], or lines that begin with '- '), not %s", describe(n))
		return nil
	}
	if len(n.Content) == 0 && empty != "" {
		r.fault(n, path, "the list is empty; %s", empty)
	}
	return n.Content
}

func element(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// text reads a string. A number is none: whether 1.10 is "1.1" should not be for us to say.
func (r *reader) text(n *yaml.Node, path string) (string, bool) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" {
		return n.Value, true
	}
	if n.Kind == yaml.ScalarNode && !isNull(n) {
		r.fault(n, path, "this must be a string, not %s; put it in quotes", describe(n))
	} else {
		r.fault(n, path, "this must be a string, not %s", describe(n))
	}
	return "", false
}

func (r *reader) boolean(n *yaml.Node, path string) (v bool) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" || n.Decode(&v) != nil {
		r.fault(n, path, "this must be true or false, not %s", describe(n))
	}
	return v
}

// integer reads a whole number in a range.
func (r *reader) integer(n *yaml.Node, path string, least, most int) int {
	v, ok := asNumber(n)
	if !ok || v != math.Trunc(v) || v < float64(least) || v > float64(most) {
		r.fault(n, path, "this must be a whole number from %d to %d, not %s", least, most, describe(n))
		return least
	}
	return int(v)
}

// asNumber returns a number's value; ok is false for what is none, or not finite.
func asNumber(n *yaml.Node) (v float64, ok bool) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" && n.ShortTag() != "!!float" || n.Decode(&v) != nil {
		return 0, false
	}
	return v, !math.IsNaN(v) && !math.IsInf(v, 0)
}

// maxDuration bounds every duration.
const maxDuration = 24 * time.Hour

func (r *reader) duration(n *yaml.Node, path string) time.Duration {
	if n.Kind == yaml.ScalarNode && (n.ShortTag() == "!!str" || n.Value == "0") {
		if d, err := time.ParseDuration(n.Value); err == nil && d >= 0 && d <= maxDuration {
			return d
		}
	}
	r.fault(n, path, "this must be a duration with a unit, such as 500ms, 30s or 5m, from 0s to 24h, not %s", describe(n))
	return 0
}

// oneOf reads one of a closed set of names and returns its index.
func (r *reader) oneOf(n *yaml.Node, path string, names []string) int {
	got, ok := r.text(n, path)
	if !ok {
		return 0
	}
	for i, name := range names {
		if got == name {
			return i
		}
	}
	r.fault(n, path, "%s is unknown; %s", excerpt(got), suggest(got, names))
	return 0
}

// glob reads a pattern.
func (r *reader) glob(n *yaml.Node, path string) string {
	pattern, ok := r.text(n, path)
	if !ok {
		return ""
	}
	if err := state.CheckGlob(pattern); err != nil {
		r.fault(n, path, "%v", err)
	}
	return pattern
}

// modelName reads a model's name, as clients or providers write it.
func (r *reader) modelName(n *yaml.Node, path string) (string, bool) {
	name, ok := r.text(n, path)
	if !ok {
		return "", false
	}
	fault := ""
	switch {
	case name == "" || len(name) > openai.MaxModelLength:
		fault = fmt.Sprintf("a model's name must be 1 to %d bytes long", openai.MaxModelLength)
	case strings.ContainsFunc(name, func(c rune) bool { return !unicode.IsPrint(c) || c == utf8.RuneError }):
		fault = "a model's name must contain only printable characters"
	case name[0] == ' ' || name[len(name)-1] == ' ':
		fault = "a model's name must not begin or end with a space"
	case strings.Contains(name, "*"):
		fault = "this must be one model's name, not a pattern"
	}
	if fault != "" {
		r.fault(n, path, "%s", fault)
	}
	return name, fault == ""
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// describe says what stands at a node, for a message.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!str":
		return "the string " + excerpt(n.Value)
	case "!!null":
		return "nothing"
	case "!!merge":
		return "a merge key (<<)"
	}
	return strings.Trim(excerpt(n.Value), `"`)
}
