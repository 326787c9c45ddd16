package nodeagent

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"iop/execution"
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
		if pushed-len(out) >= n.longest*maxEscaped {
			t.Fatalf("%d bytes wait, the longest needle has %d", pushed-len(out), n.longest)
		}
	}
	return append(out, s.finish()...)
}

// hitsOf is where needles are in a body, found in the plainest way: each level of escapes is read by a regular expression,
// and each needle is compared at each place.
func hitsOf(n *needleSet, body []byte) (hits []span) {
	text, at := body, make([]int, len(body)+1)
	for i := range at {
		at[i] = i
	}
	for range maxLevels + 1 {
		for i := range text {
			for _, needle := range n.all {
				if bytes.HasPrefix(text[i:], needle) {
					hits = append(hits, span{at[i], at[i+len(needle)]})
				}
			}
		}
		text, at = plainOf(text, at)
	}
	return hits
}

var anyEscape = regexp.MustCompile(`\\(u00[0-7][0-9a-fA-F]|U000000[0-7][0-9a-fA-F]|u\{[0-9a-fA-F]{1,6}\}|[01][0-7][0-7]|x[0-7][0-9a-fA-F]|[!-/:-@\[-` + "`" + `{-~])|%[0-7][0-9a-fA-F]|&[#0-9A-Za-z]{0,14};`)

// plainOf takes one level of escapes away. at says where each byte was.
func plainOf(text []byte, at []int) (plain []byte, places []int) {
	last := 0
	keep := func(end int) {
		plain, places = append(plain, text[last:end]...), append(places, at[last:end]...)
		last = end
	}
	for _, m := range anyEscape.FindAllIndex(text, -1) {
		escape := string(text[m[0]:m[1]])
		var c []byte
		switch {
		case escape[0] == '&':
			c = []byte(html.UnescapeString(escape))
		case escape[0] == '\\' && len(escape) > 3 && (escape[1] == '0' || escape[1] == '1'):
			v, _ := strconv.ParseUint(escape[1:], 8, 8)
			c = []byte{byte(v)}
		case strings.HasPrefix(escape, `\u{`):
			if v, _ := strconv.ParseUint(escape[3:len(escape)-1], 16, 32); v < 0x80 {
				c = []byte{byte(v)}
			}
		case len(escape) == 2:
			c = []byte(escape[1:])
		default:
			c, _ = hex.DecodeString(escape[len(escape)-2:])
		}
		if len(c) != 1 {
			continue
		}
		keep(m[0])
		plain, places = append(plain, c[0]), append(places, at[m[0]])
		last = m[1]
	}
	keep(len(text))
	return plain, append(places, at[len(text)])
}

// masked is what must come out: the body with every byte of every needle replaced.
func masked(n *needleSet, body []byte) []byte {
	want := bytes.Clone(body)
	for _, hit := range hitsOf(n, body) {
		copy(want[hit.begin:], bytes.Repeat([]byte{n.blank}, hit.end-hit.begin))
	}
	return want
}

// FuzzScrub: however an answer is cut, no form of the credential comes out of it, and every other byte does as it came
// in. Bytes 0 to 31 of the text stand for the credential in one form each.
func FuzzScrub(f *testing.F) {
	f.Add("sk-abcdef0123456789", []byte("data: {\"x\":\"\x00\"}\n\n"), []byte{1})
	f.Add("a/b+c=%20\"\\<&>*", []byte("\x01 \x02 \x03 \x04 \x05 \x00\x00"), []byte{7, 3})
	f.Add("abababab", []byte("\x00ab\x00a\x00bab"), []byte{2})
	f.Add("*", []byte("**\x00*\n"), []byte{})
	f.Add("aab", []byte("aaab aa\x00aab"), []byte{2, 1})
	f.Add("sk-live_0123", []byte("\x06 \x07\x0a\x0e\x0f\x10\x11\x12\x13\\\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f"), []byte{0, 9, 2})
	f.Add("u002d\\u002dx%41&amp;", []byte("\\\x00\\\\\x00%\x0b\x0c&\x0d\x0e&#\x0f&am"), []byte{0})
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

// formsOf is what programs make of a text that they put into another, by the name of the way.
var formsOf = []struct {
	name string
	of   func(string) string
}{
	{"plain", func(s string) string { return s }},
	{"base64", func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }},
	{"base64 one later", func(s string) string { return base64.StdEncoding.EncodeToString([]byte("x" + s + "tail")) }},
	{"base64 two later", func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte("xy" + s + "tail")) }},
	{"URL's query", url.QueryEscape},
	{"JSON", jsonOf},
	{"URL's path", url.PathEscape},
	{"URL in lower case", func(s string) string { return string(lowerEscapes(url.QueryEscape(s))) }},
	{"URL, all of it", eachByte("%%%02X")},
	{"tab", func(string) string { return "\t" }}, // as bytes of the fuzzed text stand
	{"line", func(string) string { return "\n" }},
	{"URL, all in lower case", eachByte("%%%02x")},
	{"URL, twice", func(s string) string { return eachByte("%%25%02X")(s) }},
	{"hex", eachByte("%02x")},
	{"HEX", eachByte("%02X")},
	{"JSON, all of it", eachByte(`\u%04x`)},
	{"JSON, ALL OF IT", eachByte(`\u%04X`)},
	{"JSON of PHP", func(s string) string { return strings.ReplaceAll(jsonOf(s), "/", `\/`) }},
	{"JSON in JSON", func(s string) string { return jsonOf(jsonOf(s)) }},
	{"JSON in JSON, all of it", eachByte(`\\u%04x`)},
	{"Python", eachByte(`\x%02x`)},
	{"Markdown", markdown},
	{"HTML", html.EscapeString},
	{"HTML, hex", eachByte("&#x%x;")},
	{"HTML, HEX", eachByte("&#X%04X;")},
	{"HTML, decimal", eachByte("&#%d;")},
	{"HTML in JSON", func(s string) string { return jsonOf(html.EscapeString(s)) }},
	{"HTML in HTML", func(s string) string { return html.EscapeString(html.EscapeString(s)) }},
	{"JSON in HTML", func(s string) string { return html.EscapeString(jsonOf(s)) }},
	{"URL in JSON", func(s string) string { return jsonOf(url.QueryEscape(s)) }},
	{"UTF-16", func(s string) string { return eachByte("%c\x00")(s) }},
	{"signs alone", signsAlone},
	{"octal", eachByte(`\%03o`)},
	{"octal in JSON", func(s string) string { return jsonOf(eachByte(`\%03o`)(s)) }},
	{"JavaScript, braced", eachByte(`\u{%x}`)},
	{"JavaScript, braced, with zeros", eachByte(`\u{%06X}`)},
	{"Python, eight digits", eachByte(`\U%08x`)},
}

func jsonOf(s string) string { b, _ := json.Marshal(s); return string(b) }

func eachByte(format string) func(string) string {
	return func(s string) string {
		var b strings.Builder
		for i := range len(s) {
			fmt.Fprintf(&b, format, s[i])
		}
		return b.String()
	}
}

// markdown escapes each sign.
func markdown(s string) string {
	return regexp.MustCompile(`[^0-9A-Za-z]`).ReplaceAllString(s, `\$0`)
}

// signsAlone writes the signs as JSON may.
func signsAlone(s string) string {
	return regexp.MustCompile(`[^0-9A-Za-z]`).ReplaceAllStringFunc(s, eachByte(`\u%04X`))
}

func expand(text []byte, credential string) []byte {
	var body []byte
	for _, c := range text {
		if int(c) < len(formsOf) {
			body = append(body, formsOf[c].of(credential)...)
		} else {
			body = append(body, c)
		}
	}
	return body
}

// TestEncodedCredentialIsHiddenThreat37: what other programs make of a credential, at each place of a longer text, with
// each way to cut it, is hidden but for the digits that it shares with its neighbours.
func TestEncodedCredentialIsHiddenThreat37(t *testing.T) {
	const secret = `sk+ab/cd==_"1%2~`
	for _, f := range formsOf {
		name, form := f.name, f.of
		if name == "tab" || name == "line" {
			continue
		}
		for before := range 4 {
			text := form("Bear"[:before] + secret + "tail"[before:])
			at := strings.Repeat("*", len(secret)) // at least: edges of base64 and quotes are left
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

// TestEncodedAnswerThreat37: an answer that may hold the operator's own key, too, and can't be searched for it, is not passed
// on, however its encoding is written. Without a key it passes as it came.
func TestEncodedAnswerThreat37(t *testing.T) {
	for name, header := range map[string]string{
		"gzip": "Content-Encoding: gzip", "odd case": "content-encoding: GZip", "x-gzip": "Content-Encoding: x-gzip",
		"deflate": "Content-Encoding: deflate", "br": "Content-Encoding: br", "zstd": "Content-Encoding: zstd", "unknown": "Content-Encoding: aes128gcm",
		"two": "Content-Encoding: identity, gzip", "two lines": "Content-Encoding: identity\r\nContent-Encoding: gzip", "empty first": "Content-Encoding: , gzip",
		"of an error": "",
	} {
		answer := json200 + header + "\r\nConnection: close\r\n\r\nzipped"
		if header == "" {
			answer = "HTTP/1.1 429 Too Many Requests\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\nzipped"
		}
		t.Run(name, func(t *testing.T) {
			asked := make(chan string, 8)
			spec := rawProvider(t, func(c net.Conn, r *http.Request) {
				asked <- r.Header.Get("Accept-Encoding")
				io.WriteString(c, answer)
			})
			r := chatRun(false)
			if end := serveNow(t, testAgent(t, spec), r); end.Outcome != execution.Completed || r.out.String() != "zipped" {
				t.Errorf("without a key: %+v %q", end, r.out.String())
			}
			spec.KeyFile = keyFile(t, canary)
			r = chatRun(false)
			end := serveNow(t, testAgent(t, spec), r)
			if end.Code != execution.CodeProviderError || !strings.Contains(end.Detail, "identity") || r.head != nil || r.out.Len() > 0 {
				t.Errorf("with a key: %+v %v %q", end, r.head, r.out.String())
			}
			for range 2 {
				if got := <-asked; got != "identity" {
					t.Errorf("the provider was asked for %q", got)
				}
			}
		})
	}
	// What only says identity is plain.
	spec := rawProvider(t, respond(json200+"Content-Encoding: Identity\r\nConnection: close\r\n\r\n"+echoBody))
	spec.KeyFile = keyFile(t, canary)
	r := chatRun(false)
	if end := serveNow(t, testAgent(t, spec), r); end.Outcome != execution.Completed || r.out.Len() == 0 || strings.Contains(r.out.String(), canary) {
		t.Errorf("%+v %q", end, r.out.String())
	}
}
