package web

import (
	"bytes"
	"cmp"
	"embed"
	"errors"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

//go:embed templates
var templates embed.FS

// pages are the parsed templates by name. A page's file defines "title" and "main"; what several pages show is in
// parts.html. A part of a page that is fetched alone is a template named by its page, as "nodes-live".
type pages struct{ byName map[string]*template.Template }

func loadPages() *pages {
	p := &pages{byName: map[string]*template.Template{}}
	names, err := fs.Glob(templates, "templates/*.html")
	if err != nil {
		panic(err) // the pattern is constant
	}
	common := template.Must(template.New("").Funcs(functions).ParseFS(templates, "templates/layout.html", "templates/parts.html"))
	for _, name := range names {
		switch base := strings.TrimSuffix(path.Base(name), ".html"); base {
		case "layout", "parts":
		default:
			p.byName[base] = template.Must(template.Must(common.Clone()).ParseFS(templates, name))
		}
	}
	return p
}

// frame is what the layout needs besides the page's own data.
type frame struct {
	Page string // the file's name: the item of the navigation that is current
	Data any
	// Self is the page's own path with its query, for what reloads it.
	Self string
}

// places says under which item of the navigation a page stands that is none itself.
var places = map[string]string{"key": "keys", "node": "nodes", "run": "runs"}

// show writes a whole page.
func (p *pages) show(w http.ResponseWriter, r *http.Request, status int, name string, data any) {
	p.write(w, status, name, "layout", frame{Page: cmp.Or(places[name], name), Data: data, Self: r.URL.RequestURI()})
}

// part writes one template of a page, for a browser that replaces a part of it.
func (p *pages) part(w http.ResponseWriter, name, part string, data any) {
	p.write(w, http.StatusOK, name, part, data)
}

func (p *pages) write(w http.ResponseWriter, status int, name, part string, data any) {
	var buf bytes.Buffer
	if err := p.byName[name].ExecuteTemplate(&buf, part, data); err != nil {
		http.Error(w, "Could not render the page: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(buf.Bytes()) // a browser that is gone is no news
}

// isPart reports whether the browser wants a part of the page alone.
func isPart(r *http.Request) bool { return r.Header.Get("Hx-Request") == "true" }

// handle shows the error of a page.
func (c *console) handle(serve func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := serve(w, r)
		if err == nil {
			return
		}
		status, fault := http.StatusInternalServerError, fault{Message: "Internal error. The Edge's log has the details."}
		if refused, ok := errors.AsType[*apiError](err); ok {
			status, fault.Message, fault.Code = refused.Status, refused.Body.Message, refused.Body.Code
		} else {
			c.log.Error("console", "path", r.URL.Path, "error", err)
		}
		if isPart(r) {
			c.pages.write(w, status, "fault", "notice", fault)
			return
		}
		c.pages.show(w, r, status, "fault", fault)
	}
}

// fault is an error as it is shown.
type fault struct{ Message, Code string }

func (c *console) notFound(w http.ResponseWriter, r *http.Request) {
	c.pages.show(w, r, http.StatusNotFound, "fault", fault{Message: "Page not found.", Code: "not_found"})
}
