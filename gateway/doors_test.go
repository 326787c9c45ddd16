package gateway_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"iop/gateway"
)

// TestConnectionsAreCounted: by kind, over TLS and in the clear, HTTP/1.1 and HTTP/2; a balancer's question takes no
// client's place, and nothing is left when all have gone.
func TestConnectionsAreCounted(t *testing.T) {
	cert, key, pool := certificate(t)
	for _, secure := range []bool{true, false} {
		for _, version := range []int{1, 2} {
			t.Run(fmt.Sprintf("TLS %v HTTP/%d", secure, version), func(t *testing.T) {
				e := newEdge(t, func(c *gateway.Config) {
					if secure {
						c.TLSCert, c.TLSKey = cert, key
					}
				})
				protocols := new(http.Protocols)
				protocols.SetHTTP1(version == 1)
				protocols.SetHTTP2(version == 2 && secure)
				protocols.SetUnencryptedHTTP2(version == 2 && !secure)
				transport := &http.Transport{Protocols: protocols, TLSClientConfig: &tls.Config{RootCAs: pool}}
				client := &http.Client{Transport: transport}
				get := func(path string) {
					req := e.request(http.MethodGet, path, "")
					if secure {
						req.URL.Scheme = "https"
					}
					res, err := client.Do(req)
					if err != nil {
						t.Fatal(err)
					}
					_, _ = io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
				kinds := func(want string) {
					t.Helper()
					e.eventually("connections are "+want, func() bool { return e.connections("public") == want })
				}
				get("/readyz")
				kinds("fresh 1, busy 0, idle 0, tunnel 0")
				get("/v1/models")
				kinds("fresh 0, busy 0, idle 1, tunnel 0")
				transport.CloseIdleConnections()
				kinds("fresh 0, busy 0, idle 0, tunnel 0")
			})
		}
	}
}

// TestStrangersHoldNoPlace: whatever a connection without a valid key or token asks for, it does not become a client's.
func TestStrangersHoldNoPlace(t *testing.T) {
	e := newEdge(t, nil)
	public, operators := e.url(""), "http://"+e.server.AdminAddr().String()
	for _, test := range []struct{ listener, base, method, path, secret string }{
		{"public", public, http.MethodGet, "/v1/models", "wrong"},
		{"public", public, http.MethodPost, chat, "wrong"},
		{"public", public, http.MethodGet, "/nothing", ""},
		{"public", public, http.MethodGet, "/", ""},
		{"public", public, http.MethodGet, "/api/version", "wrong"},
		{"admin", operators, http.MethodGet, "/admin/v1/status", "wrong"},
		{"admin", operators, http.MethodGet, "/metrics", ""},
	} {
		t.Run(test.method+" "+test.path, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), test.method, test.base+test.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if test.secret != "" {
				req.Header.Set("Authorization", "Bearer "+test.secret)
			}
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			res, err := transport.RoundTrip(req) // redirects are not followed
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			_, _ = io.Copy(io.Discard, res.Body)
			if got := e.connections(test.listener); strings.HasPrefix(got, "fresh 0") || !strings.Contains(got, "busy 0, idle 0") {
				t.Errorf("after %s: %s", res.Status, got)
			}
		})
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, operators+"/admin/v1/status", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+e.admin)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	e.eventually("an operator's connection has a place", func() bool { return strings.Contains(e.connections("admin"), "busy 0, idle 1") })
}

// connections are the numbers of a listener's, by kind.
func (e *edge) connections(listener string) string {
	var all []string
	for _, kind := range []string{"fresh", "busy", "idle", "tunnel"} {
		all = append(all, fmt.Sprint(kind, " ", e.metric(fmt.Sprintf("iop_connections{kind=%q,listener=%q}", kind, listener))))
	}
	return strings.Join(all, ", ")
}

// TestNodesOfManagedModeAreCounted: at their own listener.
func TestNodesOfManagedModeAreCounted(t *testing.T) {
	m := newManaged(t, "routes: [{model: m}]")
	m.join(&leasedNode{serve: answerJSON(200, `{}`)}, "n1")
	m.eventually("the Node's connection is counted", func() bool { return m.connections("tunnel") == "fresh 0, busy 0, idle 0, tunnel 1" })
	if got := m.edge.metric(`iop_connections_limit{kind="tunnels",listener="public"}`); got != 0 {
		t.Errorf("the public listener keeps %d places for Nodes", got)
	}
}
