package admin

import (
	"net"
	"slices"
	"strings"
)

// PublicURL is scheme://host[:port] of the public listener as clients may reach it: by a name of its certificate where the listener's
// address says nothing, else by that address; otherwise is the host for a listener on all addresses without such a name. certificate
// is nil without TLS. Where something stands in front of the Edge, only the operator knows better.
func PublicURL(listen, otherwise string, certificate *Certificate) string {
	scheme, standard := "http://", "80"
	if certificate != nil {
		scheme, standard = "https://", "443"
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return scheme + listen
	}
	ip := net.ParseIP(host)
	everywhere := host == "" || ip != nil && ip.IsUnspecified()
	name := certifiedName(certificate)
	switch {
	case name != "" && (everywhere || host == "localhost" || ip != nil && ip.IsLoopback()):
		host = name
	case everywhere:
		host = otherwise
	}
	switch {
	case port != standard:
		return scheme + net.JoinHostPort(host, port)
	case strings.Contains(host, ":"):
		return scheme + "[" + host + "]"
	}
	return scheme + host
}

// certifiedName is the first name of a certificate that is one host's, and not its address; empty: there is none.
func certifiedName(certificate *Certificate) string {
	if certificate == nil {
		return ""
	}
	i := slices.IndexFunc(certificate.Names, func(name string) bool { return !strings.Contains(name, "*") && net.ParseIP(name) == nil })
	if i < 0 {
		return ""
	}
	return certificate.Names[i]
}
