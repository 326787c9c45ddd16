package main

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"iop/gateway/spelling"
	"iop/identity"
	"iop/nodeagent"
	"iop/tunnel"
)

func newDoctorNodeCommand() *cobra.Command {
	config := newNodeSettings()
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Check a Node: settings, files, the way to the Edge, clocks, inference servers",
		Long: `Check a Node: its settings and the modes of its files, the way to the Edge through
any proxies, the Edge's certificate, both clocks, and whether the Edge accepts the
join token or certificate with this name, labels and models. Check the inference
servers: whether they answer, their models, and how many runs each gets at once.

The Edge sees a connection that ends before it registers. A running Node is not
disturbed. Inference servers get the same requests as from a Node.`,
		Example: `  iop doctor node --edge wss://edge.example.org/tunnel/v1 --join-token-file token
  iop doctor node --provider vllm=http://127.0.0.1:8000 --json`,
	}
	s := bindSettings(cmd, nodePrefix, &config, nil)
	return doctorCommand(cmd, func(ctx context.Context, d *doctor) {
		n := nodeDoctor{d: d, config: &config, settings: s}
		agent, err := config.load(s)
		d.settingsLoaded(err)
		n.files(agent.Providers)
		n.examine(ctx)
		n.way(ctx, agent, err == nil)
		n.tell()
	})
}

// nodeDoctor examines the Node of some settings.
type nodeDoctor struct {
	d        *doctor
	config   *nodeSettings
	settings *settings

	// Set by examine.
	examined []nodeagent.Examined
	searched bool // no provider was given
}

// files examines those that hold secrets.
func (n *nodeDoctor) files(providers []nodeagent.ProviderSpec) {
	file := n.settings.field("JOIN_TOKEN").file.text
	if file == "" {
		file = os.Getenv(nodePrefix + "JOIN_TOKEN_FILE")
	}
	if file != "" && !n.config.managed() {
		n.d.privateFile("join token", file)
	}
	if token := n.config.JoinToken; token != "" && !strings.HasPrefix(token, "njt-iop_") {
		n.d.fail("join token", "give what \"iop join-token create\" printed", "it does not look like a join token")
	}
	for _, p := range providers {
		if p.KeyFile != "" {
			n.d.privateFile("provider", p.KeyFile)
		}
	}
}

// way examines the connection to the Edge.
// valid: the settings are.
func (n *nodeDoctor) way(ctx context.Context, agent nodeagent.Config, valid bool) {
	if n.config.Edge == "" {
		return // the settings' line has said so
	}
	w := tunnelDoctor{d: n.d, url: n.config.Edge, managed: n.config.managed()}
	if valid {
		w.trial = &tunnel.Trial{Node: agent.Name, Labels: agent.Labels, Models: n.models()}
	}
	if !w.managed {
		w.token = n.config.JoinToken
		roots, err := trust(n.config.CA)
		if err != nil {
			n.d.fail("tls", "name a PEM file with the authority of the Edge's certificate", "%s %v", n.config.CA, err)
			return
		}
		w.tls, w.roots = roots, n.config.CA
		w.examine(ctx)
		return
	}
	files := identityFiles{cert: n.config.TLSCert, key: n.config.TLSKey, bundle: n.config.CA, socket: n.config.SPIFFESocket}
	if !n.d.identity(files, identity.RoleNode) || agent.EdgeID == "" {
		n.d.warn("tunnel", "fix the problems above first", "the tunnel was not tried: it needs a certificate and --edge-id")
		return
	}
	agent.Logger = slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithTimeout(ctx, 3*doctorPatience)
	defer cancel()
	source, err := n.config.openIdentity(ctx, n.settings, &agent)
	if err != nil {
		n.d.fail("identity", "see docs/managed-mode.md", "%s", oneLine(err))
		return
	}
	w.tls = identity.ClientConfig(source, agent.EdgeID)
	if w.trial != nil && agent.Name == "" {
		w.trial = nil // the certificate's name, which can't be wrong
	}
	w.examine(ctx)
	if err := source.Close(); err != nil {
		n.d.warn("identity", "check the agent's log", "%s", oneLine(err))
	}
}

// examine looks at the inference servers. The Edge is asked about their models, so that it comes first.
func (n *nodeDoctor) examine(ctx context.Context) {
	if len(n.config.Providers) == 0 {
		n.searched, n.examined = true, nodeagent.Search(ctx)
		return
	}
	specs, err := parseProviders(n.config.Providers)
	if err != nil {
		return // the settings' line has said so
	}
	n.examined = nodeagent.Examine(ctx, specs)
}

// models are those that the inference servers have.
func (n *nodeDoctor) models() (all []string) {
	for i := range n.examined {
		all = append(all, n.examined[i].Models...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// tell notes what examine found.
func (n *nodeDoctor) tell() {
	if n.searched && len(n.examined) == 0 {
		n.d.warn("provider", "start Ollama, vLLM, llama.cpp, LM Studio or SGLang on its default port, or add one with --provider id=URL", "no inference server was found on this machine")
	}
	for i := range n.examined {
		n.provider(&n.examined[i])
	}
}

func (n *nodeDoctor) provider(p *nodeagent.Examined) {
	name := string(p.ID) + " at " + p.URL
	switch {
	case p.Finding != nil && p.Listless:
		n.d.warn("provider", p.Finding.Do, "%s gets runs for no model: %s", name, p.Finding.Found)
		return
	case p.Finding != nil && p.Unreachable:
		n.d.fail("provider", p.Finding.Do, "%s can't be reached: %s", name, p.Finding.Found)
		return
	case p.Finding != nil:
		n.d.fail("provider", p.Finding.Do, "%s does not answer as an inference server: %s", name, p.Finding.Found)
		return
	case p.Err != nil:
		n.d.fail("provider", "correct its specification", "%s", oneLine(p.Err))
		return
	case len(p.Models) == 0:
		n.d.warn("provider", "load or pull a model there", "%s is ready but has no model", name)
		return
	}
	engine := strings.TrimSpace(string(p.Engine) + " " + p.Version)
	if engine == "" {
		engine = "kind unknown"
	}
	models := strings.Join(p.Models[:min(len(p.Models), 5)], ", ")
	if more := len(p.Models) - 5; more > 0 {
		models += " and " + counted(more, "other")
	}
	capacity := counted(p.Capacity, "run") + " at once"
	if p.Default {
		capacity += " (IOP's default, as it does not report its own: capacity=N sets it)"
	}
	n.d.ok("provider", "%s is ready: %s, %s, %s: %s", name, engine, capacity, counted(len(p.Models), "model"), models)
	if p.Refused != nil {
		n.d.warn("provider", p.Refused.Do, "%s; its runs may be refused as well", p.Refused.Found)
	}
	for _, model := range p.Missing {
		remedy := "correct models= in its specification"
		if similar := spelling.Models(model, p.Listed, 1); len(similar) > 0 {
			remedy += "; did you mean " + similar[0] + "?"
		}
		n.d.warn("provider", remedy, "%s does not list the model %s", name, model)
	}
	if len(p.Operations) > 0 {
		n.d.ok("provider", "%s has %s", p.ID, strings.Join(p.Operations, ", "))
	}
}
