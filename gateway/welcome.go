package gateway

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
)

// The page that a browser gets at the root. It is the same for everyone and needs no key: it holds no version, no model and
// nothing else of this Edge but the address that the browser used.
var (
	//go:embed welcome/page.html
	welcomeHTML string
	//go:embed welcome/page.css
	welcomeCSS string
	//go:embed welcome/page.js
	welcomeJS string

	welcomePage   = template.Must(template.New("welcome").Parse(welcomeHTML))
	welcomePolicy = "default-src 'none'; style-src " + cspHash(welcomeCSS) + "; script-src " + cspHash(welcomeJS) +
		"; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

// cspHash is the source expression that allows this very text (CSP Level 3, section 2.3.1).
func cspHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// serveRoot answers at "/": browsers get a page that says what this is, and all others what Ollama's clients ask for.
func (s *Server) serveRoot(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept")
	if r.Method != http.MethodGet && r.Method != http.MethodHead || !wantsPage(r.Header["Accept"]) {
		s.serveRunning(w, r)
		return
	}
	var page bytes.Buffer
	err := welcomePage.Execute(&page, map[string]any{
		"CSS": template.CSS(welcomeCSS), "JS": template.JS(welcomeJS), "Origin": originOf(r),
	})
	if err != nil {
		s.log.Error("the page at / can't be made", "error", err)
		plain(w, http.StatusInternalServerError, "internal error\n")
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(page.Len()))
	h.Set("Content-Security-Policy", welcomePolicy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store") // it repeats Host: a cache must not keep one client's for another
	_, _ = w.Write(page.Bytes())
}

// wantsPage reports whether the client names HTML among what it accepts, as browsers do. */* is every other client's.
func wantsPage(accept []string) bool {
	for _, line := range accept {
		for member := range strings.SplitSeq(line, ",") {
			kind, params, _ := strings.Cut(member, ";")
			if strings.EqualFold(strings.TrimSpace(kind), "text/html") {
				q := strings.ReplaceAll(strings.ToLower(params), " ", "")
				return !strings.HasPrefix(q, "q=0") || strings.Trim(q[3:], "0.") != ""
			}
		}
	}
	return false
}

// originOf is the address by which the client reached the Edge, as far as the request shows it. It is for display to that
// client: Host and X-Forwarded-Proto are its own words, or its proxy's. In a browser the page's script has the last word.
func originOf(r *http.Request) string {
	scheme := "http"
	if r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		scheme = "https"
	}
	if !isPlainHost(r.Host) {
		return scheme + "://EDGE"
	}
	return scheme + "://" + r.Host
}

// isPlainHost reports whether a Host header is a name or an address with perhaps a port, and nothing that a shell, a string of
// Python or a page could take for more: people copy what holds it.
func isPlainHost(hostport string) bool {
	host := hostport
	if h, port, err := net.SplitHostPort(hostport); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return false
		}
		if host = h; strings.HasPrefix(hostport, "[") {
			ip, err := netip.ParseAddr(h)
			return err == nil && ip.Is6() && ip.Zone() == ""
		}
	} else if h, ok := strings.CutPrefix(hostport, "["); ok {
		ip, err := netip.ParseAddr(strings.TrimSuffix(h, "]"))
		return err == nil && ip.Is6() && ip.Zone() == "" && strings.HasSuffix(h, "]")
	}
	return host != "" && len(host) <= 253 && strings.Trim(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == "" &&
		!strings.HasPrefix(host, "-")
}
