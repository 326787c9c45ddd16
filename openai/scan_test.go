package openai

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// TestScanStrings puts every byte at every offset that the eight-byte steps see differently.
func TestScanStrings(t *testing.T) {
	for at := range 24 {
		for c := range 256 {
			b := []byte(`"` + strings.Repeat("a", at) + "?" + strings.Repeat("b", 24-at) + `"`)
			b[1+at] = byte(c)
			if got, want := wellFormed(b), json.Valid(b); got != want {
				t.Errorf("%q: %t, want %t", b, got, want)
			}
		}
	}
}

// TestWellFormed cuts a document with everything in it at every byte, and changes every byte.
func TestWellFormed(t *testing.T) {
	const doc = `{"a":[1,-0.5e+3,"x\u00e9\n",{"b":null,"":true}],"c":{},"d":[], "e" : false}`
	if !wellFormed([]byte(doc)) {
		t.Fatal("refused")
	}
	for i := range len(doc) {
		if wellFormed([]byte(doc[:i])) {
			t.Errorf("cut at %d passed", i)
		}
		for _, c := range []byte("\"\\{}[]:,0.-+eEtn \n\x00x") {
			b := []byte(doc)
			b[i] = c
			if got, want := wellFormed(b), json.Valid(b); got != want {
				t.Errorf("%s: %t, want %t", b, got, want)
			}
		}
	}
}

func TestAppendString(t *testing.T) {
	for _, s := range []string{"", "a", "ab\xffcd\"ef\ngh\x7fij", "\"\\/\b\f\n\r\t\x00\x1f\x7f", "é😀\u2028\u2029 \u0085", "\xff\xc3", "<script>&"} {
		b := appendString(nil, s)
		var got string
		if err := json.Unmarshal(b, &got); err != nil || got != string([]rune(s)) {
			t.Errorf("%q: %s %v", s, b, err)
		}
		if got != unquote(b) {
			t.Errorf("%q: unquoted to %q", s, unquote(b))
		}
		if bytes.ContainsAny(b, "\n\r\u0085\u2028\u2029") {
			t.Errorf("%q: on more than one line: %q", s, b)
		}
	}
}
