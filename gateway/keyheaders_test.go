package gateway_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"iop/state"
)

// The answer says what is wrong with the headers; of a key itself it says only that it is not valid.
func TestKeyHeaders(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 4, answerJSON(200, `{}`), "m")
	bearer := "Bearer " + e.key
	const chat, messages = "/v1/chat/completions", "/v1/messages"
	for name, test := range map[string]struct {
		path   string
		header http.Header
		want   string // in the message; empty: it is accepted
	}{
		"none":                     {chat, nil, "no API key"},
		"none, Anthropic's":        {messages, nil, "'x-api-key: <key>'"},
		"no Bearer":                {chat, http.Header{"Authorization": {e.key}}, "lacks the word Bearer"},
		"Basic":                    {chat, http.Header{"Authorization": {"Basic " + e.key}}, "not Bearer"},
		"Bearer alone":             {chat, http.Header{"Authorization": {"Bearer"}}, "has no API key"},
		"empty":                    {chat, http.Header{"Authorization": {""}}, "has no API key"},
		"two spaces":               {chat, http.Header{"Authorization": {"Bearer  " + e.key}}, "without spaces"},
		"twice":                    {chat, http.Header{"Authorization": {bearer, bearer}}, "more than one key"},
		"in the path and a header": {"/k/" + e.key + "/api/chat", http.Header{"Authorization": {bearer}}, "in the path"},
		"in api-key":               {chat, http.Header{"Api-Key": {e.key}}, "'api-key' header is not read"},
		"in x-api-key":             {chat, http.Header{"X-Api-Key": {e.key}}, ""},
		"in x-api-key, Ollama's":   {"/api/chat", http.Header{"X-Api-Key": {e.key}}, ""},
		"empty x-api-key":          {messages, http.Header{"X-Api-Key": {""}}, "'x-api-key' header is empty"},
		"two x-api-key":            {messages, http.Header{"X-Api-Key": {e.key, e.key}}, "more than one 'x-api-key'"},
		"in both":                  {messages, http.Header{"X-Api-Key": {e.key}, "Authorization": {bearer}}, ""},
		"in both, different":       {messages, http.Header{"X-Api-Key": {e.key}, "Authorization": {"Bearer x"}}, "different keys"},
		"a proxy's x-api-key":      {chat, http.Header{"X-Api-Key": {"x"}, "Authorization": {bearer}}, ""},
		"unknown":                  {chat, http.Header{"Authorization": {"Bearer sk-x"}}, "not valid"},
		"unknown, Anthropic's":     {messages, http.Header{"X-Api-Key": {"sk-x"}}, "not valid"},
	} {
		req := e.request(http.MethodPost, test.path, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`)
		req.Header = test.header.Clone()
		if req.Header == nil {
			req.Header = http.Header{}
		}
		req.Header.Set("Content-Type", "application/json")
		resp, body := e.read(req)
		if refused := resp.StatusCode == http.StatusUnauthorized; refused != (test.want != "") || !strings.Contains(body, test.want) {
			t.Errorf("%s: %s %s", name, resp.Status, body)
		}
		if strings.Contains(body, e.key) {
			t.Errorf("%s: the answer repeats the key", name)
		}
	}
}

// The operator finds in the log who uses a revoked or expired key; a guesser's key is not there, nor anybody's secret.
func TestOldKeysAreLogged(t *testing.T) {
	e := newEdge(t, nil)
	revoked := e.newKey(state.KeySpec{Name: "left in June"})
	expired := e.newKey(state.KeySpec{Name: "for a day", Expires: time.Now().Add(time.Millisecond)})
	key, err := e.store.FindKey(t.Context(), "left in June")
	must(t, err)
	must(t, e.store.RevokeKey(t.Context(), key.ID, "test"))
	uses := func(key string) {
		req := e.request(http.MethodGet, "/v1/models", "")
		req.Header.Set("Authorization", "Bearer "+key)
		if resp, body := e.read(req); resp.StatusCode != http.StatusUnauthorized || !strings.Contains(body, "This API key is not valid.") {
			t.Errorf("%s %s", resp.Status, body)
		}
	}
	for range 3 {
		uses(revoked)
	}
	e.eventually("it is expired", func() bool {
		_, err := e.store.VerifyKey(t.Context(), expired)
		return err != nil
	})
	uses(expired)
	uses(revoked[:len(revoked)-1] + "x")
	log := e.logs.String()
	for _, want := range []string{`"key":"` + string(key.ID) + `"`, `"key_name":"left in June"`, `"reason":"revoked"`, `"key_name":"for a day"`, `"reason":"expired"`, `"remote":"127.0.0.1:`} {
		if n := strings.Count(log, want); n == 0 || n > 2 {
			t.Errorf("%s: %d times in %s", want, n, log)
		}
	}
	if n := strings.Count(log, "no longer valid"); n != 2 {
		t.Errorf("%d lines: %s", n, log)
	}
	if strings.Contains(log, revoked) || strings.Contains(log, expired) {
		t.Error("a key's secret is in the log")
	}
}
