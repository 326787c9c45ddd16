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
	"unauthorized":      `create a token with "iop join-token create --node NAME" at the Edge; in managed mode "iop node-list allow NAME"`,
	"token_expired":     `create a new one with "iop join-token create --node NAME" at the Edge`,
	"token_revoked":     `create a new one with "iop join-token create --node NAME" at the Edge`,
	"token_limit":       `give each Node its own token with "iop join-token create --node NAME" at the Edge, or raise --max-nodes and --max-sessions`,
	"edge_limit":        "the Edge is at a limit for Nodes; its log names the limit",
	"label_not_allowed": "use labels that the join token allows, or create another token with --label",
	"node_taken":        "revoke the other token at the Edge, or choose another --name",
	"node_reserved":     "use the join token that is bound to the name, or choose another --name",
	"wrong_node":        "use the name that the token or certificate was issued for",
	"flapping":          "two processes use this name: give one of them another --name",
	"stale_generation":  "nothing to do: the Node reconnects by itself",
	"identity_expired":  "issue a new certificate: iop ca issue --replace",
	"identity_revoked":  "if this was not intended, run iop node-list undeny at the Edge",
	"draining":          "nothing to do: the Edge is stopping, and the Node retries",
	"unavailable":       "check the Edge's log: the Edge can't read its state",
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
	code, _ := errorIn(body)
	return code
}

func errorIn(body []byte) (code, message string) {
	var answer struct {
		Error struct{ Code, Message string }
	}
	if json.Unmarshal(body, &answer) != nil {
		return "", ""
	}
	return answer.Error.Code, answer.Error.Message
}

// Answered says what is wrong with an answer to the request for a tunnel. body is its beginning.
func (a *Attempt) Answered(response *http.Response, body []byte) Finding {
	status := response.StatusCode
	code, message := errorIn(body)
	if step, ok := Refused(code); ok && message != "" {
		return find("tunnel", step, "the Edge answered: %s (%d): %s", code, status, message)
	} else if ok {
		return find("tunnel", step, "the Edge answered: %s (%d); the connection to it works", code, status)
	}
	if status == http.StatusBadRequest && wantsTLS(body) {
		if isSecure(a.URL) || response.Header.Get("Server") != "" && bytes.Contains(body, plainToTLS[0]) {
			// Go writes this page without headers: a proxy added its own.
			return find("tunnel", "have the proxy connect by TLS (nginx: proxy_pass https://...), or run the Edge without a certificate behind it",
				"a proxy in front of %s speaks plain HTTP to a server that requires TLS", hostOf(a.URL))
		}
		return a.speaksTLS(hostOf(a.URL))
	}
	by := cmp.Or(response.Header.Get("Server"), response.Header.Get("Via"), "something")
	if via := a.Via(); via != "" && !isSecure(a.URL) {
		by += fmt.Sprintf(" (the proxy %s, or a server behind it)", via)
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
		return find("tunnel", ownURL, "a WebSocket server answers at %s, but it is not an Edge", path)
	case code == "admin_listener":
		return find("tunnel", "use the port of IOP_EDGE_LISTEN (8480), in managed mode of IOP_EDGE_TUNNEL_LISTEN (8482)", "%s is the Edge's admin listener, which does not accept Nodes", hostOf(a.URL))
	case code == "unknown_path":
		return find("tunnel", "in managed mode Nodes connect to IOP_EDGE_TUNNEL_LISTEN (port 8482); in token mode the path is /tunnel/v1", "an Edge answers, but serves no tunnel at %s", path)
	case status >= 300 && status < 400:
		return find("tunnel", "if it leads to the Edge, use the URL that it leads to: redirects are not followed", "%s answered with a redirect (%d)", by, status)
	case status == http.StatusProxyAuthRequired:
		return find("proxy", "put the user name and password into HTTPS_PROXY", "the proxy requires authentication (407)")
	case status == http.StatusBadGateway, status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout:
		return find("tunnel", "start the Edge behind it, or correct where it forwards to", "%s answered %d: a proxy that can't reach an Edge", by, status)
	case status == http.StatusUpgradeRequired, status == http.StatusBadRequest, status == http.StatusMethodNotAllowed:
		return find("tunnel", "have the proxy forward Upgrade and Connection (nginx: proxy_http_version 1.1 and both headers)", "%s answered %d: the upgrade to a WebSocket was lost on the way", by, status)
	}
	return find("tunnel", ownURL, "%s answered %d and is not an Edge", by, status)
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
		return find("provider", "correct the key in the file given by key-file=", "%s rejects the key (%d)", where, status)
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return find("provider", "give its key with key-file=PATH", "%s requires a key (%d)", where, status)
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed:
		return find("provider", "correct its URL, the part before /v1; if it does not list its models, name them with models=a|b", "%s was not found (%d)", where, status)
	case isPage(header, body):
		return find("provider", "correct its URL: this is a web page, perhaps a user interface in front of the inference server", "%s answers with a web page (%d), not with a list of models", where, status)
	case status >= 300 && status < 400:
		return find("provider", "give the URL that it leads to: redirects are not followed", "%s answers with a redirect (%d)", where, status)
	case status >= 500:
		return find("provider", "check its log; it may still be loading", "%s fails (%d)", where, status)
	case status == http.StatusOK:
		return find("provider", "check that an inference server is there; if it does not list its models, name them with models=a|b", "%s answers, but not with a list of models", where)
	}
	return find("provider", "name its models with models=a|b", "%s does not list its models (%d)", where, status)
}

func isPage(header http.Header, body []byte) bool {
	begin := bytes.ToLower(bytes.TrimSpace(body[:min(len(body), 64)]))
	return bytes.HasPrefix(begin, []byte("<!doctype html")) || bytes.HasPrefix(begin, []byte("<html")) ||
		len(header.Get("Content-Type")) >= 9 && header.Get("Content-Type")[:9] == "text/html"
}
