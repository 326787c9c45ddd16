package lease

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
)

// Digest stands for one request to a provider. The zero value is invalid.
type Digest [sha256.Size]byte

// RunMethod, RunPath and RunType stand for method, path and content type in the digest of a normalized run. Its body is
// the run's input: what goes to the provider is made of that on the Node, and the Edge never sees it.
const (
	RunMethod = "RUN"
	RunPath   = "/run"
	RunType   = "application/json"
)

// RequestDigest is the Digest of a request: SHA-256 over method, path and content type, each followed by a line feed,
// and the SHA-256 of the body in lower-case hexadecimal. The body's own hash comes last, so that both ends can hash the
// body while it passes. A control character in one of the three is refused: it could make two requests look alike.
func RequestDigest(method, path, contentType string, body [sha256.Size]byte) (Digest, error) {
	var text []byte
	for _, part := range []string{method, path, contentType} {
		for i := range len(part) {
			if part[i] < ' ' || part[i] == 0x7f {
				return Digest{}, errors.New("a request line or content type holds a control character")
			}
		}
		text = append(append(text, part...), '\n')
	}
	return sha256.Sum256(hex.AppendEncode(text, body[:])), nil
}

// String returns the digest in base64url, as it stands in a lease.
func (d Digest) String() string { return base64.RawURLEncoding.EncodeToString(d[:]) }
