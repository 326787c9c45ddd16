package lease

import (
	"errors"
	"net/url"
	"path"
	"strconv"
	"strings"
)

// Target is where a credential may go: http or https, a host, perhaps a port, perhaps a base path, in one spelling only,
// so that two of them are the same place exactly if they are equal. The zero value is invalid.
type Target string

// maxTargetLength bounds a Target in bytes.
const maxTargetLength = 512

var errTarget = errors.New("a target must be http(s)://host[:port][/path] of visible ASCII, without user, query, fragment, escapes and dot segments")

// ParseTarget brings an address into the spelling of a Target: scheme and host in lower case, no port where it is the
// scheme's own, no slash at the end. A path's last "/v1" goes, as in the Node's providers: operations carry their own.
func ParseTarget(address string) (Target, error) {
	if len(address) > maxTargetLength || strings.ContainsFunc(address, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '\\' || r == '%' }) {
		return "", errTarget
	}
	u, err := url.Parse(address)
	if err != nil || u.Opaque != "" || u.User != nil || strings.ContainsAny(address, "?#") {
		return "", errTarget // err would repeat the address, and a password in it
	}
	scheme, host, err := u.Scheme, u.Hostname(), checkPort(u)
	if err != nil || host == "" || (scheme != "http" && scheme != "https") {
		return "", errTarget
	}
	base := strings.TrimRight(strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1"), "/")
	if base != "" && path.Clean(base) != base || strings.HasSuffix(base, "/v1") { // of two only one would go
		return "", errTarget
	}
	host = strings.ToLower(host)
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port := u.Port(); port != "" && !ownPort(scheme, port) {
		host += ":" + port
	}
	return Target(scheme + "://" + host + base), nil
}

// checkPort refuses an empty port, and one that is no number or is written with a leading zero.
func checkPort(u *url.URL) error {
	port := u.Port()
	if port == "" {
		if strings.HasSuffix(u.Host, ":") {
			return errTarget
		}
		return nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		return errTarget
	}
	return nil
}

func ownPort(scheme, port string) bool {
	return scheme == "http" && port == "80" || scheme == "https" && port == "443"
}

// Validate reports whether the Target is in its one spelling.
func (t Target) Validate() error {
	if same, err := ParseTarget(string(t)); err != nil || same != t {
		return errTarget
	}
	return nil
}
