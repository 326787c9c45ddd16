package gateway

import (
	"strings"

	"iop/identity"
)

// viaPrefix begins the pseudonym of every Edge in a Via header.
const viaPrefix = "iop-"

// maxViaEdges bounds the Edges that one request may come through. Two or three in a row are a design, more are a loop
// that nobody else has noticed: through an Edge that keeps no trail, or one that restarts.
const maxViaEdges = 8

// maxPseudonym is the length of the longest pseudonym that an Edge can have, in bytes; longer ones are no Edge's.
const maxPseudonym = len(viaPrefix) + identity.MaxNameLength + len(".") + 2*pseudonymBytes

const pseudonymBytes = 8 // of the random part

// pseudonym returns what an Edge calls itself in Via (RFC 9110 section 7.6.3). Names are chosen by operators, and two Edges in
// one chain may have the same: a random part makes the pseudonym that of one process.
func pseudonym(edgeID string) string { return viaPrefix + edgeID + "." + randomHex(pseudonymBytes) }

// viaTrail reads a request's Via header. trail holds the members that Edges wrote, written anew, or is empty: what other
// proxies wrote is not the provider's business. looped reports that self is among them, or too many are.
func viaTrail(lines []string, self string) (trail string, looped bool) {
	edges := 0
	for _, line := range lines {
		for line != "" {
			var by string
			by, line = nextVia(line)
			if len(by) <= len(viaPrefix) || len(by) > maxPseudonym || !strings.EqualFold(by[:len(viaPrefix)], viaPrefix) {
				continue
			}
			if edges++; edges >= maxViaEdges || strings.EqualFold(by, self) {
				return "", true
			}
			if trail != "" {
				trail += ", "
			}
			trail += viaMember(by)
		}
	}
	return trail, false
}

func viaMember(by string) string { return "1.1 " + by }

// nextVia takes the first member off a Via field value and returns its received-by without the port. It is empty where the
// member is not of the RFC's form:
//
//	Via = #( received-protocol RWS received-by [ RWS comment ] )
func nextVia(line string) (by, rest string) {
	line = strings.TrimLeft(line, " \t,")
	protocol := leading(line, func(c byte) bool { return tokenByte(c) || c == '/' })
	after := strings.TrimLeft(line[len(protocol):], " \t")
	if len(after) == len(line)-len(protocol) {
		protocol = "" // no blank follows it
	}
	by = leading(after, tokenByte)
	rest = after[len(by):]
	if port := leading(rest, func(c byte) bool { return c == ':' || c >= '0' && c <= '9' }); strings.HasPrefix(port, ":") {
		rest = rest[len(port):]
	}
	if protocol == "" || rest != "" && !strings.ContainsRune(" \t,(", rune(rest[0])) {
		by = ""
	}
	return by, afterMember(rest)
}

// afterMember skips to behind the next comma that is in no comment. A comment that does not end takes the rest of the line.
func afterMember(s string) string {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case ',':
			return s[i+1:]
		case '(':
			i += commentLength(s[i:]) - 1
		}
	}
	return ""
}

// commentLength is the length of the comment that s begins with (RFC 9110 section 5.6.5).
func commentLength(s string) int {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(s)
}

// leading returns the longest beginning of s whose bytes are all in the class.
func leading(s string, class func(byte) bool) string {
	for i := range len(s) {
		if !class(s[i]) {
			return s[:i]
		}
	}
	return s
}

// tokenByte reports whether c may be in a token (RFC 9110 section 5.6.2).
func tokenByte(c byte) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return true
	}
	return strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}
