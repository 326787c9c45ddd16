package web

import (
	"net"
	"net/http"
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

// publicBase is the base URL of the public API as this browser may reach it; browsed is the console's host.
func publicBase(browsed, listen string, certificate *admin.Certificate) string {
	host, _, err := net.SplitHostPort(browsed)
	if err != nil {
		host = strings.Trim(browsed, "[]")
	}
	return admin.PublicURL(listen, host, certificate)
}
