package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"iop/gateway"
	"iop/state"
	"iop/web"
)

// defaultState is where an Edge keeps its state, and where the commands look for the admin token.
const defaultState = "sqlite://iop-data/iop.db"

// edgeSettings are the settings of `iop edge`, with the prefix IOP_EDGE_.
type edgeSettings struct {
	Listen         string        `env:"LISTEN" help:"address of the public API and, in token mode, of the tunnel (/tunnel/v1)" example:":8480" more:"HTTP/1.1 and HTTP/2; without TLS, HTTP/2 with prior knowledge (h2c)."`
	AdminListen    string        `env:"ADMIN_LISTEN" help:"address of the admin API, the console and /metrics" example:"127.0.0.1:8481" more:"It has no TLS: keep it on loopback or a trusted network."`
	Mode           string        `env:"MODE" help:"how Nodes authenticate: token (a join token), managed (a certificate; required for leasing credentials)" example:"managed"`
	TunnelListen   string        `env:"TUNNEL_LISTEN" help:"managed mode: address that Nodes connect to; default :8482" example:":8482" more:"Mutual TLS 1.3, which must end here, not at a load balancer." absent:":8482"`
	IdentityCert   string        `env:"IDENTITY_CERT" help:"managed mode: PEM file with the certificate that identifies this Edge to its Nodes" example:"/etc/iop/edge-main.pem" more:"From \"iop ca issue\" or another authority. Not IOP_EDGE_TLS_CERT, which clients see." absent:"required in managed mode"`
	IdentityKey    string        `env:"IDENTITY_KEY" help:"managed mode: PEM file with its key, mode 0600" example:"/etc/iop/edge-main.key" absent:"required in managed mode"`
	CA             string        `env:"CA" help:"managed mode: PEM file with the authorities of the Nodes' certificates" example:"/etc/iop/bundle.pem" more:"While you change authorities: the old and the new ones." absent:"required in managed mode"`
	SPIFFESocket   string        `env:"SPIFFE_SOCKET" help:"managed mode: SPIFFE Workload API that provides identity and authorities instead of files; IOP_EDGE_ID selects the identity" example:"unix:///run/spire/agent.sock"`
	MasterKeyFile  string        `env:"MASTER_KEY_FILE" help:"file with the keys that seal providers' credentials, from iop master-key create" example:"/etc/iop/master-key" more:"Mode 0600. Without it no credential can be leased."`
	State          string        `env:"STATE" help:"database that holds the state" example:"sqlite:///var/lib/iop/iop.db" more:"sqlite:///absolute/path/iop.db or sqlite://relative/path/iop.db, on a local disk. The directory is created with mode 0700 and also holds the admin token."`
	TLSCert        string        `env:"TLS_CERT" help:"PEM file with the public listener's certificate and chain, reloaded with its key when either changes and on SIGHUP" example:"/etc/iop/tls.crt"`
	TLSKey         string        `env:"TLS_KEY" help:"PEM file with its key" example:"/etc/iop/tls.key"`
	Auth           string        `env:"AUTH" help:"who may call: keys (anyone with an API key), none (anyone; on a loopback address only)" example:"keys" more:"With none, IOP_EDGE_LISTEN must be a loopback address."`
	ID             string        `env:"ID" help:"this Edge's name, sent to Nodes and in the Via header; default: random, in managed mode the certificate's" example:"edge-1" more:"Letters, digits, '.', '_' and '-'; in managed mode the certificate's name or whole SPIFFE ID. Via adds a random suffix, new at each start." absent:"random, in managed mode the certificate's"`
	Log            string        `env:"LOG" help:"log level: debug, info, warn or error; the format is JSON, or text on a terminal" example:"info"`
	MaxBody        int64         `env:"MAX_BODY" min:"1" max:"1099511627776" help:"largest request body in bytes" example:"67108864" more:"Bytes; larger ones get 413."`
	BodyBudget     int64         `env:"BODY_BUDGET" min:"1" max:"1099511627776" help:"total memory for request bodies in bytes; beyond it requests wait, then are refused" example:"536870912" more:"Bytes, of all requests together. Beyond it they wait up to IOP_EDGE_QUEUE_TIMEOUT, at most 5 minutes, then get 503 with Retry-After."`
	QueueLimit     int           `env:"QUEUE_LIMIT" min:"0" max:"1000000" help:"maximum queued requests per model; 0: the default" example:"1000" more:"Per model; beyond it 429 queue_full." absent:"1024"`
	QueueTimeout   time.Duration `env:"QUEUE_TIMEOUT" min:"0s" max:"24h" help:"how long a request may wait in the queue; 0: as long as the request may take" example:"2m" more:"Then 504 queue_timeout." absent:"as IOP_EDGE_TOTAL_TIMEOUT"`
	NoNodeTimeout  time.Duration `env:"NO_NODE_TIMEOUT" min:"0s" max:"24h" help:"how long a request waits while no Node that serves its model is connected; 0: the default" example:"10s" more:"Then 503 no_node_available." absent:"30s"`
	PerSource      int           `env:"CONNECTIONS_PER_SOURCE" min:"0" max:"1000000" help:"maximum client connections per IPv4 address or IPv6 /64; 0: the default" example:"1000" more:"Beyond it 503. Loopback is exempt; raise it for a reverse proxy on another machine." absent:"half of all client connections"`
	TotalTimeout   time.Duration `env:"TOTAL_TIMEOUT" min:"1ms" max:"24h" help:"how long a request may take in total" example:"30m"`
	DrainTimeout   time.Duration `env:"DRAIN_TIMEOUT" min:"0s" max:"24h" help:"how long open requests may take to finish when the Edge stops" example:"30s" more:"Counted from the first SIGTERM."`
	Config         string        `env:"CONFIG" help:"route file, reloaded when it changes and on SIGHUP; default: each model that a Node offers is a route" example:"/etc/iop/iop.yaml" more:"The Edge does not start with an invalid file. On reload it ignores one; the log, iop status and the admin API say why."`
	UsageRetention span          `env:"USAGE_RETENTION" min:"0d" max:"36500d" help:"how long the records of runs and leases are kept; 0d: forever" example:"90d" more:"Monthly token counts of keys are kept separately."`

	checkOnly bool // --check-config: nothing is started
}

const edgePrefix = "IOP_EDGE_"

// defaultUsageRetention lets a bill for the last month be questioned for two more.
const defaultUsageRetention = span(90 * day)

func newEdgeSettings() edgeSettings {
	return edgeSettings{
		Listen: ":8480", AdminListen: "127.0.0.1:8481", Mode: "token", State: defaultState, Auth: gateway.AuthKeys, Log: "info",
		MaxBody: gateway.DefaultMaxBodyBytes, BodyBudget: gateway.DefaultBodyBudget,
		TotalTimeout: gateway.DefaultTotalTimeout, DrainTimeout: gateway.DefaultDrainTimeout,
		UsageRetention: defaultUsageRetention,
	}
}

func newEdgeCommand() *cobra.Command {
	config := newEdgeSettings()
	cmd := &cobra.Command{
		Use:   "edge",
		Short: "Run the Edge: the public API that Nodes connect to",
		Long: `Run the Edge: the public API that Nodes connect to.

The first start creates the state directory with the admin token in it. On a
terminal it prints the Edge's addresses and the next steps. On the first SIGTERM or
Ctrl-C the Edge takes no new requests, lets open ones finish, and exits; on the
second it exits at once.

With --config, a route file defines what each model name means. It is reloaded when
it changes and on SIGHUP. An invalid file is ignored and the log reports why; so is
a file without routes, unless it says "routes: []". --check-config validates the
file without starting anything. If an Edge runs with these settings, it also lists
what the file would change: removed routes, routes open to more principals,
raised caps, and allowed members.

In managed mode Nodes authenticate with a certificate instead of a join token, and
connect to a separate listener. Credentials in slots ("iop slot") can be leased to
them. Certificate and authorities are reloaded when they change and on SIGHUP, the
master keys on SIGHUP only. Invalid files are ignored.`,
		Example: `  iop edge
  iop edge --config iop.yaml --check-config
  iop edge --listen :443 --tls-cert tls.crt --tls-key tls.key --state sqlite:///var/lib/iop/iop.db
  iop edge --mode managed --identity-cert edge-main.pem --identity-key edge-main.key \
    --ca bundle.pem --master-key-file master-key`,
		Args: exactly(),
	}
	s := bindSettings(cmd, edgePrefix, &config, nil)
	cmd.Flags().BoolVar(&config.checkOnly, "check-config", false, "validate the file of --config, show what it would change at the running Edge, and exit")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := config.load(s); err != nil {
			return err
		}
		if config.checkOnly {
			warnStrays(cmd, cmd.ErrOrStderr(), true)
			return config.check(cmd, s)
		}
		logger := newLogger(cmd.ErrOrStderr(), logLevels[config.Log])
		slog.SetDefault(logger.Logger) // the state logs there
		defer logger.close()
		warnStrays(cmd, logger.out, true)
		return config.run(cmd.Context(), s, logger.Logger, greet(cmd.OutOrStdout(), cmd.ErrOrStderr()))
	}
	return cmd
}

func (c *edgeSettings) load(s *settings) error {
	if err := s.load(); err != nil {
		return err
	}
	for _, address := range []struct{ name, value string }{{"LISTEN", c.Listen}, {"ADMIN_LISTEN", c.AdminListen}} {
		if !isHostPort(address.value) {
			return s.fault(address.name, "must be host:port or :port")
		}
	}
	switch {
	case sameAddress(c.Listen, c.AdminListen):
		return s.fault("ADMIN_LISTEN", "must differ from IOP_EDGE_LISTEN (--listen): the public must not reach the admin API")
	case c.State == "sqlite::memory:":
		return s.fault("STATE", "must be on disk, because the admin token is kept next to it; \"iop dev\" keeps state in memory")
	case strings.HasPrefix(c.State, "postgres"):
		return s.fault("STATE", "can't be PostgreSQL in this version; use SQLite")
	case c.Auth != gateway.AuthKeys && c.Auth != gateway.AuthNone:
		return s.fault("AUTH", "must be keys or none")
	case c.Auth == gateway.AuthNone && !listensOnLoopback(c.Listen):
		return s.fault("LISTEN", "must be a loopback address with IOP_EDGE_AUTH=none")
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return s.fault("TLS_CERT", "and IOP_EDGE_TLS_KEY (--tls-key) must be given together")
	case logLevels[c.Log] == 0 && c.Log != "info":
		return s.fault("LOG", "must be debug, info, warn or error")
	}
	if err := c.checkMode(s); err != nil {
		return err
	}
	return c.checkLimits(s)
}

func isHostPort(address string) bool {
	_, _, err := net.SplitHostPort(address)
	return err == nil
}

// sameAddress reports whether two listeners would want one address. Port 0 is a free one each time.
func sameAddress(a, b string) bool {
	_, port, err := net.SplitHostPort(a)
	return err == nil && a == b && port != "0"
}

func (c *edgeSettings) checkLimits(s *settings) error {
	if c.BodyBudget < c.MaxBody {
		return s.fault("BODY_BUDGET", "must be at least IOP_EDGE_MAX_BODY, which is %d", c.MaxBody)
	}
	return nil
}

func listensOnLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && isLoopback(host)
}

// run serves until ctx ends. terminal is for the welcome, or nil.
func (c *edgeSettings) run(ctx context.Context, s *settings, logger *slog.Logger, terminal io.Writer) (err error) {
	if c.managed() || c.MasterKeyFile != "" {
		if err := guardSecrets(); err != nil {
			return err
		}
	}
	source, err := c.openIdentity(ctx, s, logger)
	if err != nil {
		return err
	}
	if source != nil {
		defer func() { err = errors.Join(err, source.Close()) }()
	}
	store, first, err := c.openStore(ctx, s, logger)
	if err != nil {
		return err
	}
	defer store.Close()
	release, err := claimState(c.State, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	config := c.gateway(store, logger)
	config.Identity = source
	edge, err := gateway.New(config)
	if err != nil {
		return startFault(err)
	}
	edge.BoundMemory()
	// Before anybody is told that it runs: an unheeded SIGHUP ends the process.
	defer onHangup(func() { c.hangup(ctx, edge, source, store, logger) })()
	listening := []any{"public", edge.Addr().String(), "tls", c.TLSCert != "", "admin", edge.AdminAddr().String()}
	if source != nil {
		listening = append(listening, "tunnel", edge.TunnelAddr().String(), "identity", source.ID().String())
	}
	logger.Info("listening", listening...)
	greeting := c.welcome(edge.Addr(), edge.AdminAddr(), first)
	defer greeting.print(terminal)()
	return edge.Run(ctx)
}

// startFault adds to an error of the start what to do about it.
func startFault(err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w; \"iop doctor edge\" shows whether an Edge uses it: stop that process, or choose another address (--listen, --admin-listen, --tunnel-listen)", err)
	case errors.Is(err, syscall.EACCES) && isListenFault(err):
		return fmt.Errorf("%w; a port below 1024 needs CAP_NET_BIND_SERVICE: see deploy/systemd, or choose another with --listen", err)
	}
	return err
}

// isListenFault reports whether an error is about an address and not about a file.
func isListenFault(err error) bool {
	_, ok := errors.AsType[*net.OpError](err)
	return ok
}

// openStore opens the state, with the admin token beside it and the master keys told to it. first: there was no admin token, so this is
// the first start.
func (c *edgeSettings) openStore(ctx context.Context, s *settings, logger *slog.Logger) (store *state.Store, first bool, err error) {
	store, err = state.Open(ctx, c.State)
	if err != nil {
		return nil, false, fmt.Errorf("%w; \"iop doctor edge\" checks it (IOP_EDGE_STATE, --state)", err)
	}
	if !listensOnLoopback(c.AdminListen) {
		logger.Warn("the admin API is reachable from other machines and is not encrypted", "listen", c.AdminListen)
	}
	_, first, err = store.AdminToken(ctx)
	if err == nil {
		err = c.useMasterKeys(ctx, s, store, logger)
	}
	if err != nil {
		store.Close()
		return nil, false, err
	}
	warnOfSharedNames(ctx, store, logger)
	if first {
		logger.Info("created the admin token next to the state, in the file admin-token")
	}
	return store, first, nil
}

// warnOfSharedNames logs the names that several live keys have, from before a name belonged to one.
func warnOfSharedNames(ctx context.Context, store *state.Store, logger *slog.Logger) {
	names, err := store.SharedKeyNames(ctx)
	switch {
	case err != nil:
		logger.Warn("whether keys share names could not be looked up", "error", err)
	case len(names) > 0:
		logger.Warn("several live API keys have the same name, so commands take only their ids: rename them with \"iop key update ID --name\"", "names", names)
	}
}

func (c *edgeSettings) gateway(store *state.Store, logger *slog.Logger) gateway.Config {
	return gateway.Config{
		Store: store, Listen: c.Listen, AdminListen: c.AdminListen, EdgeID: c.ID, Auth: c.Auth,
		TLSCert: c.TLSCert, TLSKey: c.TLSKey, MaxBodyBytes: c.MaxBody, BodyBudget: c.BodyBudget,
		QueueLimit: c.QueueLimit, QueueTimeout: c.QueueTimeout, NoNodeTimeout: c.NoNodeTimeout, TotalTimeout: c.TotalTimeout, DrainTimeout: c.DrainTimeout,
		Config: c.Config, UsageRetention: time.Duration(c.UsageRetention),
		Mode: c.Mode, TunnelListen: c.TunnelListen, ConnectionsPerSource: c.PerSource,
		Logger: logger, Console: web.New, Version: readBuildInfo().Version,
	}
}
