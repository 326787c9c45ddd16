package e2e

import (
	"slices"
	"strings"
	"testing"
)

// TestFirstRoute: a first route takes nothing away from the models that Nodes offer, and a route for some can't be got
// round by the name or the other spelling of its target. Log, check and list say what goes which way.
func TestFirstRoute(t *testing.T) {
	t.Parallel()
	s := newRouted(t, "routes:\n  - model: fast\n    targets: [{model: 'llama3.2:latest'}]\n")
	sim := s.startSim("--models", "llama3.2:latest,llama3.2,qwen3:8b")
	s.launchNode("node-1", "--provider", "sim="+sim.url)
	s.serving("node-1", "qwen3:8b")
	team, stranger := s.newKey("team", "--owner", "team"), s.newKey("stranger", "--owner", "stranger")
	for _, model := range []string{"fast", "llama3.2:latest", "llama3.2", "qwen3:8b"} {
		if got := s.asStranger(t, stranger, model); got != 200 {
			t.Errorf("beside a route without limits a stranger gets %d for %s", got, model)
		}
	}
	s.logs(t, `"served_without_route":["llama3.2","qwen3:8b"]`)

	const limited = "routes:\n  - model: fast\n    principals: [team]\n    targets: [{model: 'llama3.2:latest'}, {model: llama3.2:70b, node: big}]\n"
	next := s.file + ".next"
	writeRoutes(t, next, limited)
	check := []string{"edge", "--check-config", "--config", next, "--admin-listen", strings.TrimPrefix(s.admin, "http://"), "--state", s.state}
	says(t, iop(t, nil, check...), "models that no route names are served under their own names\n", "fast: now for team, previously for everyone\n",
		"llama3.2:latest: only through the route fast, which limits it (principals)\n",
		"served without a route:\n  qwen3:8b\n", "  llama3.2: fast (principals)\n  llama3.2:70b: fast (principals)\n  llama3.2:latest: fast (principals)\n",
		"targets that no connected Node offers:\n  fast: llama3.2:70b on big\n")

	before := s.config().Digest
	writeRoutes(t, s.file, limited)
	s.configBecomes("the limit is in force", func(c configState) bool { return c.Digest != before })
	for model, want := range map[string]int{"fast": 404, "llama3.2:latest": 404, "llama3.2": 404, "LLAMA3.2": 404, "qwen3:8b": 200} {
		if got := s.asStranger(t, stranger, model); got != want {
			t.Errorf("beside a limited route a stranger gets %d for %s, want %d", got, model, want)
		}
	}
	if got := s.modelsOf(t, stranger); !slices.Equal(got, []string{"qwen3:8b"}) {
		t.Errorf("a stranger sees %q", got)
	}
	for model, want := range map[string]int{"fast": 200, "llama3.2:latest": 404} {
		if got := s.asStranger(t, team, model); got != want {
			t.Errorf("the team gets %d for %s, want %d", got, model, want)
		}
	}
	s.logs(t, `"only_through_route":["llama3.2: fast (principals)"`, `"not_offered":["fast: llama3.2:70b on big"]`)
	says(t, iop(t, s.env, "routes"), "served without a route:\n  qwen3:8b\n", "  llama3.2: fast (principals)\n", "  fast: llama3.2:70b on big\n")

	writeRoutes(t, next, "routes: []\n")
	says(t, iop(t, nil, check...), "OPENS fast: removed; a model with this name", "OPENS llama3.2:latest: served to everyone where a Node advertises it, previously only through the route fast\n")
	writeRoutes(t, next, "advertised_models: refuse\n"+limited)
	says(t, iop(t, nil, check...), "models that no route names are refused\n", "offered and refused, because no route names them:\n  llama3.2\n  qwen3:8b\n")

	doubtful := []string{
		"principals that no live API key has:\n  fast: teem; did you mean team?\n", "  fast: key:stranger; the principal of the key with this name is stranger\n  fast: red\n",
		"defaults and caps that no known API or engine has:\n  fast: parameters.caps.max_token; did you mean max_tokens?\n",
	}
	const mistyped = "routes:\n  - {model: fast, principals: [team, teem, key:stranger, red], parameters: {caps: {max_token: 9}}}\n"
	writeRoutes(t, next, mistyped)
	says(t, iop(t, nil, check...), doubtful...)
	before = s.config().Digest
	writeRoutes(t, s.file, mistyped)
	s.configBecomes("the names are mistyped", func(c configState) bool { return c.Digest != before })
	says(t, iop(t, s.env, "routes"), doubtful...)
	s.logs(t, `"unknown_parameters":["fast: parameters.caps.max_token; did you mean max_tokens?"]`, `"level":"WARN"`, `"principals_without_key":["fast: teem`)
}

// logs waits for a comparison of the routes with the fleet in the Edge's log that says all of it.
func (s *stack) logs(t *testing.T, wants ...string) {
	t.Helper()
	line := s.edge.line(wants[0], patience)
	says(t, line, append(wants, "routes compared with the models that nodes offer")...)
}

// says fails unless the text has all of it.
func says(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
}
