package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"

	"iop/gateway"
	"iop/gateway/admin"
)

// welcome is what `iop edge` prints for a person who starts it on a terminal.
type welcome struct {
	first     bool   // the state was created just now
	baseURL   string // of the API, with /v1
	console   string
	tokenFile string // of the admin token
	// environment has the variables that the commands need to find this Edge; usually none.
	environment []string
	open        bool // no API key is needed
	managed     bool
}

// greet returns where a welcome goes: the terminal that the command's output, or else its log, is. Nil where there is none, as under
// systemd and Docker: then it would be noise in a log.
func greet(stdout, stderr io.Writer) io.Writer {
	for _, w := range []io.Writer{stdout, stderr} {
		if isTerminal(w) {
			return w
		}
	}
	return nil
}

func (c *edgeSettings) welcome(public, operators net.Addr, first bool) welcome {
	w := welcome{first: first, open: c.Auth == gateway.AuthNone, managed: c.managed()}
	w.baseURL = admin.PublicURL(public.String(), "127.0.0.1", c.shownCertificate()) + "/v1"
	adminURL := "http://" + dialable(operators.String())
	w.console = adminURL + "/admin/"
	path := strings.TrimPrefix(c.State, "sqlite://")
	w.tokenFile = filepath.Join(filepath.Dir(path), "admin-token")
	if c.State != defaultState {
		w.environment = append(w.environment, edgePrefix+"STATE="+shellWord(c.State))
	}
	if adminURL != defaultAdminURL {
		w.environment = append(w.environment, "IOP_ADMIN_URL="+shellWord(adminURL))
	}
	return w
}

// shownCertificate has the names of the public certificate; nil without TLS.
func (c *edgeSettings) shownCertificate() *admin.Certificate {
	if c.TLSCert == "" {
		return nil
	}
	shown := &admin.Certificate{}
	if pair, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey); err == nil && pair.Leaf != nil { // else the Edge has not started
		shown.Names = pair.Leaf.DNSNames
	}
	return shown
}

// shellWord is text as one word of a shell.
func shellWord(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("/:._-", r)
	}) {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}

// text is the welcome: the whole of it at the first start, a line later.
func (w *welcome) text() string {
	if !w.first {
		return onTerminal(fmt.Sprintf("  base URL %s, console %s, admin token in %s", w.baseURL, w.console, w.tokenFile)) + "\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n  base URL     %s\n  console      %s\n  admin token  %s\n\nNext, in another terminal:\n\n", onTerminal(w.baseURL), onTerminal(w.console), onTerminal(w.tokenFile))
	for _, variable := range w.environment {
		fmt.Fprintf(&b, "  export %s\n", onTerminal(variable))
	}
	if !w.open {
		b.WriteString("  iop key create --name alice              # an API key for a client\n")
	}
	if w.managed {
		b.WriteString("  iop node-list allow NAME                 # lets a Node connect\n")
	} else {
		b.WriteString("  iop join-token create --node NAME        # what a Node needs to join\n")
	}
	b.WriteString("\n")
	return b.String()
}

// print writes the welcome, without waiting for a terminal that is stopped (Ctrl-S). What it returns must be called at the end.
func (w *welcome) print(terminal io.Writer) (end func()) {
	if terminal == nil {
		return func() {}
	}
	out := gateway.NewLogWriter(terminal)
	fmt.Fprint(out, w.text())
	return func() { out.Close() }
}
