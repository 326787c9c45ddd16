package web

import (
	"net"
	"net/http"
	"strings"
)

// publicBase is the base URL of the public API as this browser may reach it: its own idea of the host, with the public
// listener's port. Where something stands in front of the Edge, only the operator knows better.
func publicBase(r *http.Request, listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "http://" + listen
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		if host, _, err = net.SplitHostPort(r.Host); err != nil {
			host = strings.Trim(r.Host, "[]")
		}
	}
	return "http://" + net.JoinHostPort(host, port)
}
