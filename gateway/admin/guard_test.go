package admin_test

import (
	"net/http"
	"strings"
	"testing"
)

const v1 = "/admin/v1"

func with(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func without(name string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Del(name) }
}

func TestNoTokenNothing(t *testing.T) {
	d := newDesk(t)
	twice := func(r *http.Request) { r.Header.Add("Authorization", "Bearer "+d.token) }
	for _, path := range []string{"/status", "/keys", "/openapi.yaml", "/nothing"} {
		for name, change := range map[string]func(*http.Request){
			"no token": without("Authorization"), "another": with("Authorization", "Bearer adm-iop_x"),
			"another scheme": with("Authorization", "Basic "+d.token), "two": twice,
		} {
			a := d.ask("GET", v1+path, "", change)
			if a.status != 401 || a.header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%s with %s: %d", path, name, a.status)
			}
		}
	}
	if a := d.ask("GET", "/healthz", "", without("Authorization")); a.status != 200 {
		t.Errorf("healthz: %d", a.status)
	}
}

// TestThreat61NoPageElsewhere: the token doesn't help a page of another origin, not even to read, and no answer invites one.
func TestThreat61NoPageElsewhere(t *testing.T) {
	d := newDesk(t)
	host := strings.TrimPrefix(d.server.URL, "http://")
	for _, foreign := range []func(*http.Request){
		with("Sec-Fetch-Site", "cross-site"), with("Sec-Fetch-Site", "same-site"), with("Origin", "https://evil.example"),
		with("Origin", "null"), with("Origin", "http://"+host+".evil.example"),
	} {
		d.refused(403, "cross_origin", "", "GET", v1+"/keys", "", foreign)
		d.refused(403, "cross_origin", "", "POST", v1+"/keys", `{"name":"x"}`, foreign)
		d.refused(403, "cross_origin", "", "POST", v1+"/config/reload", "", foreign)
		d.refused(403, "cross_origin", "", "OPTIONS", v1+"/keys", "", foreign, with("Access-Control-Request-Method", "POST"))
	}
	for _, own := range []func(*http.Request){
		with("Sec-Fetch-Site", "same-origin"), with("Sec-Fetch-Site", "none"), with("Origin", "http://"+host),
	} {
		a := d.ask("GET", v1+"/keys", "", own)
		for name := range a.header {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("the answer has %s", name)
			}
		}
		if a.status != 200 || a.header.Get("Cache-Control") != "no-store" || a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("of its own: %d %v", a.status, a.header)
		}
	}
}

func TestWrongMethod(t *testing.T) {
	d := newDesk(t)
	for path, allow := range map[string]string{
		"/status": "GET", "/keys": "GET, POST", "/keys/x": "GET, PATCH", "/keys/x/revoke": "POST", "/runs/x/cancel": "POST",
		"/nodes/x/drain": "POST", "/config/reload": "POST", "/config/check": "POST",
		"/slots": "GET", "/slots/x": "DELETE, GET, PUT", "/slots/x/rotate": "POST", "/profiles/x": "DELETE, GET, PUT",
		"/node-list/allowed/x": "DELETE, PUT", "/audit": "GET",
	} {
		for _, method := range []string{"GET", "POST", "PUT", "DELETE", "OPTIONS"} {
			if strings.Contains(allow, method) {
				continue
			}
			d.refused(405, "method_not_allowed", "", method, v1+path, "")
			if got := d.ask(method, v1+path, "").header.Get("Allow"); got != allow {
				t.Errorf("%s %s: Allow %q, want %q", method, path, got, allow)
			}
		}
	}
	if a := d.ask("HEAD", v1+"/status", ""); a.status != 200 {
		t.Errorf("HEAD: %d", a.status)
	}
	d.refused(404, "unknown_path", "", "GET", v1+"/nothing", "")
	d.refused(404, "unknown_path", "", "GET", v1+"/keys/a/b/c", "")
}

func TestWrongQueriesAndBodies(t *testing.T) {
	d := newDesk(t)
	for _, wrong := range []struct{ code, param, path string }{
		{"unknown_parameter", "verbose", "/status?verbose=1"},
		{"unknown_parameter", "stat", "/runs?stat=ended"},
		{"unknown_parameter", "limit", "/keys?limit=1"},
		{"unknown_parameter", "by", "/usage/records?by=key"},
		{"invalid_request", "state", "/runs?state=dead"},
		{"invalid_request", "outcome", "/runs?outcome=fine"},
		{"invalid_request", "limit", "/runs?limit=-1"},
		{"invalid_request", "limit", "/runs?limit=10001"},
		{"invalid_request", "limit", "/runs?limit=x"},
		{"invalid_request", "key", "/runs?key=a&key=b"},
		{"invalid_request", "", "/runs?key=%zz"},
		{"invalid_request", "by", "/usage?by=colour"},
		{"invalid_request", "by", "/usage?by=key,key"},
		{"invalid_request", "from", "/usage?from=yesterday"},
		{"invalid_request", "to", "/usage?to=2026-02-30"},
		{"invalid_request", "from", "/usage?from=2026-02-02&to=2026-02-02"},
		{"invalid_request", "format", "/usage/records?format=xml"},
	} {
		d.refused(400, wrong.code, wrong.param, "GET", v1+wrong.path, "")
	}
	d.refused(400, "unknown_parameter", "force", "POST", v1+"/runs/run_active/cancel?force", "")
	for _, body := range []string{`{`, `[]`, `{"name":"x"} {}`} {
		d.refused(400, "invalid_request", "", "POST", v1+"/keys", body)
	}
	d.refused(400, "invalid_request", "", "POST", v1+"/config/reload", `{}`)
	form := with("Content-Type", "application/x-www-form-urlencoded")
	d.refused(415, "unsupported_media_type", "", "POST", v1+"/keys", `{"name":"x"}`, form)
	d.refused(415, "unsupported_media_type", "", "POST", v1+"/keys", `{"name":"x"}`, with("Content-Type", "text/plain"))
	d.refused(415, "unsupported_media_type", "", "POST", v1+"/keys", "", without("Content-Type"))
	d.refused(415, "unsupported_media_type", "", "POST", v1+"/config/check", goodConfig)
	d.refused(413, "body_too_large", "", "POST", v1+"/keys", `{"name":"`+strings.Repeat("x", 64<<10)+`"}`)
	d.refused(413, "body_too_large", "", "POST", v1+"/config/check", strings.Repeat("#", 1<<20+1), yaml)
	if keys, err := d.store.Keys(t.Context()); err != nil || len(keys) != 0 {
		t.Errorf("%d keys were made: %v", len(keys), err)
	}
}
