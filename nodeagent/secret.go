package nodeagent

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
)

// maxKeyLength bounds a provider's key; real ones have some 200 bytes.
const maxKeyLength = 2048

// secret is a provider's key. It prints, logs and marshals as "[secret]": the bytes are in a closure because fmt and
// slog would find them in a field of any struct around it. The zero value holds none.
type secret struct{ reveal func() string }

func newSecret(s string) secret { return secret{reveal: func() string { return s }} }

// Reveal returns the key, empty if there is none. The one caller puts it on a request or looks for it in an answer.
func (s secret) Reveal() string {
	if s.reveal == nil {
		return ""
	}
	return s.reveal()
}

// Format implements fmt.Formatter for every verb.
func (s secret) Format(f fmt.State, _ rune) { io.WriteString(f, "[secret]") }

// LogValue implements slog.LogValuer.
func (s secret) LogValue() slog.Value { return slog.StringValue("[secret]") }

// MarshalText implements encoding.TextMarshaler, and with it json.
func (s secret) MarshalText() ([]byte, error) { return []byte("[secret]"), nil }

// credential is what a provider wants to see, in the forms in which it is used: the Node's own key, or what a lease
// brought for one run. It is nil where there is none, and its methods take that. It never leaves the package.
type credential struct {
	key    secret          // none of a lease
	header string          // the header that carries it; empty of a lease, which authorizes by itself
	value  func() []string // as http.Header wants it, so that a run only refers to it
	// needles are what is looked for in an answer.
	needles func() *needleSet
}

func newCredential(engine Engine, key secret) *credential {
	plain := key.Reveal()
	if plain == "" {
		return nil
	}
	c := &credential{key: key, header: "Authorization"}
	value := []string{"Bearer " + plain}
	if engine == AnthropicEngine {
		c.header, value = "X-Api-Key", []string{plain}
	}
	needles := newNeedleSet([]byte(plain))
	c.value = func() []string { return value }
	c.needles = func() *needleSet { return needles }
	return c
}

// leasedCredential is a credential that is only looked for. It takes over value, and wipe overwrites it.
func leasedCredential(value []byte) *credential {
	needles := newNeedleSet(value)
	return &credential{needles: func() *needleSet { return needles }}
}

// wipe overwrites what is owned of a lease's credential.
func (c *credential) wipe() { c.needles().wipe() }

// authorize puts the key on a request to the provider.
func (c *credential) authorize(h http.Header) {
	if c != nil {
		h[c.header] = c.value()
	}
}

// mask returns text without the key.
func (c *credential) mask(text string) string {
	if c == nil {
		return text
	}
	return c.needles().mask(text)
}

// scrubber returns a scrubber of the key, nil if there is none.
func (c *credential) scrubber() *scrubber {
	if c == nil {
		return nil
	}
	return &scrubber{needles: c.needles()}
}

// readKeyFile reads a key. Its errors name the file and never quote what is in it.
func readKeyFile(path string) (secret, error) {
	f, err := os.Open(path)
	if err != nil {
		return secret{}, fmt.Errorf("key-file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxKeyLength+16))
	if err != nil {
		return secret{}, fmt.Errorf("key-file: %w", err)
	}
	key := strings.TrimSpace(string(b))
	switch {
	case key == "":
		return secret{}, errors.New("key-file is empty")
	case len(key) > maxKeyLength:
		return secret{}, fmt.Errorf("key-file holds more than %d bytes", maxKeyLength)
	case strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }):
		return secret{}, errors.New("key-file must hold one key of visible ASCII characters")
	}
	return newSecret(key), nil
}
