package route

import (
	"strings"
	"testing"
)

func TestChanges(t *testing.T) {
	const served = "routes: [{model: a, principals: [alice, team-*], parameters: {caps: {max_tokens: 100}}, targets: [{model: m}]}]"
	const one = "advertised_models: refuse\nroutes: [{model: a, aliases: [x], principals: [alice, team-*], parameters: {caps: {max_tokens: 100}}, targets: [{model: m}]}]"
	for _, c := range []struct {
		name, old, next string
		want            []string // with a '!' before what opens something
	}{
		{"nothing", one, "# another file\n" + one, nil},
		{"order of principals", one, strings.Replace(one, "alice, team-*", "team-*, alice", 1), nil},
		{"opened to everyone", one, strings.Replace(one, "principals: [alice, team-*], ", "", 1), []string{"!a: now for everyone, previously for alice, team-*"}},
		{"opened to one more", one, strings.Replace(one, "alice", "alice, bob", 1), []string{"!a: now for alice, bob, team-*, previously for alice, team-*"}},
		{"opened by a wider pattern", one, strings.Replace(one, "team-*", "team*", 1), []string{"!a: now for alice, team*, previously for alice, team-*"}},
		{"a pattern that may be wider", one, strings.Replace(one, "alice", "'team-?*'", 1), []string{"!a: now for team-?*, team-*, previously for alice, team-*"}},
		{"limited", one, strings.Replace(one, "alice, ", "", 1), []string{"a: now for team-*, previously for alice, team-*"}},
		{"limited to one of a pattern", one, strings.Replace(one, "team-*", "team-7", 1), []string{"a: now for alice, team-7, previously for alice, team-*"}},
		{"limited from everyone", "routes: [{model: a}]", "routes: [{model: a, principals: ['b*']}]", []string{"a: now for b*, previously for everyone"}},
		{"everyone by a pattern", "routes: [{model: a, principals: ['*']}]", "routes: [{model: a}]", nil},
		{"cap raised", one, strings.Replace(one, "100", "200", 1), []string{"!a: cap of max_tokens is 200, previously 100"}},
		{"cap lowered", one, strings.Replace(one, "100", "50", 1), []string{"a: cap of max_tokens is 50, previously 100"}},
		{"cap gone", one, strings.Replace(one, ", parameters: {caps: {max_tokens: 100}}", "", 1), []string{"!a: no cap of max_tokens, previously 100"}},
		{"cap added", one, strings.Replace(one, "max_tokens: 100", "max_tokens: 100, n: 1", 1), []string{"a: cap of n is 1, previously none"}},
		{"a member allowed", one, strings.Replace(one, "caps:", "allow: [provider, x], caps:", 1), []string{"!a: now allows the members: provider, x"}},
		{"a member no longer allowed", strings.Replace(one, "caps:", "allow: [provider, x], caps:", 1), strings.Replace(one, "caps:", "allow: [x], caps:", 1), []string{"a: no longer allows the members: provider"}},
		{"a member refused", one, strings.Replace(one, "caps:", "refuse: [num_gpu], caps:", 1), []string{"a: now refuses the members: num_gpu"}},
		{"a member no longer refused", strings.Replace(one, "caps:", "refuse: [num_gpu, seed], caps:", 1), strings.Replace(one, "caps:", "refuse: [top_k, seed], caps:", 1),
			[]string{"!a: no longer refuses the members: num_gpu", "a: now refuses the members: top_k"}},
		{"targets", one, strings.Replace(one, "{model: m}", "{model: n}", 1), []string{"a: changed: targets"}},
		{"more of it", one, strings.Replace(one, "model: a,", "model: a, policy: weighted, timeouts: {total: 1m}, queue_limit: 3, rename_model: true, retry: {attempts: 0},", 1),
			[]string{"a: changed: policy, retry, timeouts, queue_limit, rename_model"}},
		{"gone", one, "advertised_models: refuse\nroutes: [{model: b}]", []string{"!b: new, for everyone", "a: removed", "x: removed"}},
		{"all gone", one, "routes: []", []string{
			"!models that no route names are served from now on, to everyone",
			"!a: removed; a model with this name that a Node advertises is served to everyone", "!x: removed; a model with this name that a Node advertises is served to everyone"}},
		{"an alias gone", one, strings.Replace(one, "aliases: [x], ", "", 1), []string{"x: removed"}},
		{"an alias of another route", one, strings.Replace(one, "aliases: [x], ", "", 1)[:len(one)-len("aliases: [x], ")-1] + ", {model: b, aliases: [x], targets: [{model: m}]}]",
			[]string{"!b: new, for everyone", "!x: now for everyone, previously for alice, team-*", "!x: no cap of max_tokens, previously 100", "x: now means the route b, previously a"}},
		{"from no file to refusal", "", one, []string{"models that no route names are refused from now on", "a: new, for alice, team-*", "x: new, an alias of a, for alice, team-*"}},
		{"from no file", "", served, []string{"a: new, for alice, team-*", "m: only through the route a, which limits it (principals, caps)"}},
		{"a first route", "", "routes: [{model: a, targets: [{model: m}]}]", []string{"a: new, for everyone"}},
		{"to the rule of old files", one, one[len("advertised_models: refuse\n"):], []string{"!models that no route names are served from now on, to everyone"}},
		{"a restricted route gone", served, "routes: []", []string{
			"!a: removed; a model with this name that a Node advertises is served to everyone", "!m: served to everyone where a Node advertises it, previously only through the route a"}},
		{"its target another", served, strings.Replace(served, "{model: m}", "{model: n}", 1), []string{
			"!m: served to everyone where a Node advertises it, previously only through the route a", "a: changed: targets", "n: only through the route a, which limits it (principals, caps)"}},
		{"its limits gone", served, "routes: [{model: a, targets: [{model: m}]}]", []string{
			"!a: now for everyone, previously for alice, team-*", "!a: no cap of max_tokens, previously 100", "!m: served to everyone where a Node advertises it, previously only through the route a"}},
		{"a route opens its target's name", served, served[:len(served)-1] + ", {model: m}]", []string{"!m: new, for everyone"}},
		{"and closes it", served[:len(served)-1] + ", {model: m}]", served, []string{"m: removed; a model with this name is reached only through the route a, which limits it (principals, caps)"}},
		{"a route without limits goes", "routes: [{model: a, targets: [{model: m}]}]", "routes: []", []string{"a: removed; a model with this name that a Node advertises is served to everyone"}},
		{"a route with a time limit goes", "routes: [{model: a, timeouts: {total: 1m}}]", "routes: []", []string{"!a: removed; a model with this name that a Node advertises is served to everyone"}},
		{"a route with the time limit of all goes", "routes: [{model: a}]\ndefaults: {timeouts: {total: 1m}}", "routes: []\ndefaults: {timeouts: {total: 1m}}",
			[]string{"a: removed; a model with this name that a Node advertises is served to everyone"}},
		{"and that limit with it", "routes: [{model: a}]\ndefaults: {timeouts: {total: 1m}}", "routes: []", []string{
			"!a: removed; a model with this name that a Node advertises is served to everyone", "models that no route names: changed: timeouts"}},
		{"defaults of advertised models", "routes: []", "routes: []\ndefaults: {queue_limit: 5}", []string{"models that no route names: changed: queue_limit"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			old := Advertised()
			if c.old != "" {
				old = parse(t, c.old)
			}
			var got []string
			for _, change := range Changes(old, parse(t, c.next)) {
				if change.Kind == "" || change.Detail == "" {
					t.Errorf("%+v", change)
				}
				mark := ""
				if change.Opens {
					mark = "!"
				}
				got = append(got, mark+change.String())
			}
			if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}
