package e2e

import (
	"context"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
)

// A route for some only, and the same with its bounds gone.
const (
	limitedRoute = `routes:
  - model: big
    principals: [team]
    parameters: {caps: {max_tokens: 4}}
    targets: [{model: sim-small}]
  - model: small
    targets: [{model: sim-small}]
`
	openedRoute = `routes:
  - model: big
    parameters: {caps: {max_tokens: 400}}
    targets: [{model: sim-small}]
`
)

// asStranger asks for a model with a key that no route lists, and returns the status.
func (s *stack) asStranger(t *testing.T, key, model string) int {
	t.Helper()
	a := s.askAs(context.Background(), key, "/v1/chat/completions", chat(model, "tokens=1", false), nil)
	<-a.done
	if a.err != nil {
		t.Fatal(a.err)
	}
	return a.status
}

// TestEmptiedFileOpensNothing: whatever empties the file of routes, nobody may do more than before: neither under the
// running Edge nor under one that starts with it. What says that there are to be no routes is taken.
func TestEmptiedFileOpensNothing(t *testing.T) {
	t.Parallel()
	s := newRouted(t, limitedRoute)
	s.startNodeBehind("node-1", "sim-small")
	team, stranger := s.newKey("team", "--owner", "team"), s.newKey("stranger", "--owner", "stranger")
	digest := s.config().Digest
	for name, empty := range map[string]func() error{
		"truncated": func() error { return os.Truncate(s.file, 0) },
		"blank":     func() error { return os.WriteFile(s.file, []byte("\n \n"), 0o600) },
		"comments": func() error {
			return os.WriteFile(s.file, []byte("# "+strings.ReplaceAll(limitedRoute, "\n", "\n# ")), 0o600)
		},
		"a null":        func() error { return os.WriteFile(s.file, []byte("null\n"), 0o600) },
		"an empty map":  func() error { return os.WriteFile(s.file, []byte("{}\n"), 0o600) },
		"no routes":     func() error { return os.WriteFile(s.file, []byte("advertised_models: serve\n"), 0o600) },
		"a lone member": func() error { return os.WriteFile(s.file, []byte("routes:\n"), 0o600) },
	} {
		writeRoutes(t, s.file, limitedRoute)
		s.edge.signal(syscall.SIGHUP)
		s.configBecomes("the file is right", func(c configState) bool { return c.Fault == nil })
		if err := empty(); err != nil {
			t.Fatal(err)
		}
		if name != "truncated" { // which the Edge is to find by itself
			s.edge.signal(syscall.SIGHUP)
		}
		s.configBecomes("the fault is known: "+name, func(c configState) bool { return c.Fault != nil })
		if c := s.config(); c.Digest != digest {
			t.Errorf("%s: in force is %+v", name, c)
		}
		if got := s.reload(t); got != 422 {
			t.Errorf("%s: the admin API answers %d", name, got)
		}
		for model, want := range map[string]int{"big": 404, "sim-small": 404, "small": 200} {
			if got := s.asStranger(t, stranger, model); got != want {
				t.Errorf("%s: a stranger gets %d for %s, want %d", name, got, model, want)
			}
		}
		if got := s.asStranger(t, team, "big"); got != 200 {
			t.Errorf("%s: who may gets %d", name, got)
		}
	}
	for _, empty := range []string{"\n", "# nothing\n", "{}\n"} {
		refusedStart(t, s.file, empty, `write "routes: []"`)
	}

	writeRoutes(t, s.file, "routes: []\n")
	s.configBecomes("there are no routes", func(c configState) bool { return c.Digest != digest && c.Fault == nil })
	if got := s.asStranger(t, stranger, "sim-small"); got != 200 {
		t.Errorf("without routes a stranger gets %d for a model that a Node offers", got)
	}
	line := s.edge.line("configuration applied", patience)
	for _, want := range []string{`"level":"WARN"`, "big: removed; a model with this name", "sim-small: served to everyone where a Node advertises it, previously only through the route big"} {
		if !strings.Contains(line, want) {
			t.Errorf("the log does not say %s: %s", want, line)
		}
	}
}

// reload asks the admin API to read the file of routes now, and returns the status.
func (s *stack) reload(t *testing.T) int {
	t.Helper()
	req, err := http.NewRequest("POST", s.admin+"/admin/v1/config/reload", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.adminToken())
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}

// TestCheckConfigComparesWithTheEdge: before a file is put in place, its author sees what it opens.
func TestCheckConfigComparesWithTheEdge(t *testing.T) {
	t.Parallel()
	s := newRouted(t, limitedRoute)
	digest := s.config().Digest
	next := s.file + ".next"
	writeRoutes(t, next, openedRoute)
	args := []string{"edge", "--check-config", "--config", next, "--admin-listen", strings.TrimPrefix(s.admin, "http://"), "--state", s.state}
	out := iop(t, nil, args...)
	for _, want := range []string{
		next + ": 1 route, ok\n", "in force at " + s.admin + ":\n",
		"  OPENS big: now for everyone, previously for team\n", "  OPENS big: cap of max_tokens is 400, previously 4\n", "        small: removed; a model with this name that a Node advertises is served to everyone\n",
		"served only through a route, which limits them:\n  sim-small: big (caps)\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not print %q:\n%s", want, out)
		}
	}
	if c := s.config(); c.Digest != digest {
		t.Error("the check applied something")
	}
	writeRoutes(t, next, "# the same\n"+limitedRoute)
	if out := iop(t, nil, args...); !strings.Contains(out, "no change to the routes in force") {
		t.Error(out)
	}
	if err := s.edge.stop(patience); err != nil {
		t.Fatal(err)
	}
	out, _, err := tryIOP(t, nil, args...)
	if err != nil || !strings.Contains(out, "their own names\nnot compared with routes in force: no Edge is running") {
		t.Errorf("%v: %s", err, out)
	}
}
