package tunnel

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// What a peer says of itself ends in logs, tables and terminals. A control character there forges lines and moves
// cursors, a format character (Unicode category Cf, above all the bidirectional ones) hides what stands beside it.

// plain reports whether s may stand in a line of text.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' {
			return utf8.ValidString(s) && !strings.ContainsFunc(s, unfit)
		}
	}
	return true
}

func unfit(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029'
}

// truncate makes text fit for messages and logs: plain, and at most n bytes.
func truncate(s string, n int) string {
	if !plain(s) {
		s = strings.Map(func(r rune) rune {
			if unfit(r) {
				return utf8.RuneError
			}
			return r
		}, strings.ToValidUTF8(s, "\uFFFD"))
	}
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}
