package web

import (
	"embed"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"

	"iop/gateway/admin"
)

// home is where the console lives. The session's cookie goes there and nowhere else.
const home = "/admin/"

// console serves the pages.
type console struct {
	parts    admin.Parts
	api      apiClient
	log      *slog.Logger
	sessions sessions
	pages    *pages
	history  history
}

//go:embed assets
var assets embed.FS

// New returns the console's handler, for everything on the admin listener that is not the API's. Each page but the one
// to sign in on asks for a session, which the admin token gives. It reads the Edge's metrics in the background until
// parts.Done is closed.
func New(parts admin.Parts) http.Handler {
	c := &console{parts: parts, api: apiClient{parts.API}, log: parts.Logger, pages: loadPages()}
	c.sessions.init()
	go c.sample()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, home, http.StatusSeeOther) })
	mux.HandleFunc("GET /admin", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, home, http.StatusSeeOther) })
	mux.Handle("GET /admin/assets/", c.assets())
	mux.HandleFunc("GET /admin/sign-in", c.signInPage)
	mux.HandleFunc("POST /admin/sign-in", c.signIn)
	mux.HandleFunc("POST /admin/sign-out", c.signOut)
	inside := http.NewServeMux()
	for _, p := range c.routes() {
		inside.HandleFunc(p.pattern, c.handle(p.serve))
	}
	inside.HandleFunc("/", c.notFound)
	mux.Handle(home, c.signedIn(inside))
	mux.HandleFunc("/", c.notFound)
	return secured(http.NewCrossOriginProtection().Handler(mux))
}

// page is one of the console's paths. serve returns an error to have it shown.
type page struct {
	pattern string
	serve   func(http.ResponseWriter, *http.Request) error
}

// routes is every path that needs a session.
func (c *console) routes() []page {
	return []page{
		{"GET /admin/{$}", c.overview},
		{"GET /admin/series", c.series},
		{"GET /admin/nodes", c.nodes},
		{"POST /admin/join-tokens", c.createJoinToken},
		{"POST /admin/join-tokens/{id}/revoke", c.revokeJoinToken},
		{"GET /admin/nodes/{node}", c.oneNode},
		{"POST /admin/nodes/{node}/drain", c.switchNode("drain")},
		{"POST /admin/nodes/{node}/resume", c.switchNode("resume")},
		{"GET /admin/nodes/{node}/ollama", c.ollamaModels},
		{"POST /admin/nodes/{node}/ollama/pull", c.pullModel},
		{"POST /admin/nodes/{node}/ollama/delete", c.deleteModel},
		{"GET /admin/runs", c.runs},
		{"GET /admin/runs/{id}", c.oneRun},
		{"POST /admin/runs/{id}/cancel", c.cancelRun},
		{"GET /admin/routes", c.routesPage},
		{"POST /admin/config/reload", c.reloadConfig},
		{"GET /admin/keys", c.keys},
		{"POST /admin/keys", c.createKey},
		{"GET /admin/keys/{id}", c.oneKey},
		{"POST /admin/keys/{id}", c.changeKey},
		{"POST /admin/keys/{id}/revoke", c.revokeKey},
		{"GET /admin/slots", c.slots},
		{"POST /admin/slots", c.setSlot},
		{"POST /admin/slots/{slot}/rotate", c.rotateSlot},
		{"POST /admin/slots/{slot}/enable", c.switchSlot("enable")},
		{"POST /admin/slots/{slot}/disable", c.switchSlot("disable")},
		{"POST /admin/slots/{slot}/revoke", c.switchSlot("revoke")},
		{"POST /admin/slots/{slot}/delete", c.switchSlot("delete")},
		{"GET /admin/usage", c.usage},
		{"GET /admin/usage/records", c.usageRecords},
		{"GET /admin/playground", c.playground},
		{"POST /admin/playground/chat", c.chat},
		{"GET /admin/audit", c.audit},
	}
}

// policy lets a page load and call nothing but this listener, and run no script that stands in it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// secured sets what every answer of the console has.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// assets serves the embedded files. They are the binary's: a browser asks again after an hour, and those with a version
// in their name never change.
func (c *console) assets() http.Handler {
	root, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) // embedded: it is there
	}
	files := http.StripPrefix("/admin/assets/", http.FileServerFS(root))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/") {
			c.notFound(w, r)
			return
		}
		w.Header().Set("Cache-Control", "private, max-age=3600")
		files.ServeHTTP(w, r)
	})
}
