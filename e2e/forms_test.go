package e2e

import (
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
)

// formsSeed makes the mutations the same each time.
const formsSeed = 17

// bodyWorld is an Edge with one route, cheap, which a Node's provider has under another name. The provider has the model
// dear as well, which the key may not use.
type bodyWorld struct {
	*routed
	mu  sync.Mutex
	got *typedBody // the last body that the provider got of a client
}

const cheapRoute = "routes:\n  - model: cheap\n    targets: [{model: real-cheap}]\n  - model: dear\n"

func newBodyWorld(t *testing.T) *bodyWorld {
	w := &bodyWorld{}
	paths := http.NewServeMux()
	paths.HandleFunc("GET /v1/models", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(rw, `{"object":"list","data":[{"id":"real-cheap"},{"id":"dear"}]}`)
	})
	serve := func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if string(body) == probeBody {
			http.Error(rw, "", http.StatusBadRequest)
			return
		}
		w.mu.Lock()
		w.got = &typedBody{r.Header.Get("Content-Type"), body}
		w.mu.Unlock()
		rw.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(rw, `{"text":""}`)
	}
	paths.HandleFunc("POST /v1/audio/transcriptions", serve)
	paths.HandleFunc("POST /v1/chat/completions", serve)
	provider := httptest.NewServer(paths)
	t.Cleanup(provider.Close)
	w.routed = newRouted(t, cheapRoute)
	w.startNode("node-1", "--provider", "p="+provider.URL)
	w.key = w.newKey("narrow", "--routes", "cheap")
	return w
}

// arrives sends a body through the Edge, and returns what the provider got of it, or the refusal.
func (w *bodyWorld) arrives(path string, b typedBody) (got *typedBody, refusal string) {
	w.t.Helper()
	w.mu.Lock()
	w.got = nil
	w.mu.Unlock()
	req := w.request("POST", path, nil, http.Header{"Content-Type": {b.Type}})
	req.Body, req.ContentLength = io.NopCloser(strings.NewReader(string(b.Body))), int64(len(b.Body))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	answer, err := io.ReadAll(res.Body)
	res.Body.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil:
		w.t.Fatal(err)
	case res.StatusCode == http.StatusOK && w.got != nil:
		return w.got, ""
	case res.StatusCode/100 != 4 || w.got != nil:
		w.t.Errorf("%q: %d %s, and the provider got %v", b.Body, res.StatusCode, answer, w.got)
	}
	return nil, string(answer)
}

// TestFormsAreReadAlike: of what passes the Edge, the readers that servers use find the same fields, and one model, which is
// the one that the Edge allowed. Hostile forms, plain ones, and both with mutations.
func TestFormsAreReadAlike(t *testing.T) {
	t.Parallel()
	w, rs := newBodyWorld(t), newReaders(t)
	const contentType = "multipart/form-data; boundary=B"
	path := "/v1/audio/transcriptions"

	// That the readers differ is what all of this is for: directly, some find dear in most of the hostile forms.
	names := slices.Sorted(maps.Keys(hostileForms))
	var hostile []typedBody
	for _, name := range names {
		b := typedBody{contentType, []byte(hostileForms[name])}
		hostile = append(hostile, b)
		if got, _ := w.arrives(path, b); got != nil {
			t.Errorf("%s passed: %q", name, got.Body)
		}
	}
	fooled := 0
	for _, readings := range rs.read(hostile) {
		if slices.ContainsFunc(slices.Collect(maps.Values(readings)), func(r reading) bool { return slices.Contains(r.models(), "field dear") }) {
			fooled++
		}
	}
	if fooled < len(names)/2 {
		t.Errorf("only %d of %d hostile forms fool a reader: the corpus is none", fooled, len(names))
	}

	r := rand.New(rand.NewPCG(formsSeed, 0))
	var arrived []typedBody
	plain, mutations, passed := 100, 1000, 0
	for i := range plain + mutations {
		body := plainForm(r)
		if i >= plain {
			if r.IntN(3) == 0 {
				body = hostileForms[names[r.IntN(len(names))]]
			}
			body = mutated(r, body)
		}
		got, refusal := w.arrives(path, typedBody{contentType, []byte(body)})
		switch {
		case got != nil:
			arrived = append(arrived, *got)
			passed++
		case i < plain:
			t.Fatalf("%q: a plain form was refused: %s", body, refusal)
		}
	}
	if mutatedPassed := passed - plain; mutatedPassed < mutations/20 || mutatedPassed > mutations*3/4 {
		t.Errorf("%d of %d mutations passed: they try nothing", mutatedPassed, mutations)
	}
	for i, readings := range rs.read(arrived) {
		if checkAlike(t, arrived[i], readings); t.Failed() {
			break // one is enough to look into
		}
	}
	t.Logf("%d of %d hostile forms fool a reader; %d of %d others passed", fooled, len(names), passed, plain+mutations)
}

// checkAlike compares the readings of a form that reached the provider.
func checkAlike(t *testing.T, b typedBody, readings map[string]reading) {
	t.Helper()
	first := readings["Go"]
	for name, r := range readings {
		if r.Error != "" || !reflect.DeepEqual(r.Parts, first.Parts) {
			t.Errorf("%q\nis for %s %q %s\nand for Go %q %s", b.Body, name, r.Parts, r.Error, first.Parts, first.Error)
		}
		if got := r.models(); len(got) != 1 || got[0] != "field real-cheap" {
			t.Errorf("%q\nhas for %s the models %q", b.Body, name, got)
		}
	}
	if len(readings) != 8 {
		t.Errorf("%d readings: %v", len(readings), readings)
	}
}

// TestBodiesAreReadAlike: a body that is JSON for the Edge is the same JSON for servers in Python, whatever its client
// declared: not a form as well, nor in another charset.
func TestBodiesAreReadAlike(t *testing.T) {
	t.Parallel()
	w, rs := newBodyWorld(t), newReaders(t)
	rs.scripts = rs.scripts[:1] // Python's
	var sent, arrived []typedBody
	for _, body := range []string{
		`{"model":"cheap","messages":[],"user":"&model=dear&"}`,
		`{"model":"cheap","messages":[],"user":"+ACI-,+ACI-model+ACI-:+ACI-dear"}`,
	} {
		for _, kind := range []string{
			"application/json", "application/json; charset=utf-8", "text/plain", "application/octet-stream", "application/problem+json", "",
			"application/x-www-form-urlencoded", "application/json; charset=utf-7", "application/json;charset=\"utf-7\"", "text/plain; charset=utf-7",
			"application/x-www-form-urlencoded; charset=utf-8", "application/json; form", "application/form+json", "application/json, application/x-www-form-urlencoded",
		} {
			b := typedBody{kind, []byte(body)}
			sent = append(sent, b)
			if got, _ := w.arrives("/v1/chat/completions", b); got != nil {
				arrived = append(arrived, *got)
			}
		}
	}
	fooled := 0
	for _, readings := range rs.read(sent) {
		for _, r := range readings {
			if r.Model == "dear" {
				fooled++
			}
		}
	}
	if fooled < 3 {
		t.Errorf("only %d readings of what was sent are fooled: the corpus is none", fooled)
	}
	if len(arrived) < 12 || len(arrived) > len(sent)-8 {
		t.Errorf("%d of %d bodies arrived", len(arrived), len(sent))
	}
	for i, readings := range rs.read(arrived) {
		for name, r := range readings {
			if r.Error != "" || r.Model != "real-cheap" {
				t.Errorf("%s %q has for %s the model %q (%s)", arrived[i].Type, arrived[i].Body, name, r.Model, r.Error)
			}
		}
		if len(readings) != 3 {
			t.Errorf("%d readings", len(readings))
		}
	}
}
