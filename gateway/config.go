package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"iop/gateway/admin"
	"iop/gateway/admission"
	"iop/identity"
	"iop/state"
)

// Defaults of Config.
const (
	DefaultMaxBodyBytes = 64 << 20
	DefaultBodyBudget   = 512 << 20
	DefaultTotalTimeout = 30 * time.Minute
	DefaultDrainTimeout = 30 * time.Second
)

// MaxTimeout is the greatest of a Server's timeouts, as of those in a file of routes. On the wire they are milliseconds of 32
// bits, which end at 49 days.
const MaxTimeout = 24 * time.Hour

// Who may call the public API.
const (
	AuthKeys = "keys" // who presents an API key
	AuthNone = "none" // anyone who reaches the listener, which must be on loopback
)

// How Nodes prove who they are.
const (
	ModeToken   = "token"   // with a join token, at the public listener
	ModeManaged = "managed" // with a certificate, at the tunnel's own listener; the Edge then leases credentials to them
)

// Config configures a Server.
type Config struct {
	Store       *state.Store // required; stays the caller's to close
	Listen      string       // required: host:port of the public API and the tunnel
	AdminListen string       // required: host:port of the admin API and /metrics

	// Optional.
	EdgeID            string        // told to Nodes, and a part of the pseudonym in Via; default a random one, in managed mode its certificate's name
	Config            string        // path of iop.yaml, read again when it changes; default none: every advertised model is a route
	Mode              string        // ModeToken (default) or ModeManaged
	Auth              string        // AuthKeys (default) or AuthNone
	TLSCert, TLSKey   string        // PEM files; both or none
	MaxBodyBytes      int64         // of one request; default DefaultMaxBodyBytes
	BodyBudget        int64         // of all requests together; default DefaultBodyBudget
	QueueLimit        int           // requests that wait for one route; default admission.DefaultQueueLimit
	QueueTimeout      time.Duration // how long one waits; default: as long as TotalTimeout allows
	NoNodeTimeout     time.Duration // how long one waits while no target of its route is connected; default admission.DefaultGrace
	TotalTimeout      time.Duration // of one request; default DefaultTotalTimeout
	DrainTimeout      time.Duration // how long runs may finish when Run's context ends; default DefaultDrainTimeout
	MaxStreamsPerNode int           // default the tunnel's
	UsageRetention    time.Duration // how long the record of each run is kept; 0: for ever
	Logger            *slog.Logger  // default slog.Default()
	Version           string        // of the binary, for operators; default "unknown"
	// ConnectionsPerSource bounds the client connections of one IPv4 address, or one /64 of IPv6; loopback is never bounded.
	// Default: half of what clients may have together.
	ConnectionsPerSource int
	// Console makes the pages of the admin listener; default none.
	Console func(admin.Parts) http.Handler

	// Managed mode only.
	TunnelListen   string          // required there: host:port of the tunnel
	Identity       identity.Source // required there: who this Edge is, with a certificate; stays the caller's to close, after Run
	SigningKeyLife time.Duration   // how long one key signs leases; default DefaultSigningKeyLife
}

// checked returns c with defaults filled in.
func (c Config) checked() (Config, error) {
	switch {
	case c.Store == nil:
		return c, errors.New("gateway: Store is required")
	case c.Listen == "":
		return c, errors.New("gateway: Listen is required")
	case c.AdminListen == "":
		return c, errors.New("gateway: AdminListen is required")
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return c, errors.New("gateway: TLSCert and TLSKey must be given together")
	case c.Auth != "" && c.Auth != AuthKeys && c.Auth != AuthNone:
		return c, fmt.Errorf("gateway: Auth must be %q or %q, not %q", AuthKeys, AuthNone, c.Auth)
	case c.MaxBodyBytes < 0 || c.BodyBudget < 0 || c.QueueLimit < 0 || c.ConnectionsPerSource < 0 || c.QueueTimeout < 0 || c.NoNodeTimeout < 0 || c.TotalTimeout < 0 || c.DrainTimeout < 0 || c.UsageRetention < 0 || c.SigningKeyLife < 0:
		return c, errors.New("gateway: a limit or timeout must not be negative")
	}
	if c.EdgeID != "" {
		if err := identity.ValidateName(c.EdgeID); err != nil {
			return c, fmt.Errorf("gateway: EdgeID: %w", err)
		}
	}
	if longest := max(c.QueueTimeout, c.NoNodeTimeout, c.TotalTimeout, c.DrainTimeout); longest > MaxTimeout {
		return c, fmt.Errorf("gateway: a timeout must be at most %s, not %s", MaxTimeout, longest)
	}
	setDefault(&c.Mode, ModeToken)
	if err := c.checkManaged(); err != nil {
		return c, err
	}
	setDefault(&c.EdgeID, "edge-"+randomHex(8))
	setDefault(&c.Auth, AuthKeys)
	setDefault(&c.Version, "unknown")
	setDefault(&c.MaxBodyBytes, DefaultMaxBodyBytes)
	setDefault(&c.BodyBudget, DefaultBodyBudget)
	setDefault(&c.QueueLimit, admission.DefaultQueueLimit)
	setDefault(&c.TotalTimeout, DefaultTotalTimeout)
	setDefault(&c.QueueTimeout, c.TotalTimeout)
	setDefault(&c.NoNodeTimeout, admission.DefaultGrace)
	setDefault(&c.DrainTimeout, DefaultDrainTimeout)
	if c.BodyBudget < c.MaxBodyBytes {
		return c, fmt.Errorf("gateway: BodyBudget (%d) must be at least MaxBodyBytes (%d)", c.BodyBudget, c.MaxBodyBytes)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = slog.New(newCalm(c.Logger.Handler()))
	return c, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
