package reach

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
)

// MaxBody is how much of an answer's body Answered needs, in bytes.
const MaxBody = 4096

// refusals are what to do about an Edge's refusals of a Node, by code.
var refusals = map[string]string{
	"unauthorized":      `make a token with "iop join-token create --node NAME" at the Edge; in managed mode "iop node-list allow NAME"`,
	"token_expired":     `make another one with "iop join-token create --node NAME" at the Edge`,
	"token_revoked":     `make another one with "iop join-token create --node NAME" at the Edge`,
	"token_limit":       `give Nodes tokens of their own with "iop join-token create --node NAME" at the Edge, or raise --max-nodes and --max-sessions`,
	"edge_limit":        "the Edge has as many Nodes as it can hold: its log says which limit",
	"label_not_allowed": "use labels that the join token allows, or make another token with --label",
	"node_taken":        "revoke the other token at the Edge, or choose another --name",
	"node_reserved":     "use the join token that is bound to the name, or choose another --name",
	"wrong_node":        "use the name that the token or the certificate is for",
	"flapping":          "two processes use this name: give one of them another --name",
	"stale_generation":  "nothing: the Node connects again by itself",
	"identity_expired":  "issue another certificate: iop ca issue --replace",
	"identity_revoked":  "iop node-list undeny at the Edge, if it was not meant",
	"draining":          "nothing: the Edge is stopping, and the Node tries again",
	"unavailable":       "look at the Edge's log: its state can't be asked",
	"bad_request":       "run the same version of iop at both ends",
	"too_fast":          "run the same version of iop at both ends",
}

// Refused returns what to do about a refusal of the Edge's, by its code; known is false for a code that no Edge gives a Node.
func Refused(code string) (do string, known bool) {
	do, known = refusals[code]
	return do, known
}

// Code is the code in an error of OpenAI's form, which Edges answer with too; empty if the body is none.
func Code(body []byte) string {
	var answer struct{ Error struct{ Code string } }
	if json.Unmarshal(body, &answer) != nil {
		return ""
	}
	return answer.Error.Code
}

// Answered says what is wrong with an answer to the request for a tunnel. body is its beginning.
func (a *Attempt) Answered(response *http.Response, body []byte) Finding {
	status, code := response.StatusCode, Code(body)
	if step, ok := Refused(code); ok {
		return find("tunnel", step, "the Edge answered: %s (%d); so the way to it is open", code, status)
	}
	if !isSecure(a.URL) && status == http.StatusBadRequest && wantsTLS(body) {
		return a.speaksTLS(hostOf(a.URL))
	}
	by := cmp.Or(response.Header.Get("Server"), response.Header.Get("Via"), "something")
	if via := a.Via(); via != "" && !isSecure(a.URL) {
		by += fmt.Sprintf(" (the proxy %s, or what is behind it)", via)
	}
	return a.notEdge(status, code, by)
}

// ownURL is what to do where an answer is not an Edge's.
const ownURL = "give the Edge's own URL, wss://host/tunnel/v1"

// notEdge is about an answer that is no Edge's word on a Node.
func (a *Attempt) notEdge(status int, code, by string) Finding {
	path := cmp.Or(a.URL.Path, "/")
	switch {
	case status == http.StatusSwitchingProtocols:
		return find("tunnel", ownURL, "a WebSocket is served at %s, but not an Edge's", path)
	case code == "admin_listener":
		return find("tunnel", "use the port of IOP_EDGE_LISTEN (8480), in managed mode of IOP_EDGE_TUNNEL_LISTEN (8482)", "%s is the Edge's admin listener, which takes no Nodes", hostOf(a.URL))
	case code == "unknown_path":
		return find("tunnel", "in managed mode Nodes come to IOP_EDGE_TUNNEL_LISTEN (port 8482); in token mode the path is /tunnel/v1", "an Edge answers, but has no tunnel at %s", path)
	case status >= 300 && status < 400:
		return find("tunnel", "give the URL that it leads to, if that is the Edge: redirects are not followed", "%s answered with a redirect (%d)", by, status)
	case status == http.StatusProxyAuthRequired:
		return find("proxy", "put user and password into HTTPS_PROXY", "the proxy wants to know who asks (407)")
	case status == http.StatusBadGateway, status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout:
		return find("tunnel", "start the Edge behind it, or have it lead there", "%s answered %d: a proxy that does not reach an Edge", by, status)
	case status == http.StatusUpgradeRequired, status == http.StatusBadRequest, status == http.StatusMethodNotAllowed:
		return find("tunnel", "have the proxy pass Upgrade and Connection on (nginx: proxy_http_version 1.1 and both headers)", "%s answered %d: the upgrade to a WebSocket was lost on the way", by, status)
	}
	return find("tunnel", ownURL, "%s answered %d, and is no Edge", by, status)
}

// plainToTLS are the pages with which web servers answer plain HTTP at a port for TLS: Go and Caddy, nginx, Apache. They are the
// only sign of it: the status, 400, has many causes.
var plainToTLS = [][]byte{
	[]byte("Client sent an HTTP request to an HTTPS server"),
	[]byte("The plain HTTP request was sent to HTTPS port"),
	[]byte("speaking plain HTTP to an SSL-enabled server port"),
}

func wantsTLS(body []byte) bool {
	for _, page := range plainToTLS {
		if bytes.Contains(body, page) {
			return true
		}
	}
	return false
}

// List says what is wrong with a provider's answer to the question for its models: any but 200 with a list. hasKey says that a key
// was sent.
func (a *Attempt) List(status int, header http.Header, body []byte, hasKey bool) Finding {
	where := a.URL.Redacted()
	switch {
	case !isSecure(a.URL) && status == http.StatusBadRequest && wantsTLS(body):
		return a.speaksTLS(hostOf(a.URL))
	case (status == http.StatusUnauthorized || status == http.StatusForbidden) && hasKey:
		return find("provider", "correct the key in the file of key-file=", "%s does not accept the key that it was sent (%d)", where, status)
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return find("provider", "give its key with key-file=PATH", "%s wants a key (%d)", where, status)
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed:
		return find("provider", "correct its URL, which is what stands before /v1; if it has no list, name its models with models=a|b", "%s is not there (%d)", where, status)
	case isPage(header, body):
		return find("provider", "correct its URL: that is a web page's, perhaps of a user interface in front of the inference server", "%s answers with a web page (%d), not with a list of models", where, status)
	case status >= 300 && status < 400:
		return find("provider", "give the URL that it leads to: redirects are not followed", "%s answers with a redirect (%d)", where, status)
	case status >= 500:
		return find("provider", "look at its log; it may still be loading", "%s fails (%d)", where, status)
	case status == http.StatusOK:
		return find("provider", "check that an inference server is there; if it has no list, name its models with models=a|b", "%s answers, but not with a list of models", where)
	}
	return find("provider", "name its models with models=a|b", "%s gives no list of models (%d)", where, status)
}

func isPage(header http.Header, body []byte) bool {
	begin := bytes.ToLower(bytes.TrimSpace(body[:min(len(body), 64)]))
	return bytes.HasPrefix(begin, []byte("<!doctype html")) || bytes.HasPrefix(begin, []byte("<html")) ||
		len(header.Get("Content-Type")) >= 9 && header.Get("Content-Type")[:9] == "text/html"
}
