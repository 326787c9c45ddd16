package route

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"iop/openai"
)

// parse returns the Table of a text that must be right.
func parse(t *testing.T, text string) *Table {
	t.Helper()
	table, err := Parse("iop.yaml", []byte(text))
	if err != nil {
		t.Fatalf("%s\n%v", text, err)
	}
	return table
}

func TestParse(t *testing.T) {
	table := parse(t, `
routes:
  - model: chat
    aliases: [gpt-4o, gpt-4o-mini]
    principals: [team-*, "key:k_1"]
    policy: prefix_affinity
    rename_model: true
    retry: {on: [lost]}
    timeouts: {first_byte: 90s}
    parameters:
      defaults: {temperature: 0.2, max_tokens: 500, stop: ["a", 1, null, {x: true}], user: "é<"}
      caps: {max_tokens: 4096, temperature: 1}
      allow: [models, "aws_*", brand_new]
      refuse: [num_gpu, keep_alive]
    groups:
      - targets:
          - {node: gpu-*, labels: {site: lab}, provider: vllm, model: meta-llama/Llama-3.1-70B, weight: 3}
          - node: gpu-9
      - when: down
        targets: [{node: cloud, model: gpt-4o}]
  - model: small
    targets: [{model: llama3.2:3b}]
  - model: llama3.2:3b
defaults:
  policy: warm_first
  retry: {attempts: 2}
  timeouts: {queue: 2m, first_byte: 0s, total: 1h}
  queue_limit: 10
`)
	timeouts := Timeouts{Queue: 2 * time.Minute, Total: time.Hour}
	slower := timeouts
	slower.FirstByte = 90 * time.Second
	retry := Retry{Attempts: 2, On: DefaultRetry.On}
	want := []*Route{
		{
			Name: "chat", Aliases: []string{"gpt-4o", "gpt-4o-mini"}, Principals: []string{"team-*", "key:k_1"}, Policy: PrefixAffinity,
			RenameModel: true, Retry: Retry{Attempts: 2, On: RetryLost}, Timeouts: slower, QueueLimit: 10,
			Parameters: Parameters{
				Defaults: []Default{
					{Name: "temperature", Value: "0.2"}, {Name: "max_tokens", Value: "500"},
					{Name: "stop", Value: `["a",1,null,{"x":true}]`}, {Name: "user", Value: `"é<"`},
				},
				Caps: []Cap{{Name: "max_tokens", Max: 4096}, {Name: "temperature", Max: 1}}, Allow: []string{"models", "aws_*", "brand_new"},
				Refuse: []string{"num_gpu", "keep_alive"},
			},
			limited: true,
			Groups: []Group{
				{Targets: []Target{
					{Node: "gpu-*", Labels: map[string]string{"site": "lab"}, Provider: "vllm", Model: "meta-llama/Llama-3.1-70B", Weight: 3},
					{Node: "gpu-9", Model: "chat", Weight: 1},
				}},
				{When: WhenDown, Targets: []Target{{Node: "cloud", Model: "gpt-4o", Weight: 1}}},
			},
		},
		{Name: "small", Policy: WarmFirst, Retry: retry, Timeouts: timeouts, QueueLimit: 10,
			Groups: []Group{{Targets: []Target{{Model: "llama3.2:3b", Weight: 1}}}}},
		{Name: "llama3.2:3b", Policy: WarmFirst, Retry: retry, Timeouts: timeouts, QueueLimit: 10,
			Groups: []Group{{Targets: []Target{{Model: "llama3.2:3b", Weight: 1}}}}},
	}
	for i, r := range table.Routes() {
		if !reflect.DeepEqual(r, want[i]) {
			t.Errorf("%+v, want\n%+v", r, want[i])
		}
	}
	if len(table.Routes()) != 3 || !table.ServesAdvertised() || table.Digest() == "" {
		t.Errorf("%d routes, advertised %t, digest %q", len(table.Routes()), table.ServesAdvertised(), table.Digest())
	}
	if s := table.String(); s != "3 routes with 5 names; models that no route names are served" {
		t.Errorf("%s", s)
	}
	if r := table.Resolve("gpt-4o-mini"); r != table.Routes()[0] || !table.Resolve("gpt-5").Advertised {
		t.Errorf("resolved %+v", r)
	}
}

func TestParseOfNoRoutes(t *testing.T) {
	for _, text := range []string{"routes: []", "# nothing\nroutes: []\n", "---\nroutes: []\n", "{advertised_models: serve, routes: []}"} {
		table := parse(t, text)
		if r := table.Resolve("m"); r == nil || !r.Advertised || r.Name != "m" || r.Retry != DefaultRetry || len(table.Routes()) != 0 {
			t.Errorf("%q: %+v", text, r)
		}
	}
	if r := parse(t, "{advertised_models: refuse, routes: []}").Resolve("m"); r != nil {
		t.Errorf("%+v", r)
	}
	// What the file says of every route holds for those that it does not name.
	table := parse(t, "{advertised_models: serve, routes: [{model: a}], defaults: {queue_limit: 7, policy: weighted}}")
	if r := table.Resolve("m"); r == nil || !r.Advertised || r.QueueLimit != 7 || r.Policy != Weighted {
		t.Errorf("%+v", r)
	}
	if r := table.Resolve("a"); r == nil || r.Advertised || r.QueueLimit != 7 {
		t.Errorf("%+v", r)
	}
	if Advertised().Digest() != "" || parse(t, "routes: []").Digest() == parse(t, "{routes: []}").Digest() {
		t.Error("a digest tells files apart, and no file has none")
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		// YAML.
		{"routes: [", "iop.yaml:1: this is not valid YAML, here or in the next lines: "},
		{"a: b: c", "iop.yaml:1: this is not valid YAML, here or in the next lines: "},
		{"\tx", "this is not valid YAML"},
		{"# x\n  é\x00", "iop.yaml:2:4: this byte is not printable UTF-8"},
		{"x: \xff", "iop.yaml:1:4: this byte is not printable UTF-8"},
		{"{}\n---\n{}", "iop.yaml:2:1: a second document"},
		{"routes: &a []\nx: *a", "iop.yaml:2:4: aliases (*a) are not supported"},
		{"routes: &a []\nx: *a", "iop.yaml:1:9: anchors (&a) are not supported"},
		{"routes: !!seq []", "iop.yaml:1:9: tags (!!seq) are not supported"},
		{"x: " + strings.Repeat("[", 40) + strings.Repeat("]", 40), "more than 32 levels deep"},
		{"x: " + strings.Repeat("[", 200_000), "iop.yaml"},
		{strings.Repeat("#", MaxFileSize+1), "larger than 1048576 bytes"},
		// Structure.
		{"- a", "iop.yaml:1:1: this must be a map (name: value), not a list"},
		{"5", "not 5"},
		{"rutes: []", "iop.yaml:1:1: rutes: unknown field; did you mean routes?"},
		{"zzz: 1", "zzz: unknown field; allowed: advertised_models, defaults, routes"},
		{"routes: [{model: a}]\nroutes: []", "iop.yaml:2:1: routes: this is already given, in line 1"},
		{"1: 2", "a name must be a string, not 1"},
		{"<<: {routes: []}", "a merge key"},
		{"routes:", "iop.yaml:1:1: routes: the value is missing"},
		// What an editor, a full disk or a mistake leaves: to take it would open every model to everyone.
		{"", `iop.yaml:1:1: the file holds no routes`},
		{"\n \t\n", `iop.yaml`},
		{" \n\n", `iop.yaml:1:1: the file holds no routes`},
		{"# routes:\n#   - model: a\n", `iop.yaml:1:1: the file holds no routes`},
		{"---\n", `iop.yaml:1:1: the file holds no routes`},
		{"null", `write "routes: []" if that is intended`},
		{"~", `write "routes: []" if that is intended`},
		{"\ufeff", `iop.yaml`},
		{"{}", `iop.yaml:1:1: routes: it is missing; write "routes: []"`},
		{"advertised_models: serve", `iop.yaml:1:1: routes: it is missing`},
		{"# x\ndefaults: {policy: weighted}", `iop.yaml:2:1: routes: it is missing`},
		{"routes: {}", "routes: this must be a list"},
		{"routes: ''", "routes: this must be a list"},
		{"routes: {model: a}", "routes: this must be a list"},
		{"routes: [a]", `iop.yaml:1:10: routes[0]: this must be a map (name: value), not the string "a"`},
		{"advertised_models: deny", `advertised_models: "deny" is unknown; allowed: serve, refuse`},
		// Routes.
		{"routes: [{aliases: [b]}]", "routes[0]: the route has no model"},
		{"routes: [{model: 3}]", "routes[0].model: this must be a string, not 3; put it in quotes"},
		{"routes: [{model: ''}]", "routes[0].model: a model's name must be 1 to 256 bytes long"},
		{"routes: [{model: " + strings.Repeat("m", 257) + "}]", "1 to 256 bytes"},
		{`routes: [{model: "a\n"}]`, "only printable characters"},
		{`routes: [{model: "a\uFFFD"}]`, "only printable characters"},
		{`routes: [{model: " a"}]`, "must not begin or end with a space"},
		{"routes: [{model: gpt-*}]", "not a pattern"},
		{"routes:\n- model: a\n- model: a", `iop.yaml:3:10: routes[1].model: "a" is already a route's name or alias, in line 2`},
		{"routes:\n- model: a\n  aliases: [b]\n- model: b", "in line 3"},
		{"routes:\n- model: a\n  aliases: [a]", "routes[0].aliases[0]: \"a\" is already a route's name"},
		{"routes: [{model: a, aliases: b}]", "routes[0].aliases: this must be a list"},
		{"routes: [{model: a, aliases: []}]", "routes[0].aliases: the list is empty; remove the line"},
		{"routes: [{model: a, principals: []}]", "remove the line to let everyone use the route"},
		{"routes: [{model: a, principals: ['team-[ab]']}]", "routes[0].principals[0]: pattern"},
		{"routes: [{model: a, policy: least-busy}]", `routes[0].policy: "least-busy" is unknown; did you mean least_busy?`},
		{"routes: [{model: a, rename_model: 'yes'}]", "routes[0].rename_model: this must be true or false"},
		{"routes: [{model: a, slot: x}]", "routes[0].slot: a credential slot requires managed mode"},
		{"routes: [{model: a, targets: [{profile: }]}]", "routes[0].targets[0].profile: a credential slot requires managed mode"},
		{"routes: [{model: a, queue_limit: 0}]", "routes[0].queue_limit: this must be a whole number from 1 to 1000000, not 0"},
		{"routes: [{model: a, queue_limit: 1.5}]", "not 1.5"},
		{"routes: [{model: a, queue_limit: many}]", `not the string "many"`},
		{"routes: [{model: a, retry: {attempts: -1}}]", "routes[0].retry.attempts: this must be a whole number from 0 to 10"},
		{"routes: [{model: a, retry: {on: []}}]", "write attempts: 0"},
		{"routes: [{model: a, retry: {on: [timeout]}}]", `routes[0].retry.on[0]: "timeout" is unknown`},
		{"routes: [{model: a, timeouts: {queue: 30}}]", "routes[0].timeouts.queue: this must be a duration with a unit"},
		{"routes: [{model: a, timeouts: {queue: -1s}}]", "must be a duration"},
		{"routes: [{model: a, timeouts: {queue: 25h}}]", "from 0s to 24h"},
		{"defaults: {model: a}", "defaults.model: unknown field; allowed: policy, retry, timeouts, queue_limit"},
		// Targets.
		{"routes: [{model: a, targets: [{}], groups: []}]", "routes[0].groups: the route already has targets"},
		{"routes: [{model: a, targets: []}]", "routes[0].targets: the list is empty"},
		{"routes: [{model: a, groups: []}]", "routes[0].groups: the list is empty"},
		{"routes: [{model: a, groups: [{}]}]", "routes[0].groups[0]: the group has no targets"},
		{"routes: [{model: a, groups: [{when: down, targets: [{}]}]}]", "routes[0].groups[0].when: the first group is always tried first"},
		{"routes: [{model: a, groups: [{targets: [{}]}, {when: offline, targets: [{}]}]}]", `"offline" is unknown; allowed: full, down`},
		{"routes: [{model: a, targets: [{weight: 0}]}]", "routes[0].targets[0].weight: this must be a whole number from 1 to 1000"},
		{"routes: [{model: a, targets: [{node: 'a b'}]}]", "routes[0].targets[0].node: pattern"},
		{"routes: [{model: a, targets: [{provider: '{x}'}]}]", "routes[0].targets[0].provider: pattern"},
		{"routes: [{model: a, targets: [{labels: {tier: 1}}]}]", "routes[0].targets[0].labels.tier: this must be a string, not 1; put it in quotes"},
		{"routes: [{model: a, targets: [{labels: {}}]}]", "the map is empty"},
		{"routes: [{model: a, targets: [{modle: x}]}]", "did you mean model?"},
		// Parameters.
		{"routes: [{model: a, parameters: {defaults: {options.num_predict: 1}}}]", "only top-level parameters"},
		{"routes: [{model: a, parameters: {defaults: {model: b}}}]", "parameters.defaults.model: model is set by the gateway"},
		{"routes: [{model: a, parameters: {caps: {stream: 1}}}]", "stream is set by the gateway"},
		{"routes: [{model: a, parameters: {defaults: {a: null}}}]", "null is not a default"},
		{"routes: [{model: a, parameters: {defaults: {a: [.inf]}}}]", "parameters.defaults.a[0]: a number must be finite"},
		{"routes: [{model: a, parameters: {defaults: {a: 2024-01-01}}}]", "put it in quotes"},
		{"routes: [{model: a, parameters: {defaults: {a: {b: 1, b: 2}}}}]", "parameters.defaults.a.b: this is already given"},
		{"routes: [{model: a, parameters: {defaults: {seed: 1, Seed: 2}}}]", "seed is the same name, spelled differently"},
		{"routes: [{model: a, parameters: {defaults: {max_tokens: 1, max_output_tokens: 2}}}]", "max_tokens sets the same parameter"},
		{"routes: [{model: a, parameters: {defaults: {max_tokens: x}}}]", "a length must be a whole number of tokens"},
		{"routes: [{model: a, parameters: {defaults: {a: " + strings.Repeat("x", maxDefaults) + "}}}]", "the defaults are larger than 65536 bytes"},
		{"routes: [{model: a, parameters: {caps: {a: -1}}}]", "parameters.caps.a: a cap must be a number of at least 0, not -1"},
		{"routes: [{model: a, parameters: {caps: {a: .nan}}}]", "a cap must be a number"},
		{"routes: [{model: a, parameters: {caps: {a: '1'}}}]", "a cap must be a number"},
		{"routes: [{model: a, parameters: {caps: {max_tokens: 0}}}]", "a whole number of tokens, at least 1"},
		{"routes: [{model: a, parameters: {caps: {max_tokens: 1.5}}}]", "a whole number of tokens, at least 1"},
		{"routes: [{model: a, parameters: {caps: {max_completion_tokens: 5}}}]", "write max_tokens, which also applies to max_completion_tokens"},
		{"routes: [{model: a, parameters: {caps: {n_cmpl: 5}}}]", "write n, which also applies to n_cmpl"},
		{"routes: [{model: a, parameters: {caps: {n: 0.5}}}]", "a whole number of answers, at least 1"},
		{"routes: [{model: a, parameters: {allow: [model]}}]", "parameters.allow[0]: model is set by the gateway"},
		{"routes: [{model: a, parameters: {allow: [a.b]}}]", "parameters.allow[0]: only top-level parameters can be set, not \"a.b\""},
		{"routes: [{model: a, parameters: {allow: ['x_*']}}]", "parameters.allow[0]: a parameter's name must consist of letters"},
		{"routes: [{model: a, parameters: {refuse: [num_gpus]}}]", "parameters.refuse[0]: \"num_gpus\" is unknown; did you mean num_gpu?"},
		{"routes: [{model: a, parameters: {refuse: [stream]}}]", "parameters.refuse[0]: stream is set by the gateway"},
		{"routes: [{model: a, parameters: {refuse: [num_gpu, num_gpu]}}]", "parameters.refuse[1]: num_gpu is already in this list"},
		{"routes: [{model: a, parameters: {refuse: [seed], allow: [seed]}}]", "parameters.refuse[0]: seed is also in allow; keep one of them"},
		{"routes: [{model: a, parameters: {refuse: []}}]", "the list is empty; leave it out to refuse none"},
		{"routes: [{model: a, parameters: {allow: [models, models]}}]", "parameters.allow[1]: models is already in this list"},
		{"routes: [{model: a, parameters: {allow: []}}]", "the list is empty; leave it out to allow none"},
		{"routes: [{model: a, parameters: {allow: [3]}}]", "parameters.allow[0]: this must be a string"},
		{"routes: [{model: a, parameters: {caps: {a: 1}, defaults: {a: 2}}}]", "parameters.defaults.a: this is above the cap in line 1"},
		{"routes: [{model: a, parameters: {caps: {a: 1}, defaults: {a: x}}}]", "parameters.defaults.a: the parameter has a cap"},
		{"routes: [{model: a, parameters: {caps: {max_tokens: 5}, defaults: {max_completion_tokens: 9}}}]", "max_completion_tokens: this is above the cap"},
		{"routes: [{model: a, parameters: {caps: {" + manyCaps(65) + "}}}]", "more than 64 defaults and caps"},
	} {
		table, err := Parse("iop.yaml", []byte(c.text))
		e, ok := errors.AsType[*ConfigError](err)
		if !ok || table != nil {
			t.Errorf("%.100q passed (%v)", c.text, err)
			continue
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.100q:\n%v\nwant %s", c.text, err, c.want)
		}
		for _, f := range e.Faults {
			if f.File != "iop.yaml" || f.Message == "" || len(f.String()) > 400 || strings.ContainsAny(f.String(), "\n\x00") {
				t.Errorf("%.100q: fault %.500q", c.text, f)
			}
		}
	}
}

func manyCaps(n int) string {
	caps := make([]string, n)
	for i := range caps {
		caps[i] = fmt.Sprintf("a%d: 1", i)
	}
	return strings.Join(caps, ", ")
}

// TestParseTellsAllFaults: who writes a file mends it once.
func TestParseTellsAllFaults(t *testing.T) {
	_, err := Parse("f", []byte("routes:\n- modle: a\n  policy: best\n  timeouts: {queue: 5}\nadvertised: no\n"))
	want := "f:2:3: routes[0]: the route has no model, the name that clients use\n" +
		"f:2:3: routes[0].modle: unknown field; did you mean model?\n" +
		"f:3:11: routes[0].policy: \"best\" is unknown; allowed: least_busy, weighted, lowest_wait, warm_first, prefix_affinity\n" +
		"f:4:21: routes[0].timeouts.queue: this must be a duration with a unit, such as 500ms, 30s or 5m, from 0s to 24h, not 5\n" +
		"f:5:1: advertised: unknown field; allowed: advertised_models, defaults, routes"
	if err == nil || sortLines(err.Error()) != sortLines(want) {
		t.Errorf("%v\nwant\n%s", err, want)
	}
	_, err = Parse("f", []byte("routes:\n"+strings.Repeat("- {}\n", 30)))
	if e, ok := errors.AsType[*ConfigError](err); !ok || len(e.Faults) != 20 || e.More != 10 || !strings.HasSuffix(err.Error(), "\nf: and 10 more") {
		t.Errorf("%v", err)
	}
}

// TestDocumentQuotesFaults: the faults that docs/routes.md shows are those of a file.
func TestDocumentQuotesFaults(t *testing.T) {
	t.Parallel()
	_, err := Parse("iop.yaml", []byte("routes:\n  - model: chat\n    tagrets: [{model: x}]\n  - model: small\n    aliases: [chat]\n"))
	if err == nil {
		t.Fatal("no fault was found")
	}
	document, readErr := os.ReadFile("../../docs/routes.md")
	if readErr != nil {
		t.Fatal(readErr)
	}
	if !strings.Contains(string(document), "```\n"+err.Error()+"\n```") {
		t.Errorf("docs/routes.md does not quote\n%v", err)
	}
}

// sortLines leaves open the order of faults at the same place.
func sortLines(s string) string {
	lines := strings.Split(s, "\n")
	return fmt.Sprint(len(lines), strings.Join(lines[2:], "\n"), strings.Contains(s, "modle: there"), strings.Contains(s, "has no model"))
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "iop.yaml")
	if _, err := Load(path); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("%v", err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(path, []byte("routes: [{model: a}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if table, err := Load(path); err != nil || table.Resolve("a") == nil {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(path, make([]byte, 3*MaxFileSize), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path+": the file is larger") {
		t.Errorf("%v", err)
	}
}

// TestExample: the annotated example is right, and its comments say which defaults hold.
func TestExample(t *testing.T) {
	table, err := Load("../../deploy/iop.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	checkTable(t, table)
	if len(table.Routes()) < 3 {
		t.Errorf("%d routes", len(table.Routes()))
	}
}

// checkTable tests what every Table promises.
func checkTable(t *testing.T, table *Table) {
	t.Helper()
	if len(table.Digest()) != 12 {
		t.Errorf("digest %q", table.Digest())
	}
	for _, r := range table.Routes() {
		for _, name := range append([]string{r.Name}, r.Aliases...) {
			if name == "" || len(name) > openai.MaxModelLength || table.Resolve(name) != r {
				t.Errorf("%q does not lead to its route", name)
			}
		}
		if r.Advertised || len(r.Groups) == 0 || r.QueueLimit < 0 || r.Retry.Attempts < 0 || int(r.Policy) >= len(policyNames) {
			t.Errorf("%+v", r)
		}
		for _, g := range r.Groups {
			if len(g.Targets) == 0 {
				t.Errorf("%s has an empty group", r.Name)
			}
			for _, target := range g.Targets {
				if target.Model == "" || target.Weight < 1 || target.Weight > 1000 {
					t.Errorf("%+v", target)
				}
			}
		}
		for _, d := range []time.Duration{r.Timeouts.Queue, r.Timeouts.NoNode, r.Timeouts.FirstByte, r.Timeouts.BetweenChunks, r.Timeouts.Total} {
			if d < 0 || d > 24*time.Hour {
				t.Errorf("duration %s", d)
			}
		}
		checkParameters(t, r.Parameters)
	}
}

// checkParameters tests that a request can be planned with what the file says.
func checkParameters(t *testing.T, p Parameters) {
	t.Helper()
	for _, d := range p.Defaults {
		if !json.Valid([]byte(d.Value)) {
			t.Errorf("default %s is no JSON: %s", d.Name, d.Value)
		}
	}
	for _, c := range p.Caps {
		if c.Max < 0 || math.IsNaN(c.Max) || math.IsInf(c.Max, 0) {
			t.Errorf("cap %+v", c)
		}
	}
	body := []byte(`{"model":"m"}`)
	e, err := openai.ParseEnvelope(body)
	if err != nil {
		t.Fatal(err)
	}
	edits, err := e.Plan(body, openai.OpChatCompletions, p.Defaults, p.Caps)
	if err != nil {
		t.Errorf("%+v: %v", p, err)
	}
	if out := e.Rewrite(body, openai.RewriteSpec{Edits: edits}); !json.Valid(out) {
		t.Errorf("%+v make %s", p, out)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"", "routes: [{model: a}]", "a: &x [*x]", "- 1", "{}\n---\n", "routes:\n  - model: chat\n    aliases: [b]\n    groups:\n      - targets: [{node: x, weight: 2}]\n",
		"defaults: {retry: {attempts: 2, on: [lost]}, timeouts: {total: 5m}, policy: weighted}",
		"routes: [{model: a, parameters: {defaults: {a: [1, 0x1F, -2.5e3, {b: c}], max_tokens: 5}, caps: {max_tokens: 9, z: 1_000}}}]",
		"<<: {a: b}", "? [a]\n: b", "routes: [{model: a, targets: [{labels: {a: b}}], principals: ['*']}]", "%YAML 1.1\n---\na: !!binary x", "a: |\n  b\n c",
	} {
		f.Add([]byte(s))
	}
	if example, err := os.ReadFile("../../deploy/iop.example.yaml"); err == nil {
		f.Add(example)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		table, err := Parse("f", data)
		if err == nil {
			checkTable(t, table)
			return
		}
		e, ok := errors.AsType[*ConfigError](err)
		if !ok || table != nil || len(e.Faults) == 0 || len(e.Faults) > maxFaults {
			t.Fatalf("%v", err)
		}
		for _, fault := range e.Faults {
			if fault.Line < 0 || fault.Message == "" || len(fault.String()) > 1000 {
				t.Fatalf("%+v", fault)
			}
		}
	})
}

// TestDocumentedExamples: what the operator's page shows can be pasted.
func TestDocumentedExamples(t *testing.T) {
	page, err := os.ReadFile("../../docs/routes.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```yaml\n")[1:]
	for _, block := range blocks {
		text, _, _ := strings.Cut(block, "```")
		if strings.HasPrefix(text, "parameters:") { // a part of a route
			text = "routes:\n- model: a\n  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
		}
		checkTable(t, parse(t, text))
	}
	if len(blocks) < 5 {
		t.Errorf("%d examples", len(blocks))
	}
	for _, name := range append(append(policyNames[:], retryNames...), whenNames...) {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/routes.md does not explain %s", name)
		}
	}
}

func TestSlotsInManagedMode(t *testing.T) {
	table, err := Parse("iop.yaml", []byte(`
routes:
- model: a
  targets:
  - {slot: openai, profile: eu, base_url: "HTTPS://API.example.com:443/v1/"}
  - {slot: other}
  - {node: n}
`), Managed(true))
	if err != nil {
		t.Fatal(err)
	}
	targets := table.Resolve("a").Groups[0].Targets
	if got := targets[0]; got.Slot != "openai" || got.Profile != "eu" || got.BaseURL != "https://api.example.com" {
		t.Errorf("the first target is %+v", got)
	}
	if got := targets[1]; got.Slot != "other" || got.Profile != "" || got.BaseURL != "" {
		t.Errorf("the second target is %+v", got)
	}
	if targets[2].Slot != "" {
		t.Errorf("the third target is %+v", targets[2])
	}
	for file, want := range map[string]string{
		"routes: [{model: a, slot: x}]":                                        "routes[0].slot: this belongs to a target",
		"routes: [{model: a, targets: [{slot: 'a b'}]}]":                       "routes[0].targets[0].slot: a slot name must consist of",
		"routes: [{model: a, targets: [{slot: }]}]":                            "routes[0].targets[0].slot: the value is missing",
		"routes: [{model: a, targets: [{profile: p}]}]":                        "routes[0].targets[0]: profile and base_url set how",
		"routes: [{model: a, targets: [{slot: s, base_url: 'ftp://x'}]}]":      "routes[0].targets[0].base_url: a target must be http(s)",
		"routes: [{model: a, targets: [{slot: s, base_url: 'http://u:p@x'}]}]": "routes[0].targets[0].base_url: a target must be http(s)",
		"routes: [{model: a, targets: [{slot: s, profile: ''}]}]":              "routes[0].targets[0].profile: a profile name must be",
		"routes: [{model: a, targets: [{slot: s, slott: t}]}]":                 "did you mean slot",
		"defaults: {slot: x}":                                                  "defaults.slot: unknown field",
	} {
		_, err := Parse("iop.yaml", []byte(file), Managed(true))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot  %v\nwant %s", file, err, want)
		}
	}
	for _, file := range []string{
		"routes: [{model: a, targets: [{slot: s}]}]", "routes: [{model: a, targets: [{base_url: 'http://x'}]}]",
	} {
		if _, err := Parse("iop.yaml", []byte(file), Managed(false)); err == nil || !strings.Contains(err.Error(), "requires managed mode") {
			t.Errorf("%s in token mode: %v", file, err)
		}
	}
}
