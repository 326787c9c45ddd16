package lease

import (
	"bytes"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
)

const redacted = "[secret]"

// MaxCredentialLength bounds a credential in bytes. Real ones have some 200; some tokens have more than a thousand.
const MaxCredentialLength = 2048

// Secret holds a credential that must not reach a log, an error or a response by accident: under every fmt verb, in
// slog, JSON and text it is "[secret]". Two Secrets can't be compared with ==; Equal takes the same time wherever they
// differ. The zero value holds nothing.
//
// The bytes live in a closure because fmt and slog don't call methods on unexported fields: a field would show in a %+v
// of whatever struct holds the Secret. Copies of a Secret share the bytes, and Wipe reaches all of them.
type Secret struct {
	// access runs its argument with the bytes, one caller at a time, or is nil.
	access func(func(value []byte))
}

// NewSecret wraps a credential and takes the bytes over: the caller must not use them again. It refuses what can't be a
// header's value as it is: other than 1 to MaxCredentialLength bytes of visible ASCII. The error does not show the value.
func NewSecret(value []byte) (Secret, error) {
	if len(value) == 0 || len(value) > MaxCredentialLength {
		return Secret{}, fmt.Errorf("a credential must have 1 to %d bytes", MaxCredentialLength)
	}
	if bytes.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return Secret{}, errors.New("a credential must be visible ASCII, without spaces and line breaks")
	}
	var mu sync.Mutex
	return Secret{access: func(use func([]byte)) {
		mu.Lock()
		defer mu.Unlock()
		use(value)
	}}, nil
}

// Reveal returns a copy of the value, which the caller should clear after use; nil if there is none, or none any more.
// Every call is a place to review.
func (s Secret) Reveal() (value []byte) {
	s.use(func(held []byte) {
		if len(held) > 0 && held[0] != 0 {
			value = bytes.Clone(held)
		}
	})
	return value
}

// Equal reports whether both hold the same value, which is not nothing.
func (s Secret) Equal(other Secret) bool {
	a, b := s.Reveal(), other.Reveal()
	defer clear(a)
	defer clear(b)
	return len(a) > 0 && subtle.ConstantTimeCompare(a, b) == 1
}

// Wipe overwrites the bytes that this Secret and its copies hold. It says nothing about copies that were made of them,
// such as a header's value.
func (s Secret) Wipe() { s.use(func(held []byte) { clear(held) }) }

func (s Secret) use(f func([]byte)) {
	if s.access != nil {
		s.access(f)
	}
}

// String returns "[secret]".
func (s Secret) String() string { return redacted }

// Format writes "[secret]" whatever the verb and flags.
func (s Secret) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// LogValue returns "[secret]".
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns "[secret]"; encoding/json uses it too.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
