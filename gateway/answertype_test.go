package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"iop/execution"
	"iop/execution/safetext"
	"iop/gateway"
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

// TestKeysAreNotRepeated: a key that a client put in the wrong place comes back in no answer and no line of the log, and what could
// move a terminal's cursor or turn its text around is refused or escaped.
func TestKeysAreNotRepeated(t *testing.T) {
	t.Parallel()
	var out logBuffer
	logs := gateway.NewLogWriter(&out)
	e := newEdge(t, func(c *gateway.Config) { c.Logger = slog.New(gateway.NewLogHandler(logs, slog.LevelDebug)) })
	e.addNode("n1", 4, answerJSON(200, `{}`), "m")
	const foreign = "sk-proj-Q7vK2mZp9LxWc4RtYb8N"
	secret := strings.TrimPrefix(e.key, "sk-iop_")
	for _, place := range []string{"/K/%s/api/chat", "/kk/%s/", "/KK/%s", "//k/%s/x", "/k/x/k/%s/", "/%s", "/v1/%s/chat/completions", "/v1/models/%s", "/iop/v1/runs/%s", "/iop/v1/runs/%s/cancel", "/api/%s", "/tunnel/%s"} {
		for _, key := range []string{e.key, foreign, strings.ToUpper(e.key), "plain-words-my-secret"} {
			for _, method := range []string{"GET", "POST", "DELETE"} {
				resp := e.do(e.request(method, fmt.Sprintf(place, key), ""))
				body, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				for _, form := range []string{secret, strings.ToUpper(secret), foreign[8:]} {
					if strings.Contains(string(body), form) {
						t.Errorf("%s %s shows the key: %s", method, place, body)
					}
				}
				if strings.Contains(string(body), "my-secret") && strings.Contains(strings.ToLower(place), "k/%s") {
					t.Errorf("%s %s: %s", method, place, body)
				}
			}
		}
	}
	for _, model := range []string{e.key, foreign, `m\u202eevil`, `m\ufeff`, `m\u2028x`, `m\u009b31m`} {
		_, _, body := e.post(chat, `{"model":"`+model+`"}`)
		if strings.Contains(body, secret) || strings.Contains(body, foreign[8:]) || strings.ContainsFunc(body, safetext.Unfit) && !strings.HasSuffix(body, "\n") {
			t.Errorf("the model %q: %q", model, body)
		}
	}
	req := e.request(http.MethodPost, chat, `{"model":"m"}`)
	req.Header.Set("X-Client-Request-Id", e.key)
	req.Header.Set("X-Session-Id", foreign)
	resp := e.do(req)
	resp.Body.Close()
	if got := fmt.Sprint(resp.Header); strings.Contains(got, foreign[8:]) || strings.Contains(got, secret) {
		t.Errorf("a header shows it: %s", got)
	}
	e.idle()
	slog.New(gateway.NewLogHandler(logs, slog.LevelDebug)).Info("a\u202eb\x7fc\u009bd", "key", e.key)
	logs.Close()
	text := out.String()
	if strings.Contains(text, secret) || strings.Contains(text, foreign[8:]) || !strings.Contains(text, `a\u202eb\u007fc\u009bd`) {
		t.Errorf("the log: %s", text)
	}
	for line := range strings.Lines(text) {
		if !json.Valid([]byte(line)) {
			t.Errorf("no JSON: %s", line)
		}
	}
}
