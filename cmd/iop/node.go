package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"iop/execution"
	"iop/nodeagent"
)

// nodeSettings are the settings of `iop node`, with the prefix IOP_NODE_.
type nodeSettings struct {
	Edge         string        `env:"EDGE" help:"the Edge's tunnel URL" example:"wss://edge.example.org/tunnel/v1" more:"wss://host/tunnel/v1; ws:// only on a trusted network; in managed mode wss://host:8482." absent:"required"`
	Name         string        `env:"NAME" help:"this Node's name; it belongs to the join token bound to it, or to the first that uses it; in managed mode the certificate's" example:"gpu-3" more:"1 to 128 letters, digits, '.', '_', ':', '-'; not \".\" or \"..\"." absent:"the host's name, in managed mode the certificate's"`
	JoinToken    string        `env:"JOIN_TOKEN" secret:"true" help:"join token, from \"iop join-token create\"" more:"A file is read at each connection, so it can be replaced while the Node runs." absent:"required in token mode"`
	Providers    specList      `env:"PROVIDERS" flag:"provider" help:"inference server to offer, id[:adapter]=URL[,capacity=N][,models=a|b][,key-file=PATH][,slots=a|b*][,ca=PATH]; repeatable, or separated by spaces in the variable; default: the local ones that are found" example:"ollama=http://127.0.0.1:11434" more:"See below." absent:"discovery"`
	Labels       string        `env:"LABELS" help:"labels of this Node" example:"gpu=h100,site=lab"`
	CA           string        `env:"CA" help:"PEM file with the authorities to trust for the Edge's certificate instead of the system's; required with --tls-cert" example:"/etc/iop/ca.pem" absent:"the system's"`
	TLSCert      string        `env:"TLS_CERT" help:"managed mode: PEM file with the certificate that identifies this Node, instead of a join token" example:"/etc/iop/node-gpu-3.pem" more:"It selects managed mode, which uses no join token and needs an Edge in managed mode."`
	TLSKey       string        `env:"TLS_KEY" help:"managed mode: PEM file with its key, mode 0600" example:"/etc/iop/node-gpu-3.key"`
	EdgeID       string        `env:"EDGE_ID" help:"managed mode: the SPIFFE ID of the only Edge to connect to" example:"spiffe://iop.example.org/edge/main" absent:"required in managed mode"`
	SPIFFESocket string        `env:"SPIFFE_SOCKET" help:"managed mode: SPIFFE Workload API that provides identity and authorities instead of files" example:"unix:///run/spire/agent.sock" more:"The Node is IOP_NODE_NAME in the Edge's trust domain."`
	DrainTimeout time.Duration `env:"DRAIN_TIMEOUT" min:"0s" max:"24h" help:"how long open runs may take to finish when the Node stops" example:"30s" more:"Counted from the first SIGTERM."`
	Log          string        `env:"LOG" help:"log level: debug, info, warn or error; the format is JSON, or text on a terminal" example:"info"`
}

const nodePrefix = "IOP_NODE_"

func newNodeSettings() nodeSettings {
	return nodeSettings{Name: hostName(), DrainTimeout: 30 * time.Second, Log: "info"}
}

func newNodeCommand() *cobra.Command {
	config := newNodeSettings()
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run a Node: offer this machine's inference servers to an Edge",
		Long: `Run a Node: offer this machine's inference servers to an Edge.

The Node dials out to the Edge and keeps the connection; it opens no port. On the
first SIGTERM or Ctrl-C it takes no new runs, lets open ones finish, and exits; on
the second it exits at once.

With a certificate instead of a join token it runs in managed mode: it connects
only to the Edge given by --edge-id, and uses credentials leased by that Edge for
the providers whose slots= names them. Certificate and authorities are reloaded
when they change and on SIGHUP.`,
		Example: `  iop node --edge wss://edge.example.org/tunnel/v1 --join-token-file token
  iop node --edge wss://edge.example.org/tunnel/v1 --join-token-file token \
    --provider vllm=http://127.0.0.1:8000,capacity=64 --labels gpu=h100
  iop node --edge wss://edge.example.org:8482 --edge-id spiffe://iop.example.org/edge/main \
    --tls-cert node-gpu-3.pem --tls-key node-gpu-3.key --ca bundle.pem \
    --provider 'openai:openai=https://api.example.com,models=gpt-x,slots=openai*'`,
		Args: exactly(),
	}
	s := bindSettings(cmd, nodePrefix, &config, nil)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		agentConfig, err := config.load(s)
		if err != nil {
			return err
		}
		logger := newLogger(cmd.ErrOrStderr(), logLevels[config.Log])
		defer logger.close()
		warnStrays(cmd, logger.out, true)
		agentConfig.Logger = logger.Logger
		return config.run(cmd.Context(), s, agentConfig)
	}
	return cmd
}

// load reads the settings and turns them into the Node's configuration.
func (c *nodeSettings) load(s *settings) (nodeagent.Config, error) {
	if err := s.load(); err != nil {
		return nodeagent.Config{}, err
	}
	cfg := nodeagent.Config{
		Edge:         c.Edge,
		Name:         execution.NodeID(c.Name),
		JoinToken:    s.secretSource("JOIN_TOKEN", c.JoinToken),
		DrainTimeout: c.DrainTimeout,
		Version:      readBuildInfo().Version,
	}
	if c.Edge == "" {
		return cfg, s.fault("EDGE", "is required")
	}
	if err := c.checkMode(s, &cfg); err != nil {
		return cfg, err
	}
	if err := cfg.Name.Validate(); err != nil && (cfg.Name != "" || !c.managed()) {
		return cfg, s.fault("NAME", "is not valid: %v", err)
	}
	if _, ok := logLevels[c.Log]; !ok {
		return cfg, s.fault("LOG", "must be debug, info, warn or error")
	}
	var err error
	if cfg.Providers, err = parseProviders(c.Providers); err != nil {
		return cfg, s.fault("PROVIDERS", "is not valid: %v", err)
	}
	if cfg.Labels, err = nodeagent.ParseLabels(c.Labels); err != nil {
		return cfg, s.fault("LABELS", "is not valid: %v", err)
	}
	if c.managed() {
		return cfg, nil
	}
	if cfg.TLS, err = trust(c.CA); err != nil {
		return cfg, s.fault("CA", "%v", err)
	}
	cfg.Roots = c.CA
	return cfg, nil
}

func parseProviders(list specList) ([]nodeagent.ProviderSpec, error) {
	var specs []nodeagent.ProviderSpec
	for _, text := range list {
		spec, err := nodeagent.ParseSpec(text)
		if err != nil {
			return nil, err
		}
		specs = append(specs, spec)
	}
	return specs, nil
}

// trust returns a TLS configuration that trusts the authorities in a PEM file, or nil, the system's trust, without one.
func trust(path string) (*tls.Config, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, errors.New("can't be read: " + pathFault(err))
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, errors.New("holds no PEM certificate")
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// pathFault is the fault of an error about a path, without the operation and the path.
func pathFault(err error) string {
	if pathError, ok := errors.AsType[*os.PathError](err); ok {
		return pathError.Err.Error()
	}
	return err.Error()
}

// warnPlainTunnel warns of a join token and prompts that anyone on the way can read.
func warnPlainTunnel(logger *slog.Logger, edge string) {
	u, err := url.Parse(edge)
	if err != nil || u.Scheme == "wss" || u.Scheme == "https" || isLoopback(u.Hostname()) {
		return
	}
	logger.Warn("the tunnel is not encrypted: use wss:// unless the network is trusted", "edge", u.Host)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// hostName is the default name of a Node: the machine's, without its domain, as far as it may be one.
func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	name, _, _ = strings.Cut(name, ".")
	if execution.NodeID(name).Validate() != nil {
		return ""
	}
	return name
}
