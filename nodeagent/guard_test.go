package nodeagent

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"iop/execution"
)

func TestCheckAddress(t *testing.T) {
	tests := []struct {
		host, addr string
		ok         bool
	}{
		{"gpu.example.com", "203.0.113.7", true},
		{"gpu.example.com", "10.0.0.7", true}, // a company's own name server may say so
		{"gpu.example.com", "2001:db8::1", true},
		{"gpu.example.com", "127.0.0.1", false},
		{"gpu.example.com", "::1", false},
		{"gpu.example.com", "::ffff:127.0.0.1", false},
		{"gpu.example.com", "169.254.169.254", false},
		{"gpu.example.com", "::ffff:169.254.169.254", false},
		{"gpu.example.com", "fe80::1%eth0", false},
		{"gpu.example.com", "fd00:ec2::254", false},
		{"gpu.example.com", "100.100.100.200", false},
		{"gpu.example.com", "0.0.0.0", false},
		{"gpu.example.com", "224.0.0.1", false},
		{"localhost", "127.0.0.1", true},
		{"localhost", "::1", true},
		{"LOCALHOST.", "127.0.0.1", true},
		{"localhost", "169.254.169.254", false},
		{"gpu1", "127.0.1.1", true}, // the machine's own name in /etc/hosts
		{"host.docker.internal", "127.0.0.1", true},
		{"gpu1", "169.254.169.254", false},
		{"127.0.0.1", "127.0.0.1", true},
		{"169.254.169.254", "169.254.169.254", true}, // written by the operator
		{"169.254.169.254", "169.254.169.253", false},
		{"127.0.0.1", "127.0.0.2", false},
	}
	for _, tt := range tests {
		if err := checkAddress(tt.host, netip.MustParseAddr(tt.addr)); (err == nil) != tt.ok {
			t.Errorf("%s at %s: %v, want ok %v", tt.host, tt.addr, err, tt.ok)
		}
	}
}

// TestRebinding: a name that resolves to this machine is refused when it connects, and counts as unreachable.
func TestRebinding(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	base := &url.URL{Scheme: "http", Host: "rebound.example.com:" + port}
	d := newDialer(base, nil)
	d.net.Resolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go answerDNS(theirs)
		return ours, nil
	}}
	_, err = d.dial(context.Background(), "tcp", "other.example.com:1")
	if !unreachable(err) || !strings.Contains(fmt.Sprint(err), "this machine itself") {
		t.Errorf("error is %v, want a refusal of 127.0.0.1", err)
	}
}

// answerDNS answers each question (over a stream: two bytes of length first) with 127.0.0.1.
func answerDNS(c net.Conn) {
	defer c.Close()
	for {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		q := make([]byte, int(size[0])<<8|int(size[1]))
		if _, err := io.ReadFull(c, q); err != nil {
			return
		}
		end := 12 + bytes.IndexByte(q[12:], 0) + 5
		a := append([]byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, q[12:end]...)
		if q[end-3] == 1 { // type A
			a[7] = 1
			a = append(a, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1)
		}
		if _, err := c.Write(append([]byte{byte(len(a) >> 8), byte(len(a))}, a...)); err != nil {
			return
		}
	}
}

// TestDialerIsPinned: whatever address the transport names, the provider's own is dialed.
func TestDialerIsPinned(t *testing.T) {
	got := make(chan string, 1)
	a := testAgent(t, httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r.URL.Path
		io.WriteString(w, "{}")
	}))
	conn, err := newDialer(a.only().base, nil).dial(context.Background(), "tcp", "192.0.2.1:80")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "GET /pinned HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	if path := <-got; path != "/pinned" {
		t.Errorf("path %q", path)
	}
}

func TestNoProxyFromEnvironment(t *testing.T) {
	if tr := newTransport(newDialer(&url.URL{Scheme: "http", Host: "h"}, nil)); tr.Proxy != nil || !tr.DisableCompression {
		t.Error("the transport has a proxy or asks for compression")
	}
}

const canary = "sk-c4n4ry0123456789ABCDEFabcdef"

func keyFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestKeyFile(t *testing.T) {
	for content, want := range map[string]string{
		canary + "\n": "", "": "is empty", " \n": "is empty", canary + "\n" + canary: "one key",
		"ключ": "one key", strings.Repeat("x", 3000): "more than",
	} {
		key, err := readKeyFile(keyFile(t, content))
		if want == "" && (err != nil || key.Reveal() != canary) {
			t.Errorf("%q: %v", content, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), canary)) {
			t.Errorf("%.40q: %v, want %q", content, err, want)
		}
	}
	if _, err := readKeyFile(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// TestSecretNeverPrints prints a provider that holds one in every way that a log may.
func TestSecretNeverPrints(t *testing.T) {
	spec := ProviderSpec{ID: "p", URL: "http://127.0.0.1:1", KeyFile: keyFile(t, canary)}
	p := testAgent(t, spec).only()
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+"\n", p.key.Load().key)
		fmt.Fprintf(&out, verb+"\n", struct{ k secret }{p.key.Load().key})
		fmt.Fprintf(&out, verb+"\n", *p.key.Load())
		fmt.Fprintf(&out, verb+"\n", p.key.Load())
	}
	log := slog.New(slog.NewJSONHandler(&out, nil))
	log.Info("x", "key", p.key.Load().key, "in", struct{ K secret }{p.key.Load().key})
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "key", p.key.Load().key, "in", struct{ K secret }{p.key.Load().key})
	b, _ := json.Marshal(struct{ K secret }{p.key.Load().key})
	out.Write(b)
	if s := out.String(); strings.Contains(s, canary) || strings.Contains(s, fmt.Sprintf("%x", canary)) {
		t.Errorf("printed the key: %s", s)
	}
}

// TestKeyIsMaskedWhereEchoed: a provider that repeats its key, in whatever pieces, in body, error and broken answer.
func TestKeyIsMaskedWhereEchoed(t *testing.T) {
	encoded := base64.StdEncoding.EncodeToString([]byte(canary))
	event := `data: {"choices":[{"index":0,"delta":{"content":"` + canary + ` and ` + encoded + `"}}]}` + "\n\n"
	tests := []struct {
		name   string
		stream bool
		answer string
	}{
		{"unary", false, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"a\":\"" + canary + "\",\"b\":\"" + encoded + "\"}"},
		{"stream", true, sseHead + event + doneEvent},
		{"first event error", true, sseHead + `data: {"error":{"message":"bad key ` + canary + `"}}` + "\n\n"},
		{"error after content", true, sseHead + firstChunk + `error: {"message":"bad key ` + canary + `"}` + "\n\n"},
		{"status 400", false, "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n\r\n{\"error\":\"" + canary + "\"}"},
		{"status 401", false, "HTTP/1.1 401 Unauthorized\r\nContent-Type: text/html\r\n\r\nno " + canary},
		{"no HTTP", false, canary + "\r\n\r\n"},
		{"redirect", false, "HTTP/1.1 302 " + canary + "\r\nLocation: http://h/" + canary + "\r\n\r\n"},
		{"allowed header", false, "HTTP/1.1 200 OK\r\nX-Request-Id: " + canary + "\r\nContent-Length: 2\r\n\r\n{}"},
	}
	for _, tt := range tests {
		for _, cut := range []int{len(tt.answer), 1, 7} {
			t.Run(fmt.Sprintf("%s by %d", tt.name, cut), func(t *testing.T) {
				var auth string
				spec := rawProvider(t, func(c net.Conn, r *http.Request) {
					auth = r.Header.Get("Authorization")
					for s := tt.answer; s != ""; s = s[min(cut, len(s)):] {
						io.WriteString(c, s[:min(cut, len(s))])
					}
				})
				spec.KeyFile = keyFile(t, canary)
				r := chatRun(tt.stream)
				end := serveNow(t, testAgent(t, spec), r)
				if auth != "Bearer "+canary {
					t.Errorf("the provider got authorization %q", auth)
				}
				all := fmt.Sprint(end, r.head, r.out.String())
				if strings.Contains(all, canary) || strings.Contains(all, strings.TrimRight(encoded, "=")) {
					t.Errorf("the key came out: %s", all)
				}
			})
		}
	}
}

func TestAnthropicKeyHeader(t *testing.T) {
	got := make(chan http.Header, 1)
	spec := httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		io.WriteString(w, "{}")
	})
	spec.Engine, spec.KeyFile = AnthropicEngine, keyFile(t, canary)
	serveNow(t, testAgent(t, spec), chatRun(false))
	if h := <-got; h.Get("X-Api-Key") != canary || h.Get("Authorization") != "" {
		t.Errorf("headers are %v", h)
	}
}

// TestKeyIsReadAgain: a rotated key is used without a restart; a file that is gone or broken takes nothing away.
func TestKeyIsReadAgain(t *testing.T) {
	var seen string
	spec := httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Get("Authorization")
		io.WriteString(w, models("m"))
	})
	spec.Engine, spec.KeyFile = VLLMEngine, keyFile(t, "first")
	p, b := looked(t, spec)
	for _, step := range []struct{ content, want string }{{"first", "first"}, {"second", "second"}, {"", "second"}, {"third", "third"}} {
		if err := os.WriteFile(spec.KeyFile, []byte(step.content), 0o600); err != nil {
			t.Fatal(err)
		}
		b.look(context.Background())
		if seen != "Bearer "+step.want {
			t.Errorf("after %q the provider got %q, want %s", step.content, seen, step.want)
		}
	}
	if p.key.Load().header != "Authorization" {
		t.Errorf("the header is %s", p.key.Load().header)
	}
}

func TestRefusedKeyIsTheOperatorsFault(t *testing.T) {
	spec := rawProvider(t, respond("HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\n\r\nsecr"))
	spec.KeyFile = keyFile(t, canary)
	r := chatRun(false)
	end := serveNow(t, testAgent(t, spec), r)
	if end.Outcome != execution.Completed || r.head.GetStatus() != 403 || !strings.Contains(r.out.String(), "provider_error") {
		t.Errorf("%+v, %v, %s", end, r.head, r.out.String())
	}
}

// TestScrubberKeepsLengths: at every cut, the masked text is as long as the original and nothing else changed.
func TestScrubberKeepsLengths(t *testing.T) {
	text := "a sk-c4 sk-" + canary + canary + " tail sk-c4n4r"
	want := strings.ReplaceAll(text, canary, strings.Repeat("*", len(canary)))
	for cut := range len(text) + 1 {
		s := newCredential(OpenAIEngine, newSecret(canary)).scrubber()
		var out bytes.Buffer
		out.Write(s.push([]byte(text[:cut])))
		out.Write(s.push([]byte(text[cut:])))
		out.Write(s.finish())
		if out.String() != want {
			t.Fatalf("cut at %d: %q, want %q", cut, out.String(), want)
		}
	}
}
