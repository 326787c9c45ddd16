package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// asForm sends a transcription under that content type.
func (e *edge) asForm(contentType, body string) (status int, answer string) {
	e.t.Helper()
	req := e.request(http.MethodPost, "/v1/audio/transcriptions", body)
	req.Header.Set("Content-Type", contentType)
	resp := e.do(req)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// TestFormsThatHideAModel: what some reader would take another model from reaches no provider. Most of them passed when forms
// went on as the client framed them.
func TestFormsThatHideAModel(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 4, answerJSON(200, `{"text":""}`), "cheap", "dear")
	part := func(disposition, value string) string {
		return "--B\r\nContent-Disposition: form-data; " + disposition + "\r\n\r\n" + value + "\r\n"
	}
	cheap, end := part(`name="model"`, "cheap"), "--B--\r\n"
	for name, body := range map[string]string{
		"a continued name":          part(`name="model"; name*0="x"`, "dear") + cheap + end,
		"a name in a quoted text":   part(`name="y"; x="; name=model; z="`, "dear") + cheap + end,
		"a boundary in a preamble":  "x" + part(`name="model"`, "dear") + cheap + end,
		"a boundary before CR CR":   "--B\r" + strings.TrimPrefix(part(`name="model"`, "dear"), "--B") + cheap + end,
		"a boundary in an epilogue": cheap + end + part(`name="model"`, "dear") + end,
		"an element of the model":   cheap + part(`name="model[]"`, "dear") + end,
		"a name with half brackets": cheap + part(`name="model["`, "dear") + end,
		"a name behind a space":     cheap + part(`name=" model"`, "dear") + end,
		"a charset":                 cheap + part(`name="_charset_"`, "utf-7") + end,
		"a part of a form within":   cheap + "--B\r\nContent-Disposition: form-data; name=\"x\"\r\nContent-Type: multipart/mixed; boundary=C\r\n\r\n--C\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ndear\r\n--C--\r\n" + end,
		"two models":                cheap + part(`name="model"`, "dear") + end,
	} {
		if status, answer := e.asForm("multipart/form-data; boundary=B", body); status != 400 || !strings.Contains(answer, "multipart form") {
			t.Errorf("%s: %d %s", name, status, answer)
		}
	}
	for _, kind := range []string{"multipart/form-data; boundary=B; boundary=C", "multipart/form-data; boundary=B; boundary*=utf-8''C", "multipart/form-data; boundary=B; charset=utf-7"} {
		if status, answer := e.asForm(kind, cheap+end); status != 400 {
			t.Errorf("%s: %d %s", kind, status, answer)
		}
	}
	if status, answer := e.asForm("multipart/form-data; boundary=B", cheap+end); status != 200 {
		t.Errorf("a plain form: %d %s", status, answer)
	}
	e.idle()
}

// TestRouteParametersOfForms: a cap holds for a form, too. Before, a form passed it.
func TestRouteParametersOfForms(t *testing.T) {
	e, _ := withRoutes(t, "routes:\n  - model: art\n    targets: [{model: m}]\n    parameters: {defaults: {quality: low}, caps: {n: 2}}\n")
	sent := make(chan sentRun, 1)
	e.addNode("n1", 4, capturing(sent, answerJSON(200, `{"data":[]}`)), "m")
	send := func(n string) (int, string) {
		req := e.request(http.MethodPost, "/v1/images/edits", "--B\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nart\r\n--B\r\nContent-Disposition: form-data; name=\"n\"\r\n\r\n"+n+"\r\n--B--\r\n")
		req.Header.Set("Content-Type", "multipart/form-data; boundary=B")
		resp := e.do(req)
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	if status, answer := send("10"); status != 200 {
		t.Fatalf("%d %s", status, answer)
	}
	got := formParts(t, <-sent)
	if len(got) != 3 || got[0][3] != "m" || got[1] != [4]string{"n", "", "", "2"} || got[2] != [4]string{"quality", "", "", "low"} {
		t.Errorf("the provider got %q", got)
	}
	if status, answer := send("1_0"); status != 400 || !strings.Contains(answer, `"param":"n"`) {
		t.Errorf("%d %s", status, answer)
	}
	e.idle()
}

// TestBodiesAreSentAsWhatTheyAreReadAs: a provider is told application/json of every body that was read as JSON, whatever
// the client called it; what is declared to be something else is refused. Before, the client's word went on.
func TestBodiesAreSentAsWhatTheyAreReadAs(t *testing.T) {
	e := newEdge(t, nil)
	sent := make(chan sentRun, 1)
	e.addNode("n1", 4, capturing(sent, answerJSON(200, `{}`)), "m")
	post := func(path string, kinds ...string) (int, string) {
		req := e.request(http.MethodPost, path, `{"model":"m","x":"&model=dear&"}`)
		req.Header["Content-Type"] = kinds
		resp := e.do(req)
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	for _, kinds := range [][]string{nil, {""}, {"application/json; charset=utf-8"}, {"text/plain;charset=UTF-8"}, {"application/octet-stream"}, {"application/vnd.api+json"}} {
		if status, answer := post(chat, kinds...); status != 200 {
			t.Fatalf("%q: %d %s", kinds, status, answer)
		}
		var types []string
		for _, h := range (<-sent).request.Headers {
			if h.Name == "content-type" {
				types = append(types, h.Value)
			}
		}
		if len(types) != 1 || types[0] != "application/json" {
			t.Errorf("%q went on as %q", kinds, types)
		}
	}
	for _, path := range []string{chat, "/v1/embeddings", "/v1/responses", "/tokenize", "/v1/messages", "/v1/messages/count_tokens", "/api/chat", "/api/embed"} {
		kinds := []string{"application/json; charset=utf-7", "multipart/form-data; boundary=B"}
		if !strings.HasPrefix(path, "/api/") { // where curl -d works as it does with Ollama
			kinds = append(kinds, "application/x-www-form-urlencoded")
		}
		for _, kind := range kinds {
			if status, answer := post(path, kind); status != 415 || !strings.Contains(answer, "send application/json") {
				t.Errorf("%s of %s: %d %s", kind, path, status, answer)
			}
		}
	}
	if status, answer := post(chat, "application/json", "application/x-www-form-urlencoded"); status != 400 {
		t.Errorf("two headers: %d %s", status, answer)
	}
	e.idle()
}

// TestLeasedForm: a lease is bound to the form as the Node gets it, whose pieces are hashed in turn.
func TestLeasedForm(t *testing.T) {
	m := newManaged(t, slotFile)
	n := m.join(&leasedNode{}, "n1")
	large := strings.Repeat("\x00RIFF", 100_000)
	status, answer := m.asForm("multipart/form-data; boundary=B", "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n"+large+
		"\r\n--B\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--B--\r\n")
	if got := n.got(); status != 200 || len(got) != 1 || got[0].Get("Authorization") != "Bearer "+canary {
		t.Errorf("%d %s; the provider got %d requests, not one with the credential", status, answer, len(got))
	}
	m.idle()
}
