package web_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"iop/execution"
	"iop/gateway/admin"
	"iop/web"
)

// evil is what a model, a Node or an error may be called by who means harm.
const evil = `<img src=x onerror=alert(1)>"'><script>alert(2)</script>`

// evilEdge answers as the admin API does, with names that mean harm wherever there is a name.
func evilEdge() http.Handler {
	at := time.Now()
	session := admin.Session{
		Generation: 3, Current: true, State: evil, Remote: evil, JoinToken: evil, Version: evil, Labels: map[string]string{evil: evil}, Since: at,
		Providers: []admin.Provider{{ID: evil, Adapter: evil, Health: evil, Models: []string{evil}}},
	}
	node := admin.Node{
		Node: evil, State: evil, LastCause: evil, Sessions: []admin.Session{session},
		History: []admin.EndedSession{{Generation: 2, Cause: evil, Remote: evil, Since: at, Until: at}},
	}
	capabilities := admin.NodeCapabilities{Node: evil, Providers: []admin.Capability{{
		ID: evil, Adapter: evil, Engine: "ollama", EngineVersion: evil, Health: evil, Operations: []string{evil}, OperationsKnown: true,
		Models: []admin.CapabilityModel{{ID: evil, Loaded: true}},
	}}}
	models, err := json.Marshal(map[string]any{"models": []any{map[string]any{"name": evil, "details": map[string]string{"parameter_size": evil, "quantization_level": evil}}}})
	if err != nil {
		panic(err) // of strings
	}
	run := admin.Run{ID: evil, RequestID: evil, Key: evil, KeyName: evil, Principal: evil, Route: evil, Operation: evil, Model: evil, State: "active", Phase: evil, Code: evil,
		Detail: evil, Started: at, Node: evil, Provider: evil, Reason: evil, Usage: &execution.Usage{Input: 1}}
	key := admin.Key{ID: evil, Name: evil, Owner: evil, Principal: evil, Routes: []string{evil}, Unmatched: []admin.UnmatchedModel{{Pattern: evil, Similar: evil}}}
	route := admin.Route{Name: evil, Aliases: []string{evil}, Policy: evil, Principals: []string{evil}, Groups: []admin.Group{
		{When: evil, Targets: []admin.Target{{Node: evil, Provider: evil, Model: evil, Breaker: evil, InService: true}}},
		{When: evil, Selects: []admin.TargetSpec{{Node: evil, Provider: evil, Model: evil}}},
	}}
	file := admin.ConfigStatus{Path: evil, Fault: &admin.ConfigFault{Message: evil, Faults: []admin.FileFault{{File: evil, Path: evil, Message: evil}}}}
	status := admin.Status{Version: evil, Models: []string{evil}, Flapping: []string{evil}, Config: file,
		Refused:     []admin.RefusedNode{{Node: evil, Source: evil, Code: evil, Message: evil, Remedy: evil, Proven: true, Last: at}, {Node: evil, Source: evil, Code: evil, Message: evil, Last: at}},
		Certificate: &admin.Certificate{File: evil, Names: []string{evil}, NotAfter: at, Fault: evil},
		StateFault:  &admin.StateFault{Fault: evil, Message: evil, Refusing: true}}
	config := admin.Configuration{ConfigStatus: file, AdvertisedModels: evil, Coverage: admin.Coverage{
		Unrouted: []string{evil}, Reserved: []admin.ReservedModel{{Model: evil, Route: evil}},
		Missing: []admin.MissingTarget{{Route: evil, TargetSpec: admin.TargetSpec{Node: evil, Provider: evil, Model: evil}, Similar: evil}},
		Absent:  []admin.AbsentPrincipal{{Route: evil, Principal: evil, Similar: evil}}, Slots: []admin.AbsentSlot{{Route: evil, Slot: evil, Similar: evil}}, Unknown: []admin.UnknownParameter{{Route: evil, Path: evil, Similar: evil}},
	}}
	answers := map[string]any{
		"/status": status, "/config": config, "/nodes": list(node), "/runs": list(run), "/keys": list(key), "/routes": list(route),
		"/queue":       list(admin.Queue{Route: evil, Principals: []admin.QueuedPrincipal{{Principal: evil, Name: evil}}}),
		"/join-tokens": list(admin.JoinToken{ID: evil, Node: evil}),
		"/slots":       list(admin.Slot{Name: evil, Profile: evil, By: evil}),
		"/profiles":    list(admin.Profile{Name: evil}),
		"/identity":    admin.Identity{},
		"/audit":       admin.AuditPage{Data: []admin.AuditEntry{{ID: evil, Actor: evil, Action: evil, Outcome: evil, Reason: evil, Subject: evil, Run: evil, Slot: evil, Lease: evil, Target: evil}}, Next: evil},
		"/usage":       admin.Usage{Data: []admin.UsageRow{{Key: evil, KeyName: evil, PrincipalName: evil, Model: evil, Node: evil, Route: evil, Principal: evil, Day: evil, Runs: 1}}},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimPrefix(r.URL.Path, "/admin/v1")
		v, ok := answers[path]
		switch {
		case ok:
		case strings.HasSuffix(path, "/capabilities"):
			v = capabilities
		case strings.HasSuffix(path, "/transport"):
			v = admin.NodeTransport{Node: evil}
		case strings.HasSuffix(path, "/ollama/tags"), strings.HasSuffix(path, "/ollama/ps"):
			v = admin.OllamaResult{Node: evil, Result: models}
		case strings.HasPrefix(path, "/nodes/") && r.Method == http.MethodGet:
			v = node
		case strings.HasPrefix(path, "/runs/"):
			v = run
		case strings.HasPrefix(path, "/keys/"):
			v = key
		default:
			w.WriteHeader(http.StatusConflict)
			v = map[string]admin.ErrorBody{"error": {Message: evil, Code: evil}}
		}
		_ = json.NewEncoder(w).Encode(v)
	})
}

func list(v any) map[string]any { return map[string]any{"data": []any{v}} }

// TestThreat62NamesAreText holds that no name becomes markup, on any page and in any part of one.
func TestThreat62NamesAreText(t *testing.T) {
	done := make(chan struct{})
	defer close(done)
	console := web.New(admin.Parts{
		API: evilEdge(), Public: http.NotFoundHandler(), Listen: func() string { return "127.0.0.1:1" }, Metrics: http.NotFoundHandler(),
		Verify: func(token string) bool { return token == "t" }, Logger: slog.New(slog.DiscardHandler), Done: done,
	})
	in := httptest.NewRecorder()
	form := httptest.NewRequest(http.MethodPost, "/admin/sign-in", strings.NewReader("token=t"))
	form.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	console.ServeHTTP(in, form)
	cookie := in.Result().Cookies()[0]
	ask := func(method, path string, part bool) string {
		req := httptest.NewRequest(method, path, strings.NewReader("name="+url.QueryEscape(evil)+"&value=v"))
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if part {
			req.Header.Set("Hx-Request", "true")
		}
		req.AddCookie(cookie)
		got := httptest.NewRecorder()
		console.ServeHTTP(got, req)
		text, err := io.ReadAll(got.Result().Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	pages := []string{"", "nodes", "nodes/x", "nodes/x/ollama?provider=" + url.QueryEscape(evil), "runs", "runs/x", "routes", "keys", "keys/x", "slots", "usage", "playground", "audit", url.PathEscape(evil)}
	for _, page := range pages {
		for _, part := range []bool{false, true} {
			text := ask(http.MethodGet, "/admin/"+page, part)
			if strings.Contains(text, "<img") || strings.Contains(text, "alert(2)</script>") || strings.Contains(text, `onerror=alert(1)>"`) {
				t.Errorf("/admin/%s (part %v): a name is markup:\n%s", page, part, text)
			}
			if part == false && page != pages[len(pages)-1] && !strings.Contains(text, "&lt;img") {
				t.Errorf("/admin/%s shows no name:\n%s", page, text)
			}
		}
	}
	for _, path := range []string{"keys", "keys/x", "keys/x/revoke", "nodes/x/drain", "runs/x/cancel", "nodes/x/ollama/pull", "nodes/x/ollama/delete", "slots", "slots/x/rotate", "config/reload", "join-tokens"} {
		if text := ask(http.MethodPost, "/admin/"+path, false); strings.Contains(text, "<img") || strings.Contains(text, "alert(2)</script>") {
			t.Errorf("POST /admin/%s: a name is markup:\n%s", path, text)
		}
	}
}
