package state

import (
	"fmt"
	"io"
	"log/slog"
)

const redacted = "[secret]"

// Secret holds a value that must not reach a log, an error or a response by accident: under every fmt verb, in slog,
// JSON and text it is "[secret]". Two Secrets can't be compared with ==. The zero value reveals the empty string.
//
// The value lives in a closure because fmt and slog don't call methods on unexported fields: a string field would show
// in a %+v of whatever struct holds the Secret.
type Secret struct{ reveal func() string }

// NewSecret wraps a value.
func NewSecret(value string) Secret { return Secret{reveal: func() string { return value }} }

// Reveal returns the value. Every call is a place to review.
func (s Secret) Reveal() string {
	if s.reveal == nil {
		return ""
	}
	return s.reveal()
}

// String returns "[secret]".
func (s Secret) String() string { return redacted }

// Format writes "[secret]" whatever the verb and flags.
func (s Secret) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// LogValue returns "[secret]".
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns "[secret]"; encoding/json uses it too.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
