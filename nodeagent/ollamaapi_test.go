package nodeagent

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"iop/execution"
	"iop/tunnel/wire"
)

// ollamaRun is a call of the Ollama API.
func ollamaRun(operation, body string) *fakeRun {
	r := newRun("", body)
	r.open.Kind = &wire.Open_Ollama{Ollama: &wire.OllamaRequest{Provider: "p", Operation: operation}}
	return r
}

// ollamaAgent is an agent whose one provider is an Ollama.
func ollamaAgent(t *testing.T, h http.HandlerFunc) *Agent {
	t.Helper()
	spec := httpProvider(t, h)
	spec.Engine, spec.Capacity = OllamaEngine, 1
	return testAgent(t, spec)
}

// Each operation is one method and one path, and nothing that the Edge says changes them.
func TestOllamaOperations(t *testing.T) {
	var seen string
	a := ollamaAgent(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		seen = r.Method + " " + r.RequestURI + " " + r.Header.Get("Content-Type") + " " + string(body)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"ok":true}`)
	})
	for operation, want := range map[string]string{
		"tags": "GET /api/tags  ", "ps": "GET /api/ps  ", "version": "GET /api/version  ",
		"show":   `POST /api/show application/json {"model":"m"}`,
		"delete": `DELETE /api/delete application/json {"model":"m"}`,
		"pull":   `POST /api/pull application/json {"model":"m"}`,
	} {
		body := ""
		if strings.HasSuffix(want, "}") {
			body = `{"model":"m"}`
		}
		for _, late := range []bool{false, true} {
			r := ollamaRun(operation, body)
			r.late = late
			end := serveNow(t, a, r)
			if seen != want || r.out.String() != `{"ok":true}` || r.head.GetStatus() != 200 || r.header("content-type") != "application/json" || end.Outcome != execution.Completed {
				t.Errorf("%s: %q, %d %q, %+v", operation, seen, r.head.GetStatus(), r.out.String(), end)
			}
		}
	}
	if n := a.only().inUse.Load(); n != 0 {
		t.Errorf("%d places are taken", n)
	}
}

// What is not in the enum is refused without a call of anybody.
func TestOllamaCallsAreRefused(t *testing.T) {
	a := ollamaAgent(t, func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the provider was called: %s %s", r.Method, r.URL)
	})
	refused := func(r *fakeRun, code execution.Code) {
		t.Helper()
		if end := serveNow(t, a, r); end.Outcome != execution.Rejected || end.Code != code || r.head != nil {
			t.Errorf("%s: %+v", r.open.GetOllama().GetOperation(), end)
		}
	}
	for _, operation := range []string{"", "push", "create", "copy", "blobs", "Tags", "tags ", "/api/tags", "../api/tags", "tags?x=1", "chat", "generate"} {
		refused(ollamaRun(operation, ""), execution.CodeUnsupported)
	}
	for operation, body := range map[string]string{
		"tags": "{}", "pull": "", "show": `[1]`, "delete": `"m"`, "version": "x",
	} {
		refused(ollamaRun(operation, body), execution.CodeBadRequest)
	}
	refused(ollamaRun("pull", `{"a":1`), execution.CodeBadRequest)
	refused(ollamaRun("pull", `{}{}`), execution.CodeBadRequest)
	refused(ollamaRun("pull", `{"a":"`+strings.Repeat("x", maxOllamaBody)+`"}`), execution.CodeBadRequest)
	other := ollamaRun("tags", "")
	other.open.GetOllama().Provider = "q"
	refused(other, execution.CodeUnknownProvider)
	leased := ollamaRun("tags", "")
	leased.open.ExpectsLease = true
	refused(leased, execution.CodeUnsupported)
	none := newRun("", "")
	none.open.Kind = nil // one that this Node does not know
	refused(none, execution.CodeUnsupported)

	openAI := testAgent(t, httpProvider(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("called: %s", r.URL) }))
	if end := serveNow(t, openAI, ollamaRun("tags", "")); end.Outcome != execution.Rejected || end.Code != execution.CodeUnsupported {
		t.Errorf("no Ollama: %+v", end)
	}
}

// A pull comes line by line as the provider writes it, whatever the pieces on the way; then the probe looks at the
// models.
func TestOllamaPullStreams(t *testing.T) {
	next := make(chan string)
	a := ollamaAgent(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		for piece := range next {
			io.WriteString(w, piece)
			http.NewResponseController(w).Flush()
		}
	})
	r := ollamaRun("pull", `{"model":"m"}`)
	done := serveAsync(a, r, context.Background())
	for _, piece := range []string{`{"status":"pulling"}` + "\n", `{"comp`, `leted":1}` + "\n" + `{"status":`, `"success"}` + "\n"} {
		next <- piece
		r.awaitWrite(t)
	}
	close(next)
	await(t, "the end", done)
	out := r.out.String()
	if end := r.terminal(t); end.Outcome != execution.Completed || strings.Count(out, "\n") != 3 || !strings.HasSuffix(out, "success\"}\n") {
		t.Errorf("%+v, %q", end, out)
	}
	for _, at := range r.border {
		if out[at-1] != '\n' {
			t.Errorf("a border within a line, at %d", at)
		}
	}
	if want := len(out); !slices.Contains(r.border, want) {
		t.Errorf("no border at the end: %v", r.border)
	}
	select {
	case <-a.only().wake:
	default:
		t.Error("nobody looks for the new model")
	}
}

// A cancel ends the provider's request, wherever it is.
func TestOllamaCancelEndsTheRequest(t *testing.T) {
	for _, streaming := range []bool{false, true} {
		gone, called := make(chan struct{}), make(chan struct{})
		a := ollamaAgent(t, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			if streaming {
				io.WriteString(w, "{}\n")
				http.NewResponseController(w).Flush()
			}
			close(called)
			<-r.Context().Done()
			close(gone)
		})
		ctx, cancel := cancellable()
		r := ollamaRun("pull", `{"model":"m"}`)
		done := serveAsync(a, r, ctx)
		await(t, "the call", called)
		if streaming {
			r.awaitWrite(t)
		}
		cancel(execution.CodeCancelledByOperator)
		await(t, "the end", done)
		await(t, "the provider to notice", gone)
		if end := r.terminal(t); end.Outcome != execution.Cancelled || end.Code != execution.CodeCancelledByOperator {
			t.Errorf("%+v", end)
		}
	}
}

// Calls take none of the places of runs, and runs none of theirs; there are four at once.
func TestOllamaCallsAtOnce(t *testing.T) {
	release := make(chan struct{})
	a := ollamaAgent(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/chat/completions" {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, unaryAnswer)
			return
		}
		<-release
		io.WriteString(w, "{}")
	})
	var waiting []<-chan struct{}
	var runs []*fakeRun
	for range maxOllamaCalls {
		r := ollamaRun("tags", "")
		runs = append(runs, r)
		waiting = append(waiting, serveAsync(a, r, context.Background()))
	}
	eventually(t, "four calls", func() bool { return a.only().ollamaCalls.Load() == maxOllamaCalls })
	if end := serveNow(t, a, ollamaRun("tags", "")); end.Outcome != execution.Rejected || end.Code != execution.CodeCapacity {
		t.Errorf("a fifth: %+v", end)
	}
	if end := serveNow(t, a, chatRun(false)); end.Outcome != execution.Completed {
		t.Errorf("a run beside them: %+v", end)
	}
	close(release)
	for i, done := range waiting {
		await(t, "the end", done)
		if end := runs[i].terminal(t); end.Outcome != execution.Completed {
			t.Errorf("%+v", end)
		}
	}
	if n := a.only().ollamaCalls.Load(); n != 0 {
		t.Errorf("%d calls are left", n)
	}
}

// An answer that breaks, a redirect and a server that is gone are failures with a code; the key is in none of them.
func TestOllamaFailures(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		code   execution.Code
	}{
		"redirect": {"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n", execution.CodeProviderRedirect},
		"cut":      {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}", execution.CodeProviderTruncated},
		"garbage":  {"what?\r\n\r\n", execution.CodeProviderError},
	} {
		spec := rawProvider(t, respond(c.answer))
		spec.Engine = OllamaEngine
		if end := serveNow(t, testAgent(t, spec), ollamaRun("tags", "")); end.Outcome != execution.Failed || end.Code != c.code || end.Detail == "" {
			t.Errorf("%s: %+v", name, end)
		}
	}
	gone := ProviderSpec{ID: "p", URL: "http://127.0.0.1:1", Engine: OllamaEngine}
	if end := serveNow(t, testAgent(t, gone), ollamaRun("tags", "")); end.Code != execution.CodeProviderUnreachable {
		t.Errorf("%+v", end)
	}
}

// A key that the operator gave the Node for this Ollama goes to it, and comes back to nobody.
func TestOllamaKeyIsHidden(t *testing.T) {
	const key = "sk-the-key-of-this-ollama"
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	spec := httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", r.Header.Get("Authorization"))
		fmt.Fprintf(w, "{\"error\":%q}\n", r.Header.Get("Authorization"))
	})
	spec.Engine, spec.KeyFile = OllamaEngine, file
	r := ollamaRun("tags", "")
	end := serveNow(t, testAgent(t, spec), r)
	if end.Outcome != execution.Completed || !strings.Contains(r.out.String(), "Bearer ***") || strings.Contains(r.out.String()+r.header("x-request-id"), key) {
		t.Errorf("%+v, %q, %q", end, r.out.String(), r.header("x-request-id"))
	}
	if _, err := bufio.NewReader(&r.out).ReadString('\n'); err != nil {
		t.Errorf("the line has no end: %v", err)
	}
}
