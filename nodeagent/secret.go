package nodeagent

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
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
