package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"iop/execution"
	"iop/gateway/admin"
	"iop/gateway/route"
	"iop/state"
)

// lines reads JSON values, one a line, as a list.
func lines(body io.Reader, _ http.Header, _ *openapi3.SchemaRef, _ openapi3filter.EncodingFn) (any, error) {
	list := []any{}
	for d := json.NewDecoder(body); ; {
		var v any
		if err := d.Decode(&v); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
}

func init() { openapi3filter.RegisterBodyDecoder("application/x-ndjson", lines) }

// desk is the API over a real store and a fake Edge. Each answer that it gets is held against the document.
type desk struct {
	t      *testing.T
	edge   *fakeEdge
	store  *state.Store
	logs   *bytes.Buffer
	server *httptest.Server
	token  string
	router routers.Router
	seen   map[string]bool // operations that were answered with success
}

func document(t *testing.T) *openapi3.T {
	t.Helper()
	loader := openapi3.NewLoader()
	doc, err := loader.LoadFromData(admin.OpenAPI)
	if err == nil {
		err = doc.Validate(loader.Context)
	}
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	return newDeskAt(t, "sqlite::memory:")
}

func newDeskAt(t *testing.T, database string) *desk {
	t.Helper()
	d := &desk{t: t, edge: newFakeEdge(), logs: new(bytes.Buffer), seen: map[string]bool{}}
	var err error
	if d.store, err = state.Open(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	token, _, err := d.store.AdminToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d.token = token.Reveal()
	d.server = httptest.NewServer(admin.New(admin.Config{
		Store: d.store, Edge: d.edge, Metrics: http.NotFoundHandler(), Logger: slog.New(slog.NewTextHandler(d.logs, nil)),
	}))
	doc := document(t)
	doc.Servers = openapi3.Servers{{URL: d.server.URL + "/admin/v1"}}
	if d.router, err = gorillamux.NewRouter(doc); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.server.Client().CloseIdleConnections()
		d.server.Close()
		if err := d.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
}

// ask sends a request with the token and whatever else change does, and holds the answer against the document. A
// request that is answered with success must be right by the document too.
func (d *desk) ask(method, path, body string, change ...func(*http.Request)) answer {
	d.t.Helper()
	r, err := http.NewRequestWithContext(d.t.Context(), method, d.server.URL+path, strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+d.token)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, f := range change {
		f(r)
	}
	resp, err := d.server.Client().Do(r)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	a := answer{resp.StatusCode, resp.Header, string(data)}
	if err := d.conforms(r, body, a); err != nil {
		d.t.Errorf("%s %s: %d %s\nis not what the document says: %v", method, path, a.status, a.body, err)
	}
	return a
}

func (d *desk) conforms(r *http.Request, body string, a answer) error {
	r = r.Clone(context.Background())
	r.Body = io.NopCloser(strings.NewReader(body))
	found, params, err := d.router.FindRoute(r)
	if err != nil {
		return nil // no operation: there is nothing to hold the answer against
	}
	input := &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, Route: found, QueryParams: r.URL.Query(),
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true},
	}
	if a.status == http.StatusOK {
		if err := openapi3filter.ValidateRequest(r.Context(), input); err != nil {
			return err
		}
		d.seen[found.Method+" "+found.Path] = true
	}
	response := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: a.status, Header: a.header, Options: input.Options,
	}
	response.SetBodyBytes([]byte(a.body))
	return openapi3filter.ValidateResponse(r.Context(), response)
}

// must is ask where success is due; it decodes the answer into v, which may be nil.
func (d *desk) must(v any, method, path, body string, change ...func(*http.Request)) {
	d.t.Helper()
	a := d.ask(method, path, body, change...)
	if a.status != http.StatusOK {
		d.t.Fatalf("%s %s: %d %s", method, path, a.status, a.body)
	}
	if v == nil {
		return
	}
	if err := json.Unmarshal([]byte(a.body), v); err != nil {
		d.t.Fatalf("%s %s: %v: %s", method, path, err, a.body)
	}
}

// refused is ask where an error is due.
func (d *desk) refused(status int, code, param, method, path, body string, change ...func(*http.Request)) admin.ErrorBody {
	d.t.Helper()
	a := d.ask(method, path, body, change...)
	var got struct{ Error admin.ErrorBody }
	err := json.Unmarshal([]byte(a.body), &got)
	gotParam := ""
	if got.Error.Param != nil {
		gotParam = *got.Error.Param
	}
	if err != nil || a.status != status || got.Error.Code != code || gotParam != param {
		d.t.Errorf("%s %s: %d %s\nwant %d, code %s, param %q", method, path, a.status, a.body, status, code, param)
	}
	return got.Error
}

// TestDocumentIsTheAPI: what is served is documented, and the other way round.
func TestDocumentIsTheAPI(t *testing.T) {
	var documented []string
	for path, item := range document(t).Paths.Map() {
		for method, operation := range item.Operations() {
			documented = append(documented, method+" "+path)
			if operation.OperationID == "" || operation.Summary == "" || len(operation.Tags) != 1 {
				t.Errorf("%s %s is not explained", method, path)
			}
		}
	}
	served := admin.Endpoints()
	slices.Sort(documented)
	slices.Sort(served)
	if !slices.Equal(documented, served) {
		t.Errorf("documented:\n%s\nserved:\n%s", strings.Join(documented, "\n"), strings.Join(served, "\n"))
	}
}

// TestDocumentIsStrict: an answer that has grown a member is not what the document says, so drift fails.
func TestDocumentIsStrict(t *testing.T) {
	d := newDesk(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.server.URL+"/admin/v1/nodes/n1", nil)
	if err != nil {
		t.Fatal(err)
	}
	a := d.ask(http.MethodGet, "/admin/v1/nodes/n1", "")
	for _, change := range [][2]string{{`"rtt_ms"`, `"rtt"`}, {`"health":"ok"`, `"health":"fine"`}, {`{"node"`, `{"more":1,"node"`}} {
		drifted := a
		drifted.body = strings.Replace(a.body, change[0], change[1], 1)
		if drifted.body == a.body || d.conforms(r, "", drifted) == nil {
			t.Errorf("%v goes unnoticed", change)
		}
	}
	for name, schema := range document(t).Components.Schemas {
		if s := schema.Value; s.Type.Is("object") && s.AdditionalProperties.Has == nil {
			t.Errorf("schema %s lets in whatever it likes", name)
		}
	}
}

// TestSetsAreWhole: what has a closed set of values in the code has the same in the document.
func TestSetsAreWhole(t *testing.T) {
	schemas := document(t).Components.Schemas
	set := func(of func(int) string, begin int) (names []string) {
		for i := begin; !strings.HasPrefix(of(i), "unknown"); i++ {
			names = append(names, of(i))
		}
		return names
	}
	for _, test := range []struct {
		schema *openapi3.SchemaRef
		want   []string
	}{
		{schemas["Run"].Value.Properties["phase"], set(func(i int) string { return execution.Phase(i).String() }, 0)},
		{schemas["Outcome"], set(func(i int) string { return execution.Outcome(i).String() }, 1)},
		{schemas["Policy"], set(func(i int) string { return route.Policy(i).String() }, 0)},
		{schemas["AuditAction"], set(func(i int) string { return state.AuditAction(i).String() }, 1)},
		{schemas["AuditOutcome"], set(func(i int) string { return state.AuditOutcome(i).String() }, 1)},
		{schemas["Header"], set(func(i int) string { return state.Header(i).String() }, 1)},
	} {
		var got []string
		for _, value := range test.schema.Value.Enum {
			got = append(got, value.(string))
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("documented %q, want %q", got, test.want)
		}
	}
}

// TestStateUnavailableIsDocumented: the answer while the database is gone conforms, too.
func TestStateUnavailableIsDocumented(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.db")
	d := newDeskAt(t, "sqlite://"+file)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	d.refused(503, "state_unavailable", "", "POST", "/admin/v1/keys", `{"name":"a"}`)
}

func yaml(r *http.Request) { r.Header.Set("Content-Type", "application/yaml") }

// TestEveryOperationConforms asks for each operation once and more, over a real store, and has ask look at the answers.
func TestEveryOperationConforms(t *testing.T) {
	d := newDesk(t)
	d.makeKeys()
	const v1 = "/admin/v1"
	for _, path := range []string{
		"/openapi.yaml", "/status", "/nodes", "/nodes/n1", "/routes", "/queue", "/runs", "/runs/run_ended", "/runs/run_active",
		"/runs?state=ended&key=k1&route=chat&node=n1&outcome=failed&limit=5", "/keys", "/join-tokens", "/usage", "/usage/records", "/config",
	} {
		d.must(nil, "GET", v1+path, "")
	}
	for _, path := range []string{"/nodes/n1/drain", "/nodes/n1/resume", "/runs/run_active/cancel"} {
		d.must(nil, "POST", v1+path, "")
	}
	var key admin.Key
	d.must(&key, "POST", v1+"/keys", `{"name":"ci","owner":"team-a","routes":["m*"],"rpm":60,"monthly_tokens":1000,"weight":2,"expires":"2099-01-01T00:00:00Z"}`)
	d.must(nil, "POST", v1+"/keys", `{"name":"b"}`)
	d.must(nil, "PATCH", v1+"/keys/"+string(key.ID), `{"rpm":120,"expires":null}`)
	d.must(nil, "GET", v1+"/keys/"+string(key.ID), "")
	d.must(nil, "GET", v1+"/keys", "")
	d.must(nil, "POST", v1+"/keys/"+string(key.ID)+"/revoke", "")
	d.must(nil, "GET", v1+"/keys", "")
	var token admin.JoinToken
	d.must(&token, "POST", v1+"/join-tokens", `{"node":"n1","ttl_seconds":60}`)
	d.must(nil, "POST", v1+"/join-tokens", `{}`)
	d.must(nil, "POST", v1+"/join-tokens/"+string(token.ID)+"/revoke", "")
	d.must(nil, "GET", v1+"/join-tokens", "")
	d.commands()
	d.changesCredentials()
	d.addUsage()
	d.must(nil, "GET", v1+"/usage?by=key,principal,route,model,node,provider,outcome,day,month", "")
	d.must(nil, "GET", v1+"/usage/records?format=csv", "")
	d.edge.file = goodConfig
	d.must(nil, "POST", v1+"/config/reload", "")
	d.must(nil, "GET", v1+"/config", "")
	d.must(nil, "POST", v1+"/config/check", goodConfig, yaml)
	d.edge.file = badConfig
	d.refused(422, "invalid_config", "", "POST", v1+"/config/reload", "")
	d.must(nil, "GET", v1+"/config", "")
	d.must(nil, "GET", v1+"/status", "")
	d.must(nil, "DELETE", v1+"/nodes/n1", "")
	for _, operation := range admin.Endpoints() {
		if !d.seen[operation] {
			t.Errorf("no answer of %s was held against the document", operation)
		}
	}
}

// changesCredentials asks for each operation about slots, profiles and Nodes.
func (d *desk) changesCredentials() {
	d.t.Helper()
	d.useMasterKeys(1)
	for _, ask := range [][3]string{
		{"PUT", "/profiles/openai", `{"header":"x-api-key","base_urls":["https://api.example.com"]}`}, {"GET", "/profiles", ""}, {"GET", "/profiles/openai", ""},
		{"PUT", "/slots/main", body(canary)}, {"GET", "/slots", ""}, {"GET", "/slots/main", ""}, {"POST", "/slots/main/rotate", `{"value":"b"}`},
		{"POST", "/slots/main/disable", ""}, {"POST", "/slots/main/enable", ""}, {"POST", "/slots/main/revoke", `{"needs_provider_rotation":true}`},
		{"GET", "/master-keys", ""}, {"POST", "/master-keys/rewrap", ""}, {"DELETE", "/slots/main", ""}, {"DELETE", "/profiles/openai", ""},
		{"PUT", "/node-list/allowed/n1", `{"slots":["*"],"profiles":["*"]}`}, {"PUT", "/node-list/denied/nodes/n2", ""},
		{"PUT", "/node-list/denied/certificates/0a", ""}, {"GET", "/node-list", ""}, {"DELETE", "/node-list/allowed/n1", ""},
		{"DELETE", "/node-list/denied/nodes/n2", ""}, {"DELETE", "/node-list/denied/certificates/0a", ""},
		{"GET", "/identity", ""}, {"GET", "/signing-key", ""}, {"POST", "/signing-key/rotate", ""}, {"DELETE", "/signing-key/k1", ""}, {"GET", "/audit", ""}, {"GET", "/audit?limit=3", ""},
	} {
		d.must(nil, ask[0], "/admin/v1"+ask[1], ask[2])
	}
}

// makeKeys makes the keys k1 and k2, whose the fake Edge's runs are from then on.
func (d *desk) makeKeys() {
	d.t.Helper()
	for name, id := range map[string]*state.KeyID{"k1": &d.edge.k1, "k2": &d.edge.k2} {
		key, _, err := d.store.CreateKey(d.t.Context(), state.KeySpec{Name: name})
		if err != nil {
			d.t.Fatal(err)
		}
		*id = key.ID
	}
}

// addUsage puts two records into the store, one of them with names that a spreadsheet would run.
func (d *desk) addUsage() {
	d.t.Helper()
	now := time.Now().UTC().Truncate(time.Second)
	err := d.store.AddUsage(d.t.Context(), []state.UsageRecord{{
		Run: "run_1", Key: d.edge.k1, Principal: "team-a", Route: "chat", Operation: "chat.completions", Node: "n1", Provider: "p",
		Model: "big", Started: now.Add(-time.Hour), Queue: time.Millisecond, FirstToken: 20 * time.Millisecond, Duration: time.Second,
		Outcome: execution.Completed, Status: 200, Attempts: 1, Stream: true, Normalized: true, Session: "=job-7",
		Usage: execution.Usage{Input: 10, Output: 20, Cached: 5, Known: true},
	}, {
		Run: "run_2", Key: d.edge.k2, Principal: `=HYPERLINK("x")`, Route: "chat, \"b\"", Operation: "embeddings", Model: "-1+1",
		Started: now.Add(-time.Minute), Duration: 1500 * time.Microsecond, Outcome: execution.Rejected,
		Code: execution.CodeCapacity, Status: 503,
	}})
	if err != nil {
		d.t.Fatal(err)
	}
}

func query(pairs ...string) string {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		v.Set(pairs[i], pairs[i+1])
	}
	return "?" + v.Encode()
}
