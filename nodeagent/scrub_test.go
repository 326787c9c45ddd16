package nodeagent

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// push gives a body to a scrubber in pieces of the given sizes, again and again, and returns what comes out. It fails if
// the end of an event waits, or more than may.
func pushAll(t *testing.T, n *needleSet, body []byte, sizes []byte) []byte {
	t.Helper()
	s := &scrubber{needles: n}
	var out []byte
	for pushed, i := 0, 0; pushed < len(body); i++ {
		size := len(body)
		if len(sizes) > 0 {
			size = int(sizes[i%len(sizes)])%97 + 1
		}
		piece := bytes.Clone(body[pushed:min(pushed+size, len(body))])
		pushed += len(piece)
		out = append(out, s.push(piece)...)
		if body[pushed-1] == '\n' && len(out) != pushed {
			t.Fatalf("%d bytes wait at the end of a line", pushed-len(out))
		}
		if pushed-len(out) >= n.longest {
			t.Fatalf("%d bytes wait, the longest needle has %d", pushed-len(out), n.longest)
		}
	}
	return append(out, s.finish()...)
}

// masked is what must come out: the body with every byte of every needle replaced.
func masked(n *needleSet, body []byte) []byte {
	want := bytes.Clone(body)
	for _, needle := range n.all {
		for i := range body {
			if bytes.HasPrefix(body[i:], needle) {
				copy(want[i:], bytes.Repeat([]byte{n.blank}, len(needle)))
			}
		}
	}
	return want
}

// FuzzScrub: however an answer is cut, no form of the credential comes out of it, and every other byte does as it came
// in. Bytes 0 to 5 of the text stand for the credential in one form each.
func FuzzScrub(f *testing.F) {
	f.Add("sk-abcdef0123456789", []byte("data: {\"x\":\"\x00\"}\n\n"), []byte{1})
	f.Add("a/b+c=%20\"\\<&>*", []byte("\x01 \x02 \x03 \x04 \x05 \x00\x00"), []byte{7, 3})
	f.Add("abababab", []byte("\x00ab\x00a\x00bab"), []byte{2})
	f.Add("*", []byte("**\x00*\n"), []byte{})
	f.Add("aab", []byte("aaab aa\x00aab"), []byte{2, 1})
	f.Add("00000000", []byte("\x01\x02\x0300000000000"), []byte{96, 5})
	f.Fuzz(func(t *testing.T, secret string, text, sizes []byte) {
		credential := visible(secret)
		if len(credential) == 0 || len(text) > 1<<12 {
			return
		}
		n := newNeedleSet(bytes.Clone(credential))
		body := expand(text, string(credential))
		want := masked(n, body)
		out := pushAll(t, n, bytes.Clone(body), sizes)
		if !bytes.Equal(out, want) {
			t.Fatalf("%q comes out as %q, want %q", body, out, want)
		}
		if bytes.Contains(out, credential) {
			t.Fatalf("%q still holds %q", out, credential)
		}
		if got := n.mask(string(body)); got != string(want) {
			t.Fatalf("as a text it is %q, want %q", got, want)
		}
	})
}

// visible makes a credential of any string.
func visible(s string) []byte {
	var b []byte
	for i := range min(len(s), 300) {
		if s[i] > ' ' && s[i] <= '~' {
			b = append(b, s[i])
		}
	}
	return b
}

func expand(text []byte, credential string) []byte {
	var body []byte
	for _, c := range text {
		switch c {
		case 0:
			body = append(body, credential...)
		case 1, 2, 3:
			body = base64.StdEncoding.AppendEncode(body, []byte("xyz"[:c-1]+credential+"tail"))
		case 4:
			body = append(body, url.QueryEscape(credential)...)
		case 5:
			quoted, _ := json.Marshal(credential)
			body = append(body, quoted...)
		default:
			body = append(body, c)
		}
	}
	return body
}

// TestEncodedCredentialIsHiddenThreat37: what other programs make of a credential, at each place of a longer text, with
// each way to cut it, is hidden but for the digits that it shares with its neighbours.
func TestEncodedCredentialIsHiddenThreat37(t *testing.T) {
	const secret = `sk+ab/cd==_"1%2~`
	inBase64 := func(e *base64.Encoding) func(string) string {
		return func(s string) string { return e.EncodeToString([]byte(s)) }
	}
	json1 := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	forms := map[string]func(string) string{
		"plain":  func(s string) string { return s },
		"base64": inBase64(base64.StdEncoding), "base64 without padding": inBase64(base64.RawStdEncoding),
		"base64url": inBase64(base64.URLEncoding), "base64url without padding": inBase64(base64.RawURLEncoding),
		"query": url.QueryEscape, "path": url.PathEscape,
		"query in lower case": func(s string) string { return string(lowerEscapes(url.QueryEscape(s))) },
		"json":                json1,
		"json of PHP":         func(s string) string { return strings.ReplaceAll(json1(s), "/", `\/`) },
	}
	for name, form := range forms {
		for before := range 4 {
			text := form("Bear"[:before] + secret + "tail"[before:])
			at := strings.Repeat("*", len(form(secret))*3/4) // without edges and padding
			n := newNeedleSet([]byte(secret))
			for cut := range len(text) + 1 {
				s := &scrubber{needles: n}
				out := string(s.push([]byte(text[:cut])))
				out += string(s.push([]byte(text[cut:])))
				out += string(s.finish())
				if !strings.Contains(out, at) || len(out) != len(text) {
					t.Fatalf("%s after %d bytes, cut at %d: %q comes out as %q", name, before, cut, text, out)
				}
			}
		}
	}
}

// TestBlankIsInNoNeedle: a credential of asterisks can't be hidden by asterisks.
func TestBlankIsInNoNeedle(t *testing.T) {
	n := newNeedleSet([]byte("***"))
	if out := string(pushAll(t, n, []byte("a***b****c**"), []byte{0})); out != "a   b    c**" {
		t.Errorf("%q", out)
	}
}

// TestWipedNeedles: nothing is left of a lease's credential once it is wiped.
func TestWipedNeedles(t *testing.T) {
	value := []byte(canary)
	c := leasedCredential(value)
	s := c.scrubber()
	s.push([]byte("x" + canary + canary[:9]))
	held := s.held[:cap(s.held)]
	s.wipe()
	c.wipe()
	if bytes.Contains(value, []byte("sk-")) || bytes.Contains(held, []byte("sk-")) {
		t.Errorf("left: %q, %q", value, held)
	}
	if out := fmt.Sprint(c, *c); strings.Contains(out, canary) {
		t.Error(out)
	}
}

// BenchmarkScrub is a chunk of a stream that does not hold the credential.
func BenchmarkScrub(b *testing.B) {
	chunk := []byte(firstChunk)
	s := &scrubber{needles: newNeedleSet([]byte(canary))}
	b.ReportAllocs()
	b.SetBytes(int64(len(chunk)))
	for b.Loop() {
		s.push(chunk)
	}
}
