package web

import (
	"net"
	"net/http"
	"slices"
	"strings"

	"iop/gateway/admin"
)

// base asks the Edge for its certificate, and returns publicBase.
func (c *console) base(r *http.Request) (string, error) {
	var edge admin.Status
	if err := c.api.get(r.Context(), "/status", nil, &edge); err != nil {
		return "", err
	}
	return publicBase(r.Host, c.parts.Listen(), edge.Certificate), nil
}

// publicBase is the base URL of the public API as this browser may reach it: a name of the public listener's certificate, or else the
// browser's own idea of the host, with the listener's port. certificate is nil without TLS. Where something stands in front of the
// Edge, only the operator knows better.
func publicBase(browsed, listen string, certificate *admin.Certificate) string {
	scheme := "http://"
	if certificate != nil {
		scheme = "https://"
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
		if host, _, err = net.SplitHostPort(browsed); err != nil {
			host = strings.Trim(browsed, "[]")
		}
	}
	return scheme + net.JoinHostPort(host, port)
}

// certifiedName is the first name of a certificate that is one host's, and not its address; empty: there is none.
func certifiedName(certificate *admin.Certificate) string {
	if certificate == nil {
		return ""
	}
	i := slices.IndexFunc(certificate.Names, func(name string) bool { return !strings.Contains(name, "*") && net.ParseIP(name) == nil })
	if i < 0 {
		return ""
	}
	return certificate.Names[i]
}
