package gateway_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"iop/state"
)

// modelsAs asks for models with those headers, names and values.
func (e *edge) modelsAs(path string, header ...string) (*http.Response, string) {
	e.t.Helper()
	req := e.request(http.MethodGet, "/v1/models"+path, "")
	req.Header.Del("Authorization")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return e.read(req)
}

// Who names a version of Anthropic's protocol, or has the key where its clients have it, gets its list, model and errors.
func TestModelsForAnthropicsClients(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 4, answerJSON(200, `{}`), "b", "a/with:odd/name")
	const a = `{"type":"model","id":"a/with:odd/name","display_name":"a/with:odd/name","created_at":"1970-01-01T00:00:00Z"}`
	bearer := "Bearer " + e.key
	for name, header := range map[string][]string{
		"key": {"X-Api-Key", e.key}, "version": {"Authorization", bearer, "Anthropic-Version", "2023-06-01"},
		"both":          {"X-Api-Key", e.key, "Anthropic-Version", "2023-06-01"},
		"the key twice": {"X-Api-Key", e.key, "Authorization", bearer, "Anthropic-Version", "2023-06-01"},
	} {
		resp, body := e.modelsAs("", header...)
		want := `{"data":[` + a + `,{"type":"model","id":"b","display_name":"b","created_at":"1970-01-01T00:00:00Z"}],` +
			`"has_more":false,"first_id":"a/with:odd/name","last_id":"b"}`
		if resp.StatusCode != 200 || body != want || resp.Header.Get("Request-Id") == "" {
			t.Errorf("%s: %s %s", name, resp.Status, body)
		}
		if _, body := e.modelsAs("/a/with:odd/name", header...); body != a {
			t.Errorf("%s: %s", name, body)
		}
		resp, body = e.modelsAs("/c", header...)
		if resp.StatusCode != 404 || !strings.HasPrefix(body, `{"type":"error","error":{"type":"not_found_error"`) {
			t.Errorf("%s: %s %s", name, resp.Status, body)
		}
	}
	for name, header := range map[string][]string{
		"a wrong key": {"X-Api-Key", "iop-1"}, "no key": {"Anthropic-Version", "2023-06-01"},
		"two keys": {"X-Api-Key", e.key, "Authorization", "Bearer other", "Anthropic-Version", "2023-06-01"},
	} {
		if resp, body := e.modelsAs("", header...); resp.StatusCode != 401 || !strings.HasPrefix(body, `{"type":"error"`) {
			t.Errorf("%s: %s %s", name, resp.Status, body)
		}
	}
	// A client of OpenAI's, with a header that some proxy put there.
	if resp, body := e.modelsAs("", "Authorization", bearer, "X-Api-Key", "x"); resp.StatusCode != 200 || !strings.HasPrefix(body, `{"object":"list"`) {
		t.Errorf("%s %s", resp.Status, body)
	}
	narrow := e.newKey(state.KeySpec{Routes: []string{"b"}})
	if _, body := e.modelsAs("", "X-Api-Key", narrow); strings.Contains(body, "odd") {
		t.Errorf("a narrow key sees %s", body)
	}
}

// Pages lead from one to the next, both ways, to each model once.
func TestPagesOfModels(t *testing.T) {
	e := newEdge(t, nil)
	var names []string
	for i := range 45 {
		names = append(names, fmt.Sprintf("m%02d", i))
	}
	e.addNode("n1", 4, answerJSON(200, `{}`), names...)
	page := func(query string) (ids []string, more bool) {
		t.Helper()
		resp, body := e.modelsAs(query, "X-Api-Key", e.key)
		var list struct {
			Data    []struct{ ID string }
			HasMore bool   `json:"has_more"`
			First   string `json:"first_id"`
			Last    string `json:"last_id"`
		}
		if err := json.Unmarshal([]byte(body), &list); err != nil || resp.StatusCode != 200 {
			t.Fatalf("%s %v: %s", resp.Status, err, body)
		}
		for _, m := range list.Data {
			ids = append(ids, m.ID)
		}
		if len(ids) > 0 && (list.First != ids[0] || list.Last != ids[len(ids)-1]) {
			t.Errorf("%s: from %s to %s", query, list.First, list.Last)
		}
		return ids, list.HasMore
	}
	var forward, backward []string
	for query, more := "", true; more; query = "?after_id=" + forward[len(forward)-1] {
		var ids []string
		ids, more = page(query)
		forward = append(forward, ids...)
	}
	for query, more := "?limit=7&before_id=zzz", true; more; query = "?limit=7&before_id=" + backward[0] {
		var ids []string
		ids, more = page(query)
		backward = append(ids, backward...)
	}
	if !slices.Equal(forward, names) || !slices.Equal(backward, names) {
		t.Errorf("forward %q\nbackward %q", forward, backward)
	}
	if ids, more := page("?limit=1000"); len(ids) != 45 || more {
		t.Errorf("%d, more %v", len(ids), more)
	}
	if ids, more := page("?after_id=m44"); len(ids) != 0 || more {
		t.Errorf("after the last: %q, more %v", ids, more)
	}
	if ids, _ := page("?after_id=m07x&limit=1"); !slices.Equal(ids, []string{"m08"}) { // one that has gone since
		t.Errorf("%q", ids)
	}
	for _, query := range []string{"?limit=0", "?limit=1001", "?limit=x", "?after_id=a&before_id=b"} {
		if resp, body := e.modelsAs(query, "X-Api-Key", e.key); resp.StatusCode != 400 || !strings.Contains(body, "invalid_request_error") {
			t.Errorf("%s: %s %s", query, resp.Status, body)
		}
	}
}
