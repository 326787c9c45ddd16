package openai

import (
	"bytes"

	"iop/execution"
)

// tailMembers walks the members of one object backwards, from the end of a JSON text of which the beginning may be missing.
// Brackets are counted from the end: what a request made its provider repeat stands deeper, or in a string.
type tailMembers struct {
	b     []byte
	i     int // where the next step backwards begins
	depth int // open brackets
	want  int // the depth of the members
	end   int // of the value that comes next
	val   []byte
	key   []byte
}

// next goes to the member before. It returns false at the object's beginning, at that of the text, and at a fault.
func (t *tailMembers) next() bool {
	for t.i > 0 {
		t.i--
		switch t.b[t.i] {
		case '"':
			if t.i = t.opening(); t.i < 0 {
				return false
			}
		case '}', ']':
			if t.depth++; t.depth == t.want {
				t.end = t.i
			}
		case '{', '[':
			if t.depth--; t.depth < 1 {
				return false
			}
		case ',':
			if t.depth == t.want {
				t.end = t.i
			}
		case ':':
			if t.depth == t.want {
				return t.take()
			}
		}
	}
	return false
}

// take takes the value behind the colon at i, and the name before it.
func (t *tailMembers) take() bool {
	t.val = bytes.TrimSpace(t.b[t.i+1 : t.end])
	name := bytes.TrimRight(t.b[:t.i], " \t\r\n")
	if t.i = len(name) - 1; t.i < 0 || name[t.i] != '"' {
		return false
	}
	end := t.i
	if t.i = t.opening(); t.i < 0 {
		return false
	}
	t.key = t.b[t.i+1 : end]
	return true
}

// opening returns where the string begins whose closing quote is at i, -1 if that is not there for certain.
func (t *tailMembers) opening() int {
	for i := t.i; ; {
		if i = bytes.LastIndexByte(t.b[:i], '"'); i < 0 {
			return -1
		}
		slashes := 0
		for slashes < i && t.b[i-1-slashes] == '\\' {
			slashes++
		}
		switch {
		case slashes == i:
			return -1
		case slashes%2 == 0:
			return i
		}
	}
}

// tailUsage merges what the end of an event's data says of usage into u: the member usage at that depth, or for Ollama its counts.
func tailUsage(u execution.Usage, data []byte, kind StreamKind) execution.Usage {
	t := tailMembers{b: data, i: len(data), want: 1}
	if kind == StreamResponses {
		t.want = 2 // in the response
	}
	for t.next() {
		switch string(t.key) {
		case "usage":
			if is(t.val, '{') && wellFormed(t.val) {
				return mergeUsage(u, t.val)
			}
		case "prompt_eval_count", "eval_count":
			if kind == StreamOllama && wellFormed(t.val) {
				u = mergeCount(u, t.key, t.val)
			}
		}
	}
	return u
}

// lastData is the end of an event without the lines behind its data.
func lastData(ev []byte) []byte {
	for {
		ev = bytes.TrimRight(ev, "\r\n")
		i := bytes.LastIndexAny(ev, "\r\n")
		if i < 0 || bytes.HasPrefix(ev[i+1:], []byte("data:")) {
			return ev
		}
		ev = ev[:i]
	}
}
