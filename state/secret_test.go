package state

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

const hidden = "hunter2-the-secret-value"

// leaks reports whether the text shows the hidden value, in whatever form fmt has for strings and bytes.
func leaks(text string) bool {
	for _, form := range []string{"%s", "%q", "%x", "%X", "% x", "%v", "%d", "%#x"} {
		if strings.Contains(text, fmt.Sprintf(form, hidden)) || strings.Contains(text, fmt.Sprintf(form, []byte(hidden))) {
			return true
		}
	}
	return strings.Contains(text, hidden)
}

func TestSecretNeverPrints(t *testing.T) {
	secret := NewSecret(hidden)
	if secret.Reveal() != hidden {
		t.Fatal("Reveal does not")
	}
	type parent struct {
		Exported   Secret
		unexported Secret
		pointer    *Secret
		list       []Secret
		byName     map[string]Secret
	}
	p := parent{secret, secret, &secret, []Secret{secret}, map[string]Secret{"k": secret}}
	values := []any{secret, &secret, p, &p, []any{secret}, fmt.Errorf("wrapped: %v", secret), errors.Join(fmt.Errorf("%w", fmt.Errorf("%s", secret)))}
	for verb := range strings.SplitSeq("v +v #v s q x X d o b c U e f g t T p w 10s -30q", " ") {
		for _, value := range values {
			if text := fmt.Sprintf("%"+verb, value); leaks(text) {
				t.Errorf("%%%s of %T: %s", verb, value, text)
			}
		}
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		if text := fmt.Sprintf(verb, secret); text != "[secret]" {
			t.Errorf("%s: %q", verb, text)
		}
	}
	if text := fmt.Sprint(secret, " ", secret.String()); text != "[secret] [secret]" {
		t.Errorf("Sprint: %q", text)
	}
}

func TestSecretNeverLogsOrMarshals(t *testing.T) {
	secret := NewSecret(hidden)
	holder := struct {
		Key    Secret `json:"key" xml:"key"`
		secret Secret
		More   map[string]Secret `json:"more" xml:"-"`
	}{secret, secret, map[string]Secret{"a": secret}}
	var out bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(handler).Info("m", "bare", secret, "pointer", &secret, "holder", holder, "any", slog.AnyValue(secret))
	}
	if n := strings.Count(out.String(), "[secret]"); n < 6 {
		t.Errorf("only %d places in: %s", n, &out)
	}
	encoded, err := json.Marshal(holder)
	if err != nil || string(encoded) != `{"key":"[secret]","more":{"a":"[secret]"}}` {
		t.Errorf("json: %s, %v", encoded, err)
	}
	type element struct{ Key Secret }
	inXML, err := xml.Marshal(element{secret})
	if err != nil || !bytes.Contains(inXML, []byte("[secret]")) {
		t.Errorf("xml: %s, %v", inXML, err)
	}
	text, err := secret.MarshalText()
	if err != nil || string(text) != "[secret]" {
		t.Errorf("text: %s, %v", text, err)
	}
	if all := out.String() + string(encoded) + string(inXML); leaks(all) {
		t.Errorf("the secret is in %s", all)
	}
}

func TestZeroSecret(t *testing.T) {
	var zero Secret
	if zero.Reveal() != "" || fmt.Sprint(zero) != "[secret]" {
		t.Errorf("%q, %v", zero.Reveal(), zero)
	}
}

// Nothing that a Store holds shows a secret when someone prints it.
func TestStoreNeverPrints(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	_, key := createKey(t, s, KeySpec{Name: "k"})
	admin, _, err := s.AdminToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.VerifyKey(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%+v %#v %+v", s.peppers, s.peppers.newest, &s.keys)
	content, err := s.files.read(pepperFile)
	if err != nil {
		t.Fatal(err)
	}
	pepper := strings.TrimSpace(content[strings.LastIndex(content, " "):])
	for _, secret := range []string{key, admin.Reveal(), pepper} {
		if strings.Contains(text, secret) {
			t.Errorf("a secret is in %s", text)
		}
	}
}
