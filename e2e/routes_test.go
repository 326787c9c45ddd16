package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
)

// routesFile has a route for each thing that a route can say.
const routesFile = `
routes:
  - model: chat
    aliases: [gpt-4o, gpt-4o-mini]
    targets: [{model: sim-small}]
  - model: renamed
    aliases: [renamed-too]
    rename_model: true
    targets: [{model: sim-small}]
  - model: full
    groups:
      - targets: [{node: lab-1, provider: narrow, model: sim-small}]
      - targets: [{node: office-1, model: sim-small}]
  - model: down
    groups:
      - targets: [{node: lab-*, provider: narrow, model: sim-small}]
      - when: down
        targets: [{node: office-1, model: sim-small}]
  - model: lab
    targets: [{labels: {site: lab}, model: sim-small}]
  - model: office-gpu
    targets: [{labels: {site: office, kind: gpu}, model: sim-small}]
  - model: nowhere
    targets: [{labels: {site: lab, kind: cpu}, model: sim-small}]
    timeouts: {queue: 300ms}
  - model: weighted
    policy: weighted
    targets:
      - {node: lab-1, provider: wide, model: sim-small, weight: 3}
      - {node: office-1, model: sim-small}
  - model: bounded
    parameters:
      defaults: {temperature: 0.25, stop: ["<end>"]}
      caps: {max_tokens: 50}
      allow: [x_odd]
    targets: [{model: sim-small}]
  - model: private
    principals: [team-*]
    targets: [{model: sim-small}]
  - model: sim-large
`

// TestRoutes looks at everything that a file of routes says, from both ends: what the client gets and what the provider
// was asked.
func TestRoutes(t *testing.T) {
	t.Parallel()
	r := newRouteWorld(t)
	t.Run("aliases", r.aliases)
	t.Run("rename", r.rename)
	t.Run("models", r.listed)
	t.Run("principals", r.principals)
	t.Run("unknown", r.unknown)
	t.Run("labels", r.labels)
	t.Run("weights", r.weights)
	t.Run("parameters", r.parameters)
	t.Run("reasons", r.reasons)
	t.Run("full", r.fullGroup)
	t.Run("down", r.downGroup) // last: it kills a Node
	r.quiet()
}

type routeWorld struct {
	*routed
	lab, office *simulator
}

func newRouteWorld(t *testing.T) *routeWorld {
	t.Helper()
	r := &routeWorld{routed: newRouted(t, routesFile)}
	r.lab, r.office = r.startSim("--slots", "64"), r.startSim("--slots", "64")
	r.launchNode("lab-1", "--labels", "site=lab,kind=gpu",
		"--provider", "wide="+r.lab.url+",capacity=64", "--provider", "narrow="+r.lab.url+",capacity=1")
	r.labelledNode("office-1", "site=office,kind=gpu", "sim="+r.office.url+",capacity=64")
	r.serving("lab-1", "sim-small")
	r.serving("office-1", "sim-small")
	return r
}

func (r *routeWorld) reset(t *testing.T) {
	t.Helper()
	r.lab.control(t, "POST", "/sim/reset", nil, nil)
	r.office.control(t, "POST", "/sim/reset", nil, nil)
}

// atProviders are the requests that reached either provider since reset.
func (r *routeWorld) atProviders(t *testing.T) []seenRequest {
	t.Helper()
	return append(r.lab.inferences(t), r.office.inferences(t)...)
}

func (r *routeWorld) aliases(t *testing.T) {
	for _, name := range []string{"chat", "gpt-4o", "gpt-4o-mini"} {
		for _, stream := range []bool{false, true} {
			r.reset(t)
			a := r.chatNow(t, name, "tokens=3", stream)
			a.ok(t, name)
			if got := a.answerModels(t); !slices.Equal(got, []string{"sim-small"}) {
				t.Errorf("%s: the answer is of %q, not of what the provider calls it", name, got)
			}
			if seen := r.atProviders(t); len(seen) != 1 || seen[0].Model != "sim-small" {
				t.Errorf("%s: the provider was asked for %+v", name, seen)
			}
			if got := r.run(a.header.Get("X-Iop-Run-Id")); got.Model != name || got.Outcome != "completed" {
				t.Errorf("%s: the run is %+v", name, got)
			}
		}
	}
	for _, kind := range []struct{ path, member string }{{"/v1/completions", "prompt"}, {"/v1/responses", "input"}} {
		r.reset(t)
		a := r.askAs(t.Context(), r.key, kind.path, map[string]any{"model": "gpt-4o", kind.member: "hello"}, nil).end(t, patience)
		if seen := r.atProviders(t); a.status != http.StatusOK || len(seen) != 1 || seen[0].Model != "sim-small" {
			t.Errorf("%s: %s; at the provider: %+v", kind.path, a, seen)
		}
	}
	var usage struct {
		Data []struct {
			Route, Model string
			Completed    int
		}
	}
	r.operator("/usage?by=route,model&route=chat", &usage)
	if len(usage.Data) != 1 || usage.Data[0].Model != "sim-small" || usage.Data[0].Completed != 8 {
		t.Errorf("the usage of all of the route's names: %+v", usage.Data)
	}
}

func (r *routeWorld) rename(t *testing.T) {
	for _, name := range []string{"renamed", "renamed-too"} {
		for _, stream := range []bool{false, true} {
			r.reset(t)
			a := r.chatNow(t, name, "tokens=3", stream)
			a.ok(t, name)
			if got := a.answerModels(t); !slices.Equal(got, []string{name}) {
				t.Errorf("the answer to a request for %s is of %q", name, got)
			}
			if seen := r.atProviders(t); len(seen) != 1 || seen[0].Model != "sim-small" {
				t.Errorf("%s: the provider was asked for %+v", name, seen)
			}
		}
	}
	client := goClient(r.url+"/v1", r.key)
	whole, err := client.Chat.Completions.New(t.Context(), goChatFor("renamed-too", "hi", "tokens=3"))
	if err != nil || whole.Model != "renamed-too" {
		t.Errorf("openai-go: %v, %+v", err, whole)
	}
	chunks, err := readAll(client.Chat.Completions.NewStreaming(t.Context(), goChatFor("renamed", "hi", "tokens=3")))
	if err != nil || len(chunks) < 3 || slices.ContainsFunc(chunks, func(c openai.ChatCompletionChunk) bool { return c.Model != "renamed" }) {
		t.Errorf("openai-go, streaming: %v, %+v", err, chunks)
	}
	r.responseRenamed(t)
}

// responseRenamed: the Responses dialect has the name inside its events, too.
func (r *routeWorld) responseRenamed(t *testing.T) {
	a := r.askAs(t.Context(), r.key, "/v1/responses", map[string]any{"model": "renamed-too", "input": "hello", "stream": true}, nil).end(t, patience)
	if text := a.body.String(); a.status != http.StatusOK || !strings.Contains(text, `"renamed-too"`) || strings.Contains(text, "sim-small") {
		t.Errorf("a renamed response: %s", a)
	}
}

func (r *routeWorld) labels(t *testing.T) {
	r.reset(t)
	for range 10 {
		r.chatNow(t, "lab", "tokens=1", false).ok(t, "lab")
	}
	if l, o := len(r.lab.inferences(t)), len(r.office.inferences(t)); l != 10 || o != 0 {
		t.Errorf("of ten for the lab %d ran there, %d in the office", l, o)
	}
	for range 10 {
		r.chatNow(t, "office-gpu", "tokens=1", false).ok(t, "office-gpu")
	}
	if l, o := len(r.lab.inferences(t)), len(r.office.inferences(t)); l != 10 || o != 10 {
		t.Errorf("of ten for the office %d ran in the lab, %d there", l-10, o)
	}
	r.chatNow(t, "nowhere", "", false).refused(t, "labels that no Node has", http.StatusServiceUnavailable, "no_node_available")
}

func (r *routeWorld) weights(t *testing.T) {
	r.reset(t)
	const n = 200
	r.many(t, n, 8, "weighted", "tokens=1")
	lab, office := len(r.lab.inferences(t)), len(r.office.inferences(t))
	t.Logf("with weights of 3 to 1: %d to %d", lab, office)
	// Three in four, and five standard deviations.
	if lab+office != n || lab < 150-31 || lab > 150+31 {
		t.Errorf("with weights of 3 to 1: %d to %d", lab, office)
	}
}

// many sends n requests, so many at once, each of which must succeed.
func (s *stack) many(t *testing.T, n, atOnce int, model, knobs string) {
	t.Helper()
	for i, a := range s.crowd(n, atOnce, model, knobs) {
		a.end(t, 60*time.Second).ok(t, fmt.Sprintf("%s %d", model, i))
	}
}

// crowd sends n requests, so many at once, and returns when the last is on its way.
func (s *stack) crowd(n, atOnce int, model, knobs string) (all []*answer) {
	turns := make(chan struct{}, atOnce)
	for i := range n {
		turns <- struct{}{}
		a := s.askAs(context.Background(), s.key, "/v1/chat/completions", chat(model, knobs, i%2 == 0), nil)
		all = append(all, a)
		go func() {
			<-a.done
			<-turns
		}()
	}
	return all
}

// parameters looks at the provider's bytes: what the route says is in them, and all else is as the client wrote it.
func (r *routeWorld) parameters(t *testing.T) {
	const rest = `"seed": 1.50e+01 ,
	"messages":[ {"role":"user","content":"h\u00e9 \/ <&> \ud83d\ude00 é"} ], "x_odd" : {"a":[1 ,2], "b":null}`
	for _, c := range []struct{ name, given, provider string }{
		{"none given", `{"model" : "bounded", ` + rest + `}`, ""},
		{"all given", `{"model" : "bounded", "max_tokens": 20, "temperature" : 1, "stop":["x"], ` + rest + `}`,
			`{"model" : "sim-small", "max_tokens": 20, "temperature" : 1, "stop":["x"], ` + rest + `}`},
		{"too much", `{"model" : "bounded", "max_tokens": 4096, "temperature" : 1, "stop":[], ` + rest + `}`,
			`{"model" : "sim-small", "max_tokens": 50, "temperature" : 1, "stop":[], ` + rest + `}`},
		{"by another name", `{"model" : "bounded", "max_completion_tokens":1e9, "temperature" : 1, "stop":[], ` + rest + `}`,
			`{"model" : "sim-small", "max_tokens":50, "temperature" : 1, "stop":[], ` + rest + `}`},
		{"none at all", `{"model" : "bounded", "max_tokens": 0, "n_predict":-0.0, "temperature" : 1, "stop":[], ` + rest + `}`,
			`{"model" : "sim-small", "max_tokens": 50, "n_predict":50, "temperature" : 1, "stop":[], ` + rest + `}`},
		{"a part of one", `{"model" : "bounded", "max_completion_tokens":null, "max_tokens": 1e-9, "temperature" : 1, "stop":[], ` + rest + `}`,
			`{"model" : "sim-small", "max_completion_tokens":null, "max_tokens": 50, "temperature" : 1, "stop":[], ` + rest + `}`},
		{"no limit", `{"model" : "bounded", "max_tokens": -1, "temperature" : 1, "stop":[], ` + rest + `}`,
			`{"model" : "sim-small", "max_tokens": 50, "temperature" : 1, "stop":[], ` + rest + `}`},
	} {
		r.reset(t)
		a := r.askAs(t.Context(), r.key, "/v1/chat/completions", c.given, nil).end(t, patience)
		seen := r.atProviders(t)
		if a.status != http.StatusOK || len(seen) != 1 {
			t.Errorf("%s: %s, %d at the provider", c.name, a, len(seen))
			continue
		}
		if c.provider != "" && seen[0].Body != c.provider {
			t.Errorf("%s: the provider got\n%s\nnot\n%s", c.name, seen[0].Body, c.provider)
		}
		if c.provider == "" {
			defaultsOnly(t, seen[0].Body, rest)
		}
	}
	a := r.askAs(t.Context(), r.key, "/v1/chat/completions", `{"model":"bounded","messages":[],"max_tokens":1,"max_tokens":2}`, nil).end(t, patience)
	if a.status != http.StatusBadRequest || !strings.Contains(a.body.String(), "max_tokens") {
		t.Errorf("a bounded parameter that stands twice: %s", a)
	}
	r.reset(t)
	r.askAs(t.Context(), r.key, "/v1/responses", `{"model":"bounded","input":"x"}`, nil).end(t, patience)
	if seen := r.atProviders(t); len(seen) != 1 || !strings.Contains(compactJSON(t, seen[0].Body), `"max_output_tokens":50`) {
		t.Errorf("the cap in a response: %+v", seen)
	}
}

// defaultsOnly fails unless the body is one with the route's defaults and its cap, in which the client's own text stands
// as it was.
func defaultsOnly(t *testing.T, body, rest string) {
	t.Helper()
	var got map[string]json.RawMessage
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	for name, value := range map[string]string{"model": `"sim-small"`, "temperature": "0.25", "stop": `["<end>"]`, "max_tokens": "50"} {
		if string(got[name]) != value {
			t.Errorf("%s is %s, not %s", name, got[name], value)
		}
	}
	if !strings.Contains(body, rest) || len(got) != 7 {
		t.Errorf("the provider got\n%s\nwith the client's\n%s", body, rest)
	}
}

func (r *routeWorld) principals(t *testing.T) {
	member := r.newKey("member", "--owner", "team-a")
	other := r.newKey("other", "--owner", "alice")
	body := chat("private", "tokens=1", false)
	r.askAs(t.Context(), member, "/v1/chat/completions", body, nil).end(t, patience).ok(t, "a member")
	for what, key := range map[string]string{"another": other, "a key without an owner": r.key} {
		theirs := r.askAs(t.Context(), key, "/v1/chat/completions", body, nil).end(t, patience)
		theirs.refused(t, what, http.StatusNotFound, "model_not_found")
		nobodys := r.askAs(t.Context(), key, "/v1/chat/completions", chat("there-is-none", "", false), nil).end(t, patience)
		if got, want := theirs.body.String(), strings.ReplaceAll(nobodys.body.String(), "there-is-none", "private"); got != want {
			t.Errorf("%s can tell another's route from none: %s", what, got)
		}
	}
	if got := r.modelsOf(t, member); !slices.Contains(got, "private") {
		t.Errorf("a member sees %q", got)
	}
	if got := r.modelsOf(t, other); slices.Contains(got, "private") || !slices.Contains(got, "chat") {
		t.Errorf("another sees %q", got)
	}
}

// modelsOf lists what a key sees, and that each of them can be looked at.
func (s *stack) modelsOf(t *testing.T, key string) (ids []string) {
	t.Helper()
	header := http.Header{"Authorization": {"Bearer " + key}}
	_, body := s.do("GET", "/v1/models", nil, header)
	var list struct{ Data []struct{ ID string } }
	if err := json.Unmarshal(body, &list); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	for _, m := range list.Data {
		ids = append(ids, m.ID)
		if res, body := s.do("GET", "/v1/models/"+m.ID, nil, header); res.StatusCode != http.StatusOK {
			t.Errorf("%s is listed, and asked for it is %s: %s", m.ID, res.Status, body)
		}
	}
	return ids
}

// listed: FAULTS 23. The file's names that a Node serves, and that the key may use, and what Nodes have besides.
func (r *routeWorld) listed(t *testing.T) {
	want := []string{"bounded", "chat", "down", "full", "gpt-4o", "gpt-4o-mini", "lab", "office-gpu", "renamed", "renamed-too", "sim-audio", "sim-embed", "sim-image", "sim-large", "weighted"}
	if got := r.modelsOf(t, r.key); !slices.Equal(got, want) {
		t.Errorf("listed are %q, not %q", got, want)
	}
	narrow := r.newKey("narrow", "--routes", "gpt-*,lab")
	if got := r.modelsOf(t, narrow); !slices.Equal(got, []string{"gpt-4o", "gpt-4o-mini", "lab"}) {
		t.Errorf("a narrow key sees %q", got)
	}
	r.askAs(t.Context(), narrow, "/v1/chat/completions", chat("chat", "", false), nil).end(t, patience).
		refused(t, "the same route by a name that the key has not", http.StatusForbidden, "model_not_allowed")
	r.askAs(t.Context(), narrow, "/v1/chat/completions", chat("gpt-4o", "tokens=1", false), nil).end(t, patience).ok(t, "an alias that the key has")
	if res, body := r.get("/v1/models/nowhere"); res.StatusCode != http.StatusNotFound {
		t.Errorf("a route without a Node: %s, %s", res.Status, body)
	}
}

// unknown: a model that no route names is served under its own name, unless a route with limits has it as a target or the
// file refuses all.
func (r *routeWorld) unknown(t *testing.T) {
	r.chatNow(t, "sim-small", "", false).refused(t, "the target of limited routes", http.StatusNotFound, "model_not_found")
	r.chatNow(t, "sim-large", "tokens=1", false).ok(t, "a route without targets")
	const free = "routes: [{model: chat, targets: [{model: sim-small}]}]\n"
	writeRoutes(t, r.file, "advertised_models: refuse\n"+free)
	eventually(t, patience, "one route is left", func() bool { return slices.Equal(r.models(), []string{"chat"}) })
	r.chatNow(t, "sim-small", "", false).refused(t, "a model that no route names", http.StatusNotFound, "model_not_found")
	writeRoutes(t, r.file, free)
	eventually(t, patience, "models that Nodes advertise are served", func() bool { return slices.Contains(r.models(), "sim-small") })
	r.chatNow(t, "sim-small", "tokens=1", false).ok(t, "an advertised model")
	writeRoutes(t, r.file, routesFile)
	eventually(t, patience, "models that Nodes advertise are not served", func() bool { return !slices.Contains(r.models(), "sim-small") })
}

// reasons: FAULTS 24. Each place where a decision can be looked at says why, and the caller's names no Node.
func (r *routeWorld) reasons(t *testing.T) {
	for model, want := range map[string]string{"chat": "least_busy", "weighted": "weighted", "lab": "least_busy", "office-gpu": "only_target"} {
		a := r.chatNow(t, model, "tokens=1", false)
		id := a.header.Get("X-Iop-Run-Id")
		if a.header.Get("X-Request-Id") == "" || a.header.Get("X-Iop-Queue-Ms") == "" {
			t.Errorf("%s: headers %v", model, a.header)
		}
		line := r.logLine(id)
		reason, _ := line["reason"].(string)
		node, _ := line["node"].(string)
		if !strings.HasPrefix(reason, want+" ") || node == "" || line["upstream_model"] != "sim-small" || line["route"] != model {
			t.Errorf("%s: the log says %v", model, line)
		}
		res, body := r.get("/iop/v1/runs/" + id)
		var own map[string]any
		if err := json.Unmarshal(body, &own); err != nil || res.StatusCode != http.StatusOK || own["reason"] != want {
			t.Errorf("%s: the caller is told %s, %v", model, body, err)
		}
		for _, secret := range []string{"lab-1", "office-1", "127.0.0.1", "sim-small", "wide", "narrow", "generation"} {
			if strings.Contains(string(body), secret) {
				t.Errorf("%s: the caller is told of %s: %s", model, secret, body)
			}
		}
		var operator struct{ Node, Provider, Reason, Route string }
		r.operator("/runs/"+id, &operator)
		if operator.Node != node || operator.Reason != reason || operator.Provider == "" || operator.Route != model {
			t.Errorf("%s: the operator is told %+v, the log says %v", model, operator, line)
		}
	}
}

// fullGroup: with the first group's one place taken the second is used, and after that the first again.
func (r *routeWorld) fullGroup(t *testing.T) {
	r.reset(t)
	held := r.askAs(t.Context(), r.key, "/v1/chat/completions", chat("full", "tokens=100000,itl=20ms", true), nil)
	held.reaches(t, 2, patience)
	if r.lab.stats(t).Active != 1 {
		t.Fatal("the first group's place is not taken")
	}
	beside := r.chatNow(t, "full", "tokens=1", false)
	beside.ok(t, "with the first group full")
	if n := len(r.office.inferences(t)); n != 1 {
		t.Errorf("%d ran in the second group", n)
	}
	if line := r.logLine(beside.header.Get("X-Iop-Run-Id")); !strings.Contains(line["reason"].(string), "group 2") {
		t.Errorf("the log does not say that it was the second group: %v", line)
	}
	iop(t, r.env, "cancel", held.header.Get("X-Iop-Run-Id"))
	held.end(t, patience)
	r.quiet()
	r.chatNow(t, "full", "tokens=1", false).ok(t, "afterwards")
	if n := len(r.office.inferences(t)); n != 1 {
		t.Errorf("%d ran in the second group, with room in the first", n)
	}
}

// downGroup: a first group that is full is waited for. Only without any Node of it the second is used.
func (r *routeWorld) downGroup(t *testing.T) {
	r.reset(t)
	held := r.askAs(t.Context(), r.key, "/v1/chat/completions", chat("down", "tokens=100000,itl=20ms", true), nil)
	held.reaches(t, 2, patience)
	waits := r.askAs(t.Context(), r.key, "/v1/chat/completions", chat("down", "tokens=1", false), nil)
	r.queued(1)
	if n := len(r.office.inferences(t)); n != 0 {
		t.Errorf("%d ran in the second group, with the first in service", n)
	}
	r.nodes[0].kill()
	if err := held.end(t, patience).broken(); err != nil {
		t.Error("the stream of the Node that was killed:", err)
	}
	waits.end(t, patience).ok(t, "the one that waited")
	r.chatNow(t, "down", "tokens=1", false).ok(t, "with the first group down")
	if n := len(r.office.inferences(t)); n != 2 {
		t.Errorf("%d ran in the second group", n)
	}
	eventually(t, grace, "what only the lab serves is not listed", func() bool { return !slices.Contains(r.models(), "lab") })
	if got := r.models(); !slices.Contains(got, "down") || !slices.Contains(got, "full") {
		t.Errorf("listed are %q", got)
	}
	r.labelledNode("lab-1", "site=lab,kind=gpu", "narrow="+r.lab.url+",capacity=1")
	r.serving("lab-1", "sim-small")
	eventually(t, patience, "the first group has its runs again", func() bool {
		r.chatNow(t, "down", "tokens=1", false).ok(t, "with the first group back")
		return r.lab.stats(t).Finished > 0
	})
}
