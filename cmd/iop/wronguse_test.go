package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"iop/gateway/spelling"
)

// TestWrongFlags: an unknown flag names the one that is meant, or the command that has it.
func TestWrongFlags(t *testing.T) {
	for args, want := range map[string]string{
		"node --provder x":       "unknown flag: --provder; did you mean --provider?",
		"node --token x":         "unknown flag: --token; did you mean --join-token-file?",
		"node --url ws://h":      "did you mean --edge?",
		"key updat ci --rpm 1":   "unknown command \"updat\" for \"iop key\"; did you mean \"update\"?",
		"status --token x":       "did you mean --admin-token-file?",
		"status --url x":         "did you mean --admin-url?",
		"edge --port 80":         "did you mean --listen?",
		"edge --LISTEN :1":       "did you mean --listen?",
		"edge --cert x":          "did you mean --tls-cert?",
		"edge -listen :1":        "unknown flag: -listen; did you mean --listen?",
		"edge --join-token-file": "it is a flag of iop node",
		"nodes --records":        "it is a flag of iop usage; see iop nodes --help",
		"node --zzzzzzzzzz":      "unknown flag: --zzzzzzzzzz; see iop node --help",
		"nodes lst":              `unknown command "lst" for "iop nodes"; did you mean "list"?`,
		"kye list":               `did you mean "key"?`,
		"tokns":                  `did you mean "tokens"?`,
		"runs shwo x":            `did you mean "show"?`,
		"status x":               `iop status takes no argument "x"`,
	} {
		status, _, stderr := execute(t, strings.Fields(args)...)
		if status != exitUsage || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("iop %s: status %d, %q; want %q", args, status, stderr, want)
		}
	}
}

// TestStrays: a variable that no setting reads is named, with the one that is meant; its value is not.
func TestStrays(t *testing.T) {
	root := newRootCommand()
	for variable, want := range map[string]string{
		"IOP_EDGE_LISTN":                   "did you mean IOP_EDGE_LISTEN?",
		"IOP_EGDE_STATE":                   "did you mean IOP_EDGE_STATE?",
		"IOP_EDGE_JOIN_TOKEN":              "is ignored",
		"IOP_NODE_JOIN_TOKENFILE":          "did you mean IOP_NODE_JOIN_TOKEN_FILE?",
		"IOP_ADMIN_TOKN":                   "did you mean IOP_ADMIN_TOKEN?",
		"IOP_LISTEN":                       "did you mean IOP_EDGE_LISTEN?",
		"IOP_JOIN_TOKEN":                   "did you mean IOP_NODE_JOIN_TOKEN?",
		"IOP_SOMETHING":                    "IOP_SOMETHING is not a setting of this version and is ignored",
		"IOP_EDGE_LISTEN":                  "",
		"IOP_NODE_JOIN_TOKEN_FILE":         "",
		"IOP_SIM_SLOTS":                    "",
		"IOP_KEY":                          "", // the documents'
		"IOP_EDGE_PORT":                    "", // Kubernetes', for a service named iop-edge
		"IOP_EDGE_SERVICE_PORT_HTTP":       "",
		"IOP_EDGE_PORT_8480_TCP_ADDR":      "",
		"HOME":                             "",
		"XIOP_EDGE_LISTN":                  "",
		"IOP_EDGE_IDENTITY_CERTIFICATEFOO": "is ignored",
	} {
		list := strays(root, []string{variable + "=" + canary, "IOP_EDGE_LOG=info"})
		got := ""
		for _, s := range list {
			got += s.String()
		}
		if (want == "") != (got == "") || !strings.Contains(got, want) || strings.Contains(got, canary) {
			t.Errorf("%s: %q, want %q", variable, got, want)
		}
	}
}

// TestStraysAreSaid: by a server all of them, by another command those that are nearly a setting, by the doctor as warnings.
func TestStraysAreSaid(t *testing.T) {
	t.Setenv("IOP_EDGE_LISTN", ":1")
	t.Setenv("IOP_SOMETHING", "x")
	s := newSite(t)
	if _, _, stderr := execute(t, "key", "list"); strings.Count(stderr, "did you mean IOP_EDGE_LISTEN?") != 1 || strings.Contains(stderr, "IOP_SOMETHING") {
		t.Errorf("a command: %q", stderr)
	}
	s.startEdge()
	if out := s.edge.output(); !strings.Contains(out, "iop: IOP_EDGE_LISTN is not a setting; did you mean IOP_EDGE_LISTEN?") || !strings.Contains(out, "IOP_SOMETHING") {
		t.Errorf("the Edge: %s", out)
	}
	args, _ := quietEdge(t)
	_, d := diagnose(t, args...)
	d.has(t, "settings", verdictWarning, "did you mean IOP_EDGE_LISTEN?")
	d.has(t, "settings", verdictWarning, "IOP_SOMETHING")
}

// TestForms: each noun works in both numbers, with "list" and without, and shells complete it.
func TestForms(t *testing.T) {
	s := newSite(t)
	s.startEdge()
	for _, nouns := range [][]string{
		{"nodes", "node list"}, {"runs", "run"}, {"routes", "route"}, {"queue", "queues"}, {"key", "keys"}, {"slot", "slots"}, {"profile", "profiles"},
		{"join-token", "join-tokens", "token", "tokens"}, {"node-list", "node-lists"}, {"master-key", "master-keys"}, {"audit"}, {"usage"},
	} {
		want := headOf(s.must(strings.Fields(nouns[0])...))
		for _, noun := range nouns {
			for _, form := range []string{noun, noun + " list", noun + " ls"} {
				if strings.HasPrefix(noun, "node ") && form != noun {
					form = "node ls"
				}
				if got := headOf(s.must(strings.Fields(form)...)); got != want {
					t.Errorf("iop %s: %q, want %q", form, got, want)
				}
			}
		}
	}
	if _, _, stderr := execute(t, "run", "show", "run_none"); !strings.Contains(stderr, "iop runs lists them") {
		t.Errorf("run show: %q", stderr)
	}
	if out := s.must("keys", "--json"); out != `{"data":[]}`+"\n" {
		t.Errorf("iop keys --json: %q", out)
	}
	for args, want := range map[string]string{
		"run show x": "iop runs lists", "runs show x": "iop runs lists", "node show x": "iop nodes lists", "nodes show x": "iop nodes lists",
		"signing-keys": "needs a command",
	} {
		if _, _, stderr := execute(t, strings.Fields(args)...); !strings.Contains(stderr, want) {
			t.Errorf("iop %s: %q", args, stderr)
		}
	}
	for line, want := range map[string][]string{
		"nodes ": {"list\t", "show\t"}, "node ": {"list\t", "show\t"}, "runs ": {"list\t", "show\t"}, "keys ": {"create\t", "list\t"},
		"key": {"key\t", "keys\t"}, "tok": {"token\t", "tokens\t"}, "route": {"route\t", "routes\t"}, "tokens ": {"create\t"}, "routes ": {"list\t"},
	} {
		out := "\n" + completions(t, strings.Split(line, " ")...)
		for _, word := range want {
			if !strings.Contains(out, "\n"+word) {
				t.Errorf("%q: %q, want %q", line, out, word)
			}
		}
	}
}

// headOf is the header of a table.
func headOf(table string) string {
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "from ") && strings.TrimSpace(line) != "" {
			return line
		}
	}
	return ""
}

// FuzzNearest: whatever is typed, the answer is one of the names, and asking costs little.
func FuzzNearest(f *testing.F) {
	var names []string
	visit := newRootCommand()
	for _, c := range visit.Commands() {
		names = append(names, c.Name())
	}
	for _, seed := range []string{"kye", "", "tokens", "\x00", strings.Repeat("nodes", 100)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, typed string) {
		got := spelling.Nearest(typed, names)
		if got != "" && !contains(visit, got) {
			t.Fatalf("%q is no command", got)
		}
		_ = nearVariable(typed, []string{"IOP_EDGE_LISTEN"})
	})
}

func contains(root *cobra.Command, name string) bool {
	for _, c := range root.Commands() {
		if c.Name() == name {
			return true
		}
	}
	return false
}
