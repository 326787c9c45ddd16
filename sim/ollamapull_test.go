package sim

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// A pull shows its progress in steps that rise to the whole, then the model is there; deleted, it is not.
func TestOllamaPullAndDelete(t *testing.T) {
	r := start(t, func(c *Config) { c.Flavour = Ollama })
	a := r.post("/api/pull", `{"model":"new:8b"}`)
	if a.StatusCode != 200 || a.Header.Get("Content-Type") != "application/x-ndjson" {
		t.Fatalf("%d %s %s", a.StatusCode, a.Header.Get("Content-Type"), a.body)
	}
	var last, steps int64
	var statuses []string
	for text := range strings.Lines(a.body) {
		var line struct {
			Status           string
			Digest           string
			Total, Completed int64
		}
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatal(err)
		}
		if line.Total > 0 {
			steps++
			if line.Completed < last || line.Completed > line.Total || !strings.HasPrefix(line.Digest, "sha256:") {
				t.Errorf("%+v after %d", line, last)
			}
			last = line.Completed
			continue
		}
		statuses = append(statuses, line.Status)
	}
	if last != pullBytes || steps != pullSteps+1 || !slices.Equal(statuses, []string{"pulling manifest", "verifying sha256 digest", "writing manifest", "success"}) {
		t.Errorf("%d bytes, %d steps, %q", last, steps, statuses)
	}
	if a := r.post("/api/show", `{"model":"new:8b"}`); a.StatusCode != 200 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if a := r.post("/api/pull", `{"model":"other","stream":false}`); a.StatusCode != 200 || a.body != `{"status":"success"}` {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	if a := r.do("DELETE", "/api/delete", `{"model":"new:8b"}`); a.StatusCode != 200 || a.body != "" {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	if a := r.do("DELETE", "/api/delete", `{"model":"new:8b"}`); a.StatusCode != 404 {
		t.Errorf("twice: %d %q", a.StatusCode, a.body)
	}
	if models := r.s.Models(); slices.Contains(models, "new:8b") || !slices.Contains(models, "other") {
		t.Errorf("%q", models)
	}
}

// What no registry has fails in the stream, or as a status; nothing is known of it after.
func TestOllamaPullOfNothing(t *testing.T) {
	r := start(t, func(c *Config) { c.Flavour = Ollama })
	if a := r.post("/api/pull", `{"model":"missing"}`); a.StatusCode != 200 || !strings.HasSuffix(a.body, `{"error":"pull model manifest: file does not exist"}`+"\n") {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	if a := r.post("/api/pull", `{"model":"missing","stream":false}`); a.StatusCode != 500 || !strings.Contains(a.body, `"error":"pull`) {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	if a := r.post("/api/pull", `{}`); a.StatusCode != 400 {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	if slices.Contains(r.s.Models(), "missing") {
		t.Error("it is known")
	}
}

// A pull takes its time, and ends where its client goes.
func TestOllamaPullEndsWithItsClient(t *testing.T) {
	r := start(t, func(c *Config) { c.Flavour, c.Pull = Ollama, time.Hour })
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", r.url+"/api/pull", strings.NewReader(`{"model":"new"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	cancel()
	r.until("the pull ends", func() bool {
		return r.s.Requests(1)[0].State == stateCancelled
	})
	if slices.Contains(r.s.Models(), "new") {
		t.Error("it was pulled")
	}
}
