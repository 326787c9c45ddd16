package main

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"iop/gateway"
	"iop/state"
)

// defaultState is where an Edge keeps its state, and where the commands look for the admin token.
const defaultState = "sqlite://iop-data/iop.db"

// edgeSettings are the settings of `iop edge`, with the prefix IOP_EDGE_.
type edgeSettings struct {
	Listen       string        `env:"LISTEN" help:"address of the public API and of the tunnel" example:":8480"`
	AdminListen  string        `env:"ADMIN_LISTEN" help:"address of the admin API and of /metrics" example:"127.0.0.1:8481"`
	Mode         string        `env:"MODE" help:"how Nodes prove who they are: token" example:"token"`
	State        string        `env:"STATE" help:"where state is kept" example:"sqlite:///var/lib/iop/iop.db"`
	TLSCert      string        `env:"TLS_CERT" help:"PEM file with the certificate of the public listener, and its chain" example:"/etc/iop/tls.crt"`
	TLSKey       string        `env:"TLS_KEY" help:"PEM file with its key" example:"/etc/iop/tls.key"`
	Auth         string        `env:"AUTH" help:"who may call: keys (who has an API key), none (anyone; on a loopback address only)" example:"keys"`
	ID           string        `env:"ID" help:"this Edge's name, told to Nodes and to proxies; default: a random one" example:"edge-1"`
	Log          string        `env:"LOG" help:"log level: debug, info, warn or error; lines are JSON, text on a terminal" example:"info"`
	MaxBody      int64         `env:"MAX_BODY" help:"largest request body in bytes" example:"67108864"`
	BodyBudget   int64         `env:"BODY_BUDGET" help:"request bodies held at once in bytes; beyond it requests are refused for a while" example:"536870912"`
	QueueLimit   int           `env:"QUEUE_LIMIT" help:"requests that wait for one model; 0: the default" example:"1000"`
	QueueTimeout time.Duration `env:"QUEUE_TIMEOUT" help:"how long a request may wait for a Node; 0: as long as the request may take" example:"2m"`
	TotalTimeout time.Duration `env:"TOTAL_TIMEOUT" help:"how long a request may take in all" example:"30m"`
	DrainTimeout time.Duration `env:"DRAIN_TIMEOUT" help:"how long requests may still take when the Edge stops" example:"30s"`
}

const edgePrefix = "IOP_EDGE_"

func newEdgeSettings() edgeSettings {
	return edgeSettings{
		Listen: ":8480", AdminListen: "127.0.0.1:8481", Mode: "token", State: defaultState, Auth: gateway.AuthKeys, Log: "info",
		MaxBody: gateway.DefaultMaxBodyBytes, BodyBudget: gateway.DefaultBodyBudget,
		TotalTimeout: gateway.DefaultTotalTimeout, DrainTimeout: gateway.DefaultDrainTimeout,
	}
}

func newEdgeCommand() *cobra.Command {
	config := newEdgeSettings()
	cmd := &cobra.Command{
		Use:   "edge",
		Short: "Run the Edge: the public API that Nodes connect to",
		Long: `Run the Edge: the public API that Nodes connect to.

The state directory is made at the first start, with the admin token in it. At
the first SIGTERM or Ctrl-C the Edge takes no new requests, lets the open ones
finish, and ends; at the second it ends at once.`,
		Example: `  iop edge
  iop edge --listen :443 --tls-cert tls.crt --tls-key tls.key --state sqlite:///var/lib/iop/iop.db`,
		Args: exactly(),
	}
	s := bindSettings(cmd, edgePrefix, &config, nil)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := config.load(s); err != nil {
			return err
		}
		s.warnUnknown(cmd)
		logger, flush := newLogger(cmd.ErrOrStderr(), logLevels[config.Log])
		defer flush()
		return config.run(cmd.Context(), logger)
	}
	return cmd
}

func (c *edgeSettings) load(s *settings) error {
	if err := s.load(); err != nil {
		return err
	}
	for _, address := range []struct{ name, value string }{{"LISTEN", c.Listen}, {"ADMIN_LISTEN", c.AdminListen}} {
		if _, _, err := net.SplitHostPort(address.value); err != nil {
			return s.fault(address.name, "must be host:port or :port")
		}
	}
	switch {
	case c.Mode == "managed":
		return s.fault("MODE", "can't be managed in this version: Nodes join with a token")
	case c.Mode != "token":
		return s.fault("MODE", "must be token")
	case c.State == "sqlite::memory:":
		return s.fault("STATE", "must outlive the process: without a directory nobody could read the admin token; \"iop dev\" keeps state in memory")
	case strings.HasPrefix(c.State, "postgres"):
		return s.fault("STATE", "can't be PostgreSQL in this version: state is kept by SQLite")
	case c.Auth != gateway.AuthKeys && c.Auth != gateway.AuthNone:
		return s.fault("AUTH", "must be keys or none")
	case c.Auth == gateway.AuthNone && !listensOnLoopback(c.Listen):
		return s.fault("LISTEN", "must be a loopback address with IOP_EDGE_AUTH=none")
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return s.fault("TLS_CERT", "and IOP_EDGE_TLS_KEY (--tls-key) must be given together")
	case logLevels[c.Log] == 0 && c.Log != "info":
		return s.fault("LOG", "must be debug, info, warn or error")
	}
	return c.checkLimits(s)
}

func (c *edgeSettings) checkLimits(s *settings) error {
	for _, limit := range []struct {
		name  string
		value int64
		least int64
	}{
		{"MAX_BODY", c.MaxBody, 1}, {"BODY_BUDGET", c.BodyBudget, c.MaxBody}, {"QUEUE_LIMIT", int64(c.QueueLimit), 0},
		{"QUEUE_TIMEOUT", int64(c.QueueTimeout), 0}, {"TOTAL_TIMEOUT", int64(c.TotalTimeout), 1}, {"DRAIN_TIMEOUT", int64(c.DrainTimeout), 0},
	} {
		switch {
		case limit.value >= limit.least:
		case limit.name == "BODY_BUDGET":
			return s.fault(limit.name, "must be at least IOP_EDGE_MAX_BODY, which is %d", c.MaxBody)
		default:
			return s.fault(limit.name, "must be %d or more", limit.least)
		}
	}
	return nil
}

func listensOnLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && isLoopback(host)
}

// run serves until ctx ends.
func (c *edgeSettings) run(ctx context.Context, logger *slog.Logger) error {
	store, err := state.Open(ctx, c.State)
	if err != nil {
		return err
	}
	defer store.Close()
	if !listensOnLoopback(c.AdminListen) {
		logger.Warn("the admin API can be reached from other machines, and is not encrypted", "listen", c.AdminListen)
	}
	if _, created, err := store.AdminToken(ctx); err != nil {
		return err
	} else if created {
		logger.Info("the admin token was created beside the state, in the file admin-token")
	}
	edge, err := gateway.New(c.gateway(store, logger))
	if err != nil {
		return err
	}
	logger.Info("listening", "public", edge.Addr().String(), "tls", c.TLSCert != "", "admin", edge.AdminAddr().String())
	return edge.Run(ctx)
}

func (c *edgeSettings) gateway(store *state.Store, logger *slog.Logger) gateway.Config {
	return gateway.Config{
		Store: store, Listen: c.Listen, AdminListen: c.AdminListen, EdgeID: c.ID, Auth: c.Auth,
		TLSCert: c.TLSCert, TLSKey: c.TLSKey, MaxBodyBytes: c.MaxBody, BodyBudget: c.BodyBudget,
		QueueLimit: c.QueueLimit, QueueTimeout: c.QueueTimeout, TotalTimeout: c.TotalTimeout, DrainTimeout: c.DrainTimeout,
		Logger: logger,
	}
}
