package lease

import (
	"bytes"
	"encoding/base64"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4/json"
)

// encoding is base64url without padding. Strict: it refuses text whose last character carries bits that decode to
// nothing, which the ordinary decoder ignores. It still skips line breaks, so text is checked for its alphabet first.
var encoding = base64.RawURLEncoding.Strict()

// tokenByte says which bytes may stand in a compact serialisation: base64url and the dot.
var tokenByte = func() (allowed [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.") {
		allowed[c] = true
	}
	return allowed
}()

// segments splits a compact serialisation into exactly n segments, or returns nil.
func segments(token []byte, n int) [][]byte {
	for _, c := range token {
		if !tokenByte[c] {
			return nil
		}
	}
	if bytes.Count(token, []byte{'.'}) != n-1 {
		return nil
	}
	return bytes.Split(token, []byte{'.'})
}

// decodeHeader decodes a segment that holds a header. Only printable ASCII without backslashes passes: there is then one
// way to write each name, and no parser that reads it can see another one.
func decodeHeader(segment []byte) (map[string]json.RawMessage, bool) {
	text, err := encoding.AppendDecode(nil, segment)
	if err != nil {
		return nil, false
	}
	for _, c := range text {
		if c < ' ' || c > '~' || c == '\\' {
			return nil, false
		}
	}
	return parseObject(text)
}

// parseObject splits a JSON object into its members. It reads with go-jose's own copy of encoding/json, which refuses a name
// that occurs twice: which of two members counts must not be a matter of the parser, and what is checked here must be
// what that library sees.
func parseObject(text []byte) (members map[string]json.RawMessage, ok bool) {
	if !utf8.Valid(text) {
		return nil, false
	}
	err := json.Unmarshal(text, &members)
	return members, err == nil && members != nil
}

// hasExactly reports whether the object holds these members, with these string values, and leaves the others, whose
// names follow, to the caller; nothing may be missing and nothing more may be there.
func hasExactly(members map[string]json.RawMessage, constant map[string]string, others ...string) bool {
	if len(members) != len(constant)+len(others) {
		return false
	}
	for name, value := range constant {
		if string(members[name]) != `"`+value+`"` {
			return false
		}
	}
	for _, name := range others {
		if members[name] == nil {
			return false
		}
	}
	return true
}

// plainString returns the value of a JSON string without escapes, as the bytes of raw, and false for anything else.
func plainString(raw json.RawMessage) ([]byte, bool) {
	if len(raw) < 2 || raw[0] != '"' || raw[len(raw)-1] != '"' || bytes.IndexByte(raw, '\\') >= 0 {
		return nil, false
	}
	return raw[1 : len(raw)-1], true
}

// decodeFixed decodes base64url into exactly len(into) bytes. Equal bytes have one spelling only.
func decodeFixed(into []byte, raw json.RawMessage) bool {
	text, ok := plainString(raw)
	if !ok || len(text) != encoding.EncodedLen(len(into)) {
		return false
	}
	n, err := encoding.Decode(into, text)
	return err == nil && n == len(into)
}
