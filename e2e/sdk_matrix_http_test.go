package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestOllamaCommandLine sends what the `ollama` command sends, in its order: it comes from no registry, so that it can't be run
// itself. It can't send a header; the key stands in the path.
func TestOllamaCommandLine(t *testing.T) {
	t.Parallel()
	w := newMatrixWorld(t, 0)
	send := func(method, path, body string) (*http.Response, string) {
		req, err := http.NewRequest(method, w.URL+"/k/"+w.Key+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("User-Agent", "ollama/0.12.6 (amd64 linux) Go/go1.24.1")
		req.Header.Set("Accept", "application/x-ndjson")
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		data, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res, string(data)
	}
	for _, path := range []string{"/api/version", "/api/tags", "/api/ps"} {
		if res, body := send("GET", path, ""); res.StatusCode != http.StatusOK || !json.Valid([]byte(body)) {
			t.Errorf("%s: %s %s", path, res.Status, body)
		}
	}
	for _, kind := range matrixKinds[:3] {
		model := kind.name + "-model"
		if res, _ := send("HEAD", "/", ""); res.StatusCode != http.StatusOK {
			t.Errorf("HEAD /: %s", res.Status)
		}
		if _, body := send("POST", "/api/show", `{"model":"`+model+`","system":"","template":"","verbose":false,"options":null,"name":""}`); !strings.Contains(body, `"capabilities":[`) {
			t.Errorf("show: %s", body)
		}
		// It loads the model first.
		if _, body := send("POST", "/api/generate", `{"model":"`+model+`","prompt":"","suffix":"","system":"","template":"","options":null,"think":true}`); !strings.Contains(body, `"done_reason":"load"`) {
			t.Errorf("%s: load: %s", kind.name, body)
		}
		_, body := send("POST", "/api/chat", `{"model":"`+model+`","messages":[{"role":"user","content":"sim:tokens=3 hello"}],"format":"","options":{}}`)
		var text string
		lines := strings.Split(strings.TrimSuffix(body, "\n"), "\n")
		for _, line := range lines {
			var part struct{ Message struct{ Content string } }
			if err := json.Unmarshal([]byte(line), &part); err != nil {
				t.Fatalf("%s: %v in %q", kind.name, err, line)
			}
			text += part.Message.Content
		}
		if text != "hello t1 t2" || !strings.Contains(lines[len(lines)-1], `"done":true`) {
			t.Errorf("%s: %s", kind.name, body)
		}
	}
	if res, body := send("POST", "/api/pull", `{"model":"x"}`); res.StatusCode != http.StatusNotFound || !strings.HasPrefix(body, `{"error":"`) {
		t.Errorf("pull: %s %s", res.Status, body)
	}
}

// TestSessionsShareNothing has two runs with the same session at the same time: each has its own answer, model, execution, run and
// end, and stopping one does not touch the other.
func TestSessionsShareNothing(t *testing.T) {
	t.Parallel()
	w := newMatrixWorld(t, 0)
	const session = "one and the same"
	type run struct {
		res  *http.Response
		body string
	}
	ask := func(kind, text string) run {
		body := map[string]any{
			"model": kind + "-model", "stream": true, "metadata": map[string]string{"session_id": session},
			"messages": []map[string]string{{"role": "user", "content": text}},
		}
		res, data := w.stack.do("POST", "/v1/chat/completions", body, nil)
		return run{res, string(data)}
	}
	stopped := w.stack.request("POST", "/v1/chat/completions", map[string]any{
		"model": "ollama-model", "stream": true, "messages": []map[string]string{{"role": "user", "content": "sim:tokens=100000,itl=20ms endless"}},
	}, http.Header{"X-Session-Id": {session}})
	endless, err := http.DefaultClient.Do(stopped)
	if err != nil {
		t.Fatal(err)
	}
	defer endless.Body.Close()

	first, second := ask("openai", "sim:tokens=4 apples"), ask("ollama", "sim:tokens=4 pears")
	res, body := w.stack.do("POST", "/iop/v1/runs/"+endless.Header.Get("X-Iop-Run-Id")+"/cancel", nil, nil)
	if res.StatusCode/100 != 2 {
		t.Fatalf("cancel: %s %s", res.Status, body)
	}
	third := ask("ollama", "sim:tokens=4 plums")
	seen := map[string]bool{endless.Header.Get("X-Iop-Run-Id"): true}
	for word, r := range map[string]run{"apples": first, "pears": second, "plums": third} {
		id := r.res.Header.Get("X-Iop-Run-Id")
		if r.res.Header.Get("X-Iop-Session-Id") != session || id == "" || seen[id] {
			t.Errorf("%s: %v", word, r.res.Header)
		}
		seen[id] = true
		for _, other := range []string{"apples", "pears", "plums", "endless"} {
			if strings.Contains(r.body, other) != (other == word) {
				t.Errorf("%s: %s", word, r.body)
			}
		}
		if !strings.HasSuffix(r.body, "data: [DONE]\n\n") {
			t.Errorf("%s is not whole: %s", word, r.body)
		}
	}
	if endless.Header.Get("X-Iop-Session-Id") != session {
		t.Errorf("%v", endless.Header)
	}
	w.stack.settled()
	outcomes := map[string]int{}
	for _, r := range w.stack.records() {
		if r.Session != session {
			t.Errorf("booked %+v", r)
		}
		outcomes[r.Outcome+" "+r.Execution]++
	}
	if len(outcomes) != 3 || outcomes["completed raw"] != 1 || outcomes["completed normalized"] != 2 || outcomes["cancelled normalized"] != 1 {
		t.Errorf("booked %v", outcomes)
	}
}
