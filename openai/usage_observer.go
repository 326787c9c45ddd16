package openai

import (
	"bytes"

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

	// Of this answer's list of choices, from which what llama.cpp leaves out is estimated.
	choices choiceSizes
	timings bool // the answer has them: it is llama.cpp's

	usage  execution.Usage // of this answer: of its object usage
	native execution.Usage // of Ollama's counts
	total  execution.Usage // of the answers before it, in a list
}

// choiceSizes are the bytes of the choices of an answer.
type choiceSizes struct {
	inside     bool // what passes is the value of choices
	count      int64
	first, all int64
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
		o.choices.pass(int64(n))
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
			o.beginValue()
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
	if o.choices.inside && o.depth == o.base+2 {
		o.choices.count++
	}
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

func (o *UsageObserver) beginValue() {
	o.taking, o.value = false, o.value[:0]
	switch string(o.name[:o.length]) {
	case "usage", "prompt_eval_count", "eval_count":
		o.taking = true
	case "choices":
		o.choices = choiceSizes{inside: true}
	case "timings":
		o.timings = true
	}
}

func (c *choiceSizes) pass(n int64) {
	if !c.inside {
		return
	}
	if c.all += n; c.count <= 1 {
		c.first += n
	}
}

const (
	// choiceFrame is about how many bytes of a choice are no text.
	choiceFrame = 200
	// tokenBytes is how many bytes of text count as a token.
	tokenBytes = 4
)

// others is about how many tokens the choices behind the first are, of which that is tokens long: as many bytes a token as
// there, where it is long or has log probabilities, else those of text.
func (c *choiceSizes) others(tokens int64) int64 {
	each := max(tokenBytes, (c.first-choiceFrame)/max(tokens, 1))
	return max(c.count-1, (c.all-c.first)/each)
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
	o.choices.inside = false
	if !o.taking {
		return
	}
	o.taking = false
	if name := o.name[:o.length]; string(name) == "usage" {
		if is(o.value, '{') && wellFormed(o.value) {
			o.usage = parseUsage(o.value)
		}
	} else {
		o.native = mergeCount(o.native, name, o.value)
	}
}

// endAnswer adds an answer to the total.
func (o *UsageObserver) endAnswer() {
	u := o.usage
	if !u.Known {
		u = o.native
	}
	if u.Known && o.timings && o.choices.count > 1 { // llama.cpp reports the first of several choices alone
		u.Output, u.Estimated = addCounts(u.Output, o.choices.others(u.Output)), true
	}
	o.usage, o.native, o.choices, o.timings = execution.Usage{}, execution.Usage{}, choiceSizes{}, false
	if !u.Known {
		return
	}
	t := &o.total
	t.Known, t.Estimated = true, t.Estimated || u.Estimated
	t.Input, t.Output = addCounts(t.Input, u.Input), addCounts(t.Output, u.Output)
	t.Cached, t.Reasoning = addCounts(t.Cached, u.Cached), addCounts(t.Reasoning, u.Reasoning)
}
