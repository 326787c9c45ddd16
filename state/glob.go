package state

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxGlobLength bounds a route pattern, in bytes.
const maxGlobLength = 256

// Route patterns are globs over whole model names. '*' stands for any run of characters, none included, and unlike in
// package path also for '/', because model names have it in the middle ("meta-llama/Llama-3"). '?' stands for one
// character. All else stands for itself; letters count as they are written.

// CheckGlob refuses what can't be a pattern, and the signs that other glob languages give a meaning: a class or an
// escape that silently matched nothing would be a permission that nobody gets.
func CheckGlob(pattern string) error {
	switch {
	case pattern == "":
		return fmt.Errorf("a pattern must not be empty")
	case len(pattern) > maxGlobLength:
		return fmt.Errorf("a pattern must have at most %d bytes", maxGlobLength)
	case !utf8.ValidString(pattern):
		return fmt.Errorf("a pattern must be UTF-8")
	}
	for _, r := range pattern {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) {
			return fmt.Errorf("pattern %q holds a space or an unprintable character", pattern)
		}
		if strings.ContainsRune(`[]{}\,`, r) {
			return fmt.Errorf("pattern %q holds %q: only '*' and '?' have a meaning, and one of []{}\\, is no part of a model's name", pattern, r)
		}
	}
	return nil
}

// MatchGlob reports whether the pattern matches all of s. It is linear in practice and at worst len(pattern)*len(s):
// after a mismatch only the last '*' can be made longer.
func MatchGlob(pattern, s string) bool {
	star, mark := -1, 0 // the last '*', and where in s what it covers ends
	p, i := 0, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, i
			p++
		case p < len(pattern) && pattern[p] == '?':
			_, width := utf8.DecodeRuneInString(s[i:])
			p++
			i += width
		case p < len(pattern) && pattern[p] == s[i]:
			p++
			i++
		case star >= 0:
			mark++
			p, i = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
