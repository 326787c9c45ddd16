package lease

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// leaks reports whether a text shows the test credential, in whatever form fmt has for strings and bytes.
func leaks(text string) bool {
	for _, form := range []string{"%s", "%x", "%X", "% x", "%v", "%d", "%#x", "%08b", "%o"} {
		if strings.Contains(text, fmt.Sprintf(form, []byte(testCredential))) {
			return true
		}
	}
	return strings.Contains(text, b64([]byte(testCredential)))
}

// TestNothingPrintsACredential: neither a Secret nor anything that holds one, or a private key.
func TestNothingPrintsACredential(t *testing.T) {
	w, keys, sealer, to := edgeWorld(t)
	opened, err := w.Open(seal(t, sealer, to), w.want)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	s := opened.Credential()
	values := []any{s, &s, []Secret{s}, map[string]Secret{"k": s}, struct{ a, B Secret }{s, s}, opened, *opened, w.Opener, w.cfg, keys, sealer, to, w.cfg.Recipient}
	private, err := w.cfg.Recipient.private.Load().Bytes()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	for _, value := range values {
		for verb := range strings.SplitSeq("v +v #v s q x X d o b c U e f g t T p w 10s -30q", " ") {
			text := fmt.Sprintf("%"+verb, value)
			if leaks(text) || strings.Contains(text, fmt.Sprint(private)[1:40]) || strings.Contains(text, fmt.Sprintf("%x", private)) {
				t.Errorf("%%%s of %T: %s", verb, value, text)
			}
		}
		for _, handler := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
			slog.New(handler).Info("m", "value", value)
		}
	}
	if leaks(log.String()) {
		t.Errorf("logged: %s", &log)
	}
	encoded, err := json.Marshal(map[string]any{"secret": s, "in": struct{ S Secret }{s}})
	if err != nil || string(encoded) != `{"in":{"S":"[secret]"},"secret":"[secret]"}` {
		t.Errorf("json %s, %v", encoded, err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		if text := fmt.Sprintf(verb, s); text != "[secret]" {
			t.Errorf("%s: %q", verb, text)
		}
	}
	if s.String() != "[secret]" {
		t.Error(s.String())
	}
}

func TestSecret(t *testing.T) {
	a, b, c := secret(t, "one"), secret(t, "one"), secret(t, "two")
	if !a.Equal(b) || a.Equal(c) || a.Equal(Secret{}) || (Secret{}).Equal(Secret{}) {
		t.Error("equal is not equal")
	}
	copied := a.Reveal()
	clear(copied)
	if string(a.Reveal()) != "one" {
		t.Error("Reveal gives the bytes away")
	}
	alias := a
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { a.Reveal() })
		all.Go(func() { a.Wipe() })
	}
	all.Wait()
	if alias.Reveal() != nil || alias.Equal(a) {
		t.Error("wiped, and still there")
	}
	(Secret{}).Wipe()
}

// TestOpenClearsWhatItOwns: the bytes that the package owns are gone when a lease ends, however it ended.
func TestOpenClearsWhatItOwns(t *testing.T) {
	w := newWorld(t)
	opened, err := w.Open(newDraft().token(), w.want)
	if err != nil {
		t.Fatal(err)
	}
	var held []byte
	opened.credential.access(func(value []byte) { held = value })
	if string(held) != testCredential {
		t.Fatal("that is not it")
	}
	opened.Close()
	if strings.Trim(string(held), "\x00") != "" {
		t.Error("not cleared")
	}
}
