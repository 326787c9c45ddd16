package main

import (
	"strings"
	"testing"
	"time"
)

// TestNoWelcomeInLogs: what is no terminal gets log lines alone.
func TestNoWelcomeInLogs(t *testing.T) {
	s := newSite(t)
	s.startEdge()
	s.edge.end()
	for line := range strings.Lines(s.edge.output()) {
		if !strings.HasPrefix(line, "{") {
			t.Errorf("%q", line)
		}
	}
}

// TestWelcomeText: URL and steps fit the Edge.
func TestWelcomeText(t *testing.T) {
	now := time.Now()
	cert, key := pairFiles(t, "edge.example.org", now, now.Add(day))
	at := func(address string) welcomeAddress { return welcomeAddress(address) }
	c := newEdgeSettings()
	c.TLSCert, c.TLSKey = cert, key
	w := c.welcome(at("[::]:443"), at("127.0.0.1:8481"), true)
	if text := w.text(); !strings.Contains(text, "https://edge.example.org/v1") || strings.Contains(text, "export") || !strings.Contains(text, "iop-data/admin-token") {
		t.Error(text)
	}
	c.TLSCert, c.TLSKey = pairFiles(t, "*.example.org", now, now.Add(day))
	w = c.welcome(at("[::]:443"), at("127.0.0.1:8481"), true)
	if text := w.text(); !strings.Contains(text, "https://127.0.0.1/v1") {
		t.Error(text)
	}
	c.TLSCert, c.Mode, c.Auth, c.State = "", "managed", "none", "sqlite://a dir/iop.db"
	w = c.welcome(at("[::]:8480"), at("0.0.0.0:1"), true)
	text := w.text()
	for _, want := range []string{"http://127.0.0.1:8480/v1", "iop node-list allow", "export IOP_EDGE_STATE='sqlite://a dir/iop.db'", "export IOP_ADMIN_URL=http://127.0.0.1:1\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing:\n%s", want, text)
		}
	}
	if strings.Contains(text, "key create") || strings.Contains(text, "join-token") {
		t.Error(text)
	}
	for word, want := range map[string]string{"/a/b": "/a/b", "a b": "'a b'", "it's": `'it'\''s'`, "$(x)": "'$(x)'"} {
		if got := shellWord(word); got != want {
			t.Errorf("%q: %s", word, got)
		}
	}
}

// welcomeAddress is an address of a listener that there is not.
type welcomeAddress string

func (a welcomeAddress) Network() string { return "tcp" }
func (a welcomeAddress) String() string  { return string(a) }
