package state

import (
	"crypto/rand"
	"hash/crc32"
	"strings"
)

// A token is <prefix><id><secret><checksum>, all but the prefix in base62:
//
//	sk-iop_ 0Ab3dE9z  m8…(32)  4kQz01
//
// The prefix tells a secret scanner whose token it is and of which kind; its one '_' and the fixed width make a double
// click select all of it. The id is public: lists and logs show it. The secret is 190 bits. The checksum is a CRC-32 of
// everything before it: it finds typing errors without a look-up and is no security.
const (
	tokenIDLength       = 8
	tokenSecretLength   = 32
	tokenChecksumLength = 6 // 62^6 > 2^32
	tokenBodyLength     = tokenIDLength + tokenSecretLength + tokenChecksumLength

	base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// tokenKind is a token's prefix.
type tokenKind string

// The kinds of token.
const (
	clientToken tokenKind = "sk-iop_"
	adminToken  tokenKind = "adm-iop_"
	joinToken   tokenKind = "njt-iop_"
)

// mint returns a fresh token of the kind and its public id.
func (k tokenKind) mint() (id, token string) {
	body := randomBase62(tokenIDLength + tokenSecretLength)
	unsummed := string(k) + body
	return body[:tokenIDLength], unsummed + checksum(unsummed)
}

// parse returns the public id of a token of the kind, as a part of the presented string; ok is false unless the
// presented string has exactly the form and a right checksum. It allocates nothing: it runs for every request.
func (k tokenKind) parse(presented string) (id string, ok bool) {
	if len(presented) != len(k)+tokenBodyLength || presented[:len(k)] != string(k) {
		return "", false
	}
	unsummed, sum := presented[:len(presented)-tokenChecksumLength], presented[len(presented)-tokenChecksumLength:]
	for i := len(k); i < len(unsummed); i++ {
		if !isBase62(unsummed[i]) {
			return "", false
		}
	}
	if want := checksumOf(unsummed); string(want[:]) != sum {
		return "", false
	}
	return presented[len(k) : len(k)+tokenIDLength], true
}

func isBase62(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
}

func checksum(s string) string {
	sum := checksumOf(s)
	return string(sum[:])
}

// checksumOf is CRC-32 (IEEE) in base62, most significant digit first. It walks the string itself because
// crc32.ChecksumIEEE would need it copied to the heap.
func checksumOf(s string) (digits [tokenChecksumLength]byte) {
	crc := ^uint32(0)
	for i := range len(s) {
		crc = crc32.IEEETable[byte(crc)^s[i]] ^ crc>>8
	}
	crc = ^crc
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = base62[crc%62]
		crc /= 62
	}
	return digits
}

// randomBase62 returns n uniformly random base62 digits.
func randomBase62(n int) string {
	// 248 is the largest multiple of 62 in a byte: a byte at or above it would favour the first digits.
	const limit = 248
	var out strings.Builder
	var random [64]byte
	for out.Len() < n {
		rand.Read(random[:]) // never fails: crypto/rand ends the process instead
		for _, b := range random {
			if b < limit && out.Len() < n {
				out.WriteByte(base62[b%62])
			}
		}
	}
	clear(random[:])
	return out.String()
}
