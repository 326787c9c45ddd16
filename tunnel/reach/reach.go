// Package reach says why a server could not be reached, or what answered in its place, and what to do about it. The Node's log
// and "iop doctor" take their findings from here, so both say the same.
//
// An error of net/http or an HTTP answer enters. Errors are recognised by type, never by text. The package opens no connection
// and logs nothing.
package reach

import (
	"fmt"
	"net/url"
	"strings"

	"iop/execution/safetext"
)

// Finding is one fault on the way to a server, and the next step. It holds no secret, and only printable characters.
type Finding struct {
	About string // what it concerns: "tunnel", "provider", "tls" or "proxy"
	Found string // the fault
	Do    string // what to do about it
}

// Error returns both sentences on one line.
func (f *Finding) Error() string { return f.Found + "; " + f.Do }

// maxText bounds a Finding's texts: errors may quote what a stranger sent.
const maxText = 500

// find makes a Finding whose texts may be shown anywhere.
func find(about, do, format string, args ...any) Finding {
	return Finding{About: about, Found: printable(fmt.Sprintf(format, args...)), Do: printable(do)}
}

// printable makes text fit for a log and a terminal.
func printable(s string) string {
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "..."
	}
	return safetext.Escape(safetext.MaskKeys(s))
}

// Peer is a server that is dialed, in the words of the settings that lead to it.
type Peer struct {
	about         string // of Findings that concern neither TLS nor a proxy
	plain, secure string // schemes of its URL
	start         string // what to do where nothing listens
	trust         string // how to give the authority of its certificate
}

// Edge is the Edge, as a Node dials it.
var Edge = Peer{
	about: "tunnel", plain: "ws://", secure: "wss://",
	start: "start the Edge, or correct host and port; a firewall that rejects connections looks the same",
	trust: "if the certificate is from your own authority, give it with IOP_NODE_CA; if not, the connection may be intercepted",
}

// Provider is an inference server, as a Node calls it.
var Provider = Peer{
	about: "provider", plain: "http://", secure: "https://",
	start: "start it, or correct its URL; in a container 127.0.0.1 is the container itself",
	trust: "if the certificate is from your own authority, give it with ca=PATH in --provider; if not, the connection may be intercepted",
}

// hostOf is the host and port of a URL, the port being there even where the URL leaves it out.
func hostOf(u *url.URL) string {
	if u.Port() != "" {
		return u.Host
	}
	if u.Scheme == "https" || u.Scheme == "wss" {
		return u.Host + ":443"
	}
	return u.Host + ":80"
}

// isSecure reports whether a URL asks for TLS.
func isSecure(u *url.URL) bool { return u.Scheme == "https" || u.Scheme == "wss" }
