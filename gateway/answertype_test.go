package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"iop/execution"
	"iop/tunnel"
)

// answerAs is a Node that answers with these.
func answerAs(status int, kind, body string, more ...string) handler {
	return func(_ context.Context, run *tunnel.NodeRun) {
		_ = run.Head(head(status, kind, more...))
		if body != "" {
			_ = run.Write([]byte(body), false)
		}
		run.End(execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone})
	}
}

// TestBodyWhereNoneMayBe: a Node that sends a body with a status that allows none costs its client no connection: the client gets
// an error, or the status without a body, over HTTP/1.1 and HTTP/2. Without answer.bare the response breaks off.
func TestBodyWhereNoneMayBe(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	for _, status := range []int{204, 205, 304} {
		for name, body := range map[string]string{"short": `{"a":1}`, "long": long, "none": ""} {
			t.Run(fmt.Sprint(status, " ", name), func(t *testing.T) {
				t.Parallel()
				e := newEdge(t, nil)
				length := []string{}
				if body != "" {
					length = []string{"content-length", "9"} // and a lie
				}
				e.addNode("n1", 4, answerAs(status, "application/json", body, length...), "m")
				want := 502
				if body == "" && status < 300 {
					want = status
				}
				for range 2 { // on one connection each
					for _, client := range []*http.Client{e.client, e.h2()} {
						resp, err := client.Do(e.request(http.MethodPost, chat, `{"model":"m"}`))
						if err != nil {
							t.Fatal(err)
						}
						got, err := io.ReadAll(resp.Body)
						resp.Body.Close()
						if err != nil || resp.StatusCode != want || (want == 502) != strings.Contains(string(got), `"error"`) {
							t.Errorf("%s: %d %q %v", resp.Proto, resp.StatusCode, got, err)
						}
					}
				}
				e.idle()
			})
		}
	}
}

// TestPassedTypes: a provider puts no page on the public origin, and every answer forbids a browser to guess.
func TestPassedTypes(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]string{
		"text/html":                      "text/plain; charset=utf-8",
		"Text/HTML; charset=utf-8":       "text/plain; charset=utf-8",
		"text/javascript":                "text/plain; charset=utf-8",
		"text/xml":                       "text/plain; charset=utf-8",
		" text/html":                     "text/plain; charset=utf-8",
		"image/svg+xml":                  "application/octet-stream",
		"image/SVG+xml; a=b":             "application/octet-stream",
		"application/xhtml+xml":          "application/octet-stream",
		"application/javascript":         "application/octet-stream",
		"multipart/x-mixed-replace":      "application/octet-stream",
		"nonsense":                       "application/octet-stream",
		"application/json":               "application/json",
		"application/json; charset=utf8": "application/json; charset=utf8",
		"application/problem+json":       "application/problem+json",
		"audio/mpeg":                     "audio/mpeg",
		"image/png":                      "image/png",
		"text/plain; charset=utf-8":      "text/plain; charset=utf-8",
		"text/vtt":                       "text/vtt",
		"":                               "",
	} {
		e := newEdge(t, nil)
		e.addNode("n1", 4, answerAs(200, kind, "<script>alert(1)</script>"), "m")
		status, h, body := e.post(chat, `{"model":"m"}`)
		if status != 200 || h.Get("Content-Type") != want || h.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(body, "<script>") {
			t.Errorf("%q: %d %q %q %q", kind, status, h.Get("Content-Type"), h.Get("X-Content-Type-Options"), body)
		}
		e.idle()
	}
	for _, status := range []int{400, 404, 429, 500, 503} {
		for _, body := range []string{"<html><script>alert(1)</script>", `{"error":{"message":"<script>"}}`, `{"detail":"<script>"}`} {
			e := newEdge(t, nil)
			e.addNode("n1", 4, answerAs(status, "text/html", body), "m")
			got, h, _ := e.post(chat, `{"model":"m"}`)
			if got < 400 || h.Get("Content-Type") != "application/json" || h.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%d %s: %d %q", status, body, got, h)
			}
			e.idle()
		}
	}
	e := newEdge(t, nil)
	for _, path := range []string{"/", "/healthz", "/readyz", "/v1/models", "/nothing", "/tunnel/v1", "/api/version"} {
		resp := e.do(e.request(http.MethodGet, path, ""))
		resp.Body.Close()
		if resp.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", path, resp.Header)
		}
	}
}
