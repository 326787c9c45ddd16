package openai

import (
	"bytes"
	"slices"

	"iop/execution"
)

const (
	// maxUsageValue bounds a value of an answer's usage, in bytes: those of engines have a few hundred.
	maxUsageValue = 8 << 10
	// maxUsageName is the longest name of a member that holds usage.
	maxUsageName = len("prompt_eval_count")
)

// UsageObserver reads usage from a unary JSON answer as it passes: the object usage of the root, or Ollama's counts
// there, wherever they stand. It follows brackets and strings through the whole answer, as a search for the name would
// find what the request made a provider repeat. Of a list of answers, which llama.cpp writes for a list of prompts, it is
// the sum. It keeps the counts' own bytes only. The zero value is ready. It is for one answer and one goroutine.
type UsageObserver struct {
	// Where in the answer the next byte stands.
	depth     int  // open brackets
	base      int  // depth of an answer's members; 0 before the first bracket
	over      bool // behind the last bracket, or it is no JSON
	inString  bool
	escape    bool // the next byte of the string is escaped
	wantsName bool // a string here is a member's name

	// The member that it stands in, at the base.
	naming bool // in its name
	name   [maxUsageName + 1]byte
	length int // of the name, at most one more than the longest of use
	taking bool
	value  []byte // as far as it came, with taking

	usage  execution.Usage // of this answer: of its object usage
	native execution.Usage // of Ollama's counts
	total  execution.Usage // of the answers before it, in a list
}

// Write takes the next bytes of the answer. It never fails.
func (o *UsageObserver) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0 && !o.over; {
		n := 0
		if o.inString {
			n = o.text(rest)
		} else {
			n = o.sign(rest)
		}
		rest = rest[n:]
	}
	return len(p), nil
}

// Usage returns what the answer reported. Call it after the last Write.
func (o *UsageObserver) Usage() execution.Usage {
	o.endAnswer()
	return o.total
}

// text reads within a string, up to its closing quote, and returns how much that was.
func (o *UsageObserver) text(p []byte) int {
	n := 0
	for n < len(p) {
		if o.escape {
			o.escape = false
			n++
			continue
		}
		rest := p[n:]
		quote := bytes.IndexByte(rest, '"')
		if quote >= 0 {
			rest = rest[:quote]
		}
		if slash := bytes.IndexByte(rest, '\\'); slash >= 0 {
			o.escape = true
			n += slash + 1
			continue
		}
		n += len(rest)
		if quote >= 0 {
			o.inString = false
			n++
			break
		}
	}
	switch {
	case o.naming:
		end := n
		if !o.inString {
			end--
		}
		o.length += copy(o.name[o.length:], p[:end])
		o.naming = o.inString
	case o.taking:
		o.take(p[:n])
	}
	return n
}

// signs are the bytes outside of strings that move the observer; within values of the root only brackets and quotes do.
var signs = [256]bool{'"': true, '{': true, '}': true, '[': true, ']': true}

// sign reads outside of strings, up to the next byte that matters, and returns how much that was.
func (o *UsageObserver) sign(p []byte) int {
	n := 0
	if o.depth > o.base && !o.taking {
		for n < len(p) && !signs[p[n]] {
			n++
		}
		if n == len(p) {
			return n
		}
	}
	c := p[n]
	n++
	switch c {
	case '{', '[':
		o.open(c)
	case '}', ']':
		o.close()
	case '"':
		o.inString = true
		if o.naming = o.wantsName && o.depth == o.base; o.naming {
			o.length = 0
		}
	case ',':
		if o.depth == o.base {
			o.endMember()
			o.wantsName = true
			return n
		}
	case ':':
		if o.depth == o.base && o.wantsName {
			o.wantsName = false
			o.taking, o.value = o.isUsage(), o.value[:0]
			return n
		}
	case ' ', '\t', '\r', '\n':
		return n
	default:
		o.over = o.depth == 0
	}
	if o.taking {
		o.take(p[n-1 : n])
	}
	return n
}

func (o *UsageObserver) open(c byte) {
	o.depth++
	switch {
	case o.depth == 1 && c == '[':
		o.base = 2
	case o.depth == 1:
		o.base = 1
	}
	o.wantsName = o.wantsName || o.depth == o.base
}

func (o *UsageObserver) close() {
	if o.depth == o.base {
		o.endMember()
		o.endAnswer()
		o.wantsName = false
	}
	o.depth--
	o.over = o.depth <= 0
}

func (o *UsageObserver) isUsage() bool {
	switch string(o.name[:o.length]) {
	case "usage", "prompt_eval_count", "eval_count":
		return true
	}
	return false
}

func (o *UsageObserver) take(p []byte) {
	if len(o.value)+len(p) > maxUsageValue {
		o.taking = false
		return
	}
	o.value = append(o.value, p...)
}

// endMember reads the value that was taken.
func (o *UsageObserver) endMember() {
	if !o.taking {
		return
	}
	o.taking = false
	if name := o.name[:o.length]; string(name) == "usage" {
		if is(o.value, '{') && wellFormed(o.value) {
			o.usage = parseUsage(o.value)
		}
	} else {
		o.native = mergeUsage(o.native, slices.Concat([]byte(`{"`), name, []byte(`":`), o.value, []byte(`}`)))
	}
}

// endAnswer adds an answer to the total.
func (o *UsageObserver) endAnswer() {
	u := o.usage
	if !u.Known {
		u = o.native
	}
	o.usage, o.native = execution.Usage{}, execution.Usage{}
	if !u.Known {
		return
	}
	t := &o.total
	t.Known = true
	t.Input, t.Output = addCounts(t.Input, u.Input), addCounts(t.Output, u.Output)
	t.Cached, t.Reasoning = addCounts(t.Cached, u.Cached), addCounts(t.Reasoning, u.Reasoning)
}
