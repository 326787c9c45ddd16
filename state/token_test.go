package state

import (
	"hash/crc32"
	"strings"
	"testing"
)

var tokenKinds = []tokenKind{clientToken, adminToken, joinToken}

func TestMint(t *testing.T) {
	seen := make(map[string]bool)
	digits := make(map[byte]int)
	for _, kind := range tokenKinds {
		for range 500 {
			id, token := kind.mint()
			parsed, ok := kind.parse(token)
			if !ok || parsed != id || len(token) != len(kind)+46 || !strings.HasPrefix(token, string(kind)+id) {
				t.Fatalf("%s token %q has id %q, parses as %q, %v", kind, token, id, parsed, ok)
			}
			if seen[id] {
				t.Fatalf("id %q came twice", id)
			}
			seen[id] = true
			for i := len(kind); i < len(token)-tokenChecksumLength; i++ {
				digits[token[i]]++
			}
			for _, other := range tokenKinds {
				if _, ok := other.parse(token); ok != (other == kind) {
					t.Errorf("a %s token as %s: %v", kind, other, ok)
				}
			}
		}
	}
	// 60 000 digits, 968 of each expected, standard deviation 31.
	for i := range len(base62) {
		if n := digits[base62[i]]; n < 750 || n > 1200 {
			t.Errorf("digit %q came %d times", base62[i], n)
		}
	}
}

// The checksum is the CRC-32 that everyone has, so that a scanner can check a token that it found.
func TestChecksum(t *testing.T) {
	for _, s := range []string{"", "a", "sk-iop_0123456789", strings.Repeat("z", 100)} {
		value := uint32(0)
		for _, digit := range []byte(checksum(s)) {
			value = value*62 + uint32(strings.IndexByte(base62, digit))
		}
		if want := crc32.ChecksumIEEE([]byte(s)); value != want {
			t.Errorf("checksum of %q is %d, want %d", s, value, want)
		}
	}
}

// Any single wrong, missing or swapped character is found before a look-up.
func TestParseFindsTypingErrors(t *testing.T) {
	_, token := clientToken.mint()
	for i := range token {
		for _, c := range "0aZ_-\x00\xff " {
			typo := token[:i] + string(c) + token[i+1:]
			if _, ok := clientToken.parse(typo); ok && typo != token {
				t.Errorf("%q passes for %q", typo, token)
			}
		}
		if _, ok := clientToken.parse(token[:i] + token[i+1:]); ok {
			t.Errorf("passes without character %d", i)
		}
		if i > 0 && token[i] != token[i-1] {
			swapped := token[:i-1] + token[i:i+1] + token[i-1:i] + token[i+1:]
			if _, ok := clientToken.parse(swapped); ok {
				t.Errorf("passes with characters %d and %d swapped", i-1, i)
			}
		}
	}
	for _, s := range []string{"", " " + token, token + " ", token + "\n", strings.ToUpper(token), "Bearer " + token} {
		if _, ok := clientToken.parse(s); ok {
			t.Errorf("%q passes", s)
		}
	}
}

func TestParseAllocatesNothing(t *testing.T) {
	_, token := clientToken.mint()
	if n := testing.AllocsPerRun(100, func() { clientToken.parse(token) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// What is accepted has exactly one spelling: no two strings are the same token.
func FuzzParseToken(f *testing.F) {
	for _, kind := range tokenKinds {
		_, token := kind.mint()
		f.Add(token)
		f.Add(token[:len(token)-1])
		f.Add(string(kind))
		f.Add(string(kind) + strings.Repeat("0", tokenBodyLength))
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, kind := range tokenKinds {
			id, ok := kind.parse(s)
			if !ok {
				if id != "" {
					t.Errorf("refused, but with id %q", id)
				}
				continue
			}
			if len(id) != tokenIDLength || len(s) != len(kind)+tokenBodyLength || !strings.HasPrefix(s, string(kind)+id) {
				t.Errorf("%q parses as %q", s, id)
			}
			if strings.ContainsFunc(s[len(kind):], func(r rune) bool { return !strings.ContainsRune(base62, r) }) {
				t.Errorf("%q is not base62", s)
			}
			if rebuilt := s[:len(s)-tokenChecksumLength]; rebuilt+checksum(rebuilt) != s {
				t.Errorf("%q has a second spelling", s)
			}
		}
	})
}
