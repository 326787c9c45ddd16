package state

import (
	"context"
	"net"
)

// Names of actors in the audit. Leases have the Edge's own id.
const (
	ActorAdmin   = "admin"   // a caller of the admin API with the admin token
	ActorConsole = "console" // a signed-in session of the console
	ActorCommand = "command" // a command that opened the state itself
	ActorLocal   = "local"   // this process, on its own behalf: "iop dev"
	ActorEdge    = "edge"    // the Edge by itself
	ActorNode    = "node"    // a Node with a join token
	ActorUnknown = "unknown" // a caller without the right admin token
)

// Actor is who makes a change, for the audit.
type Actor struct {
	Name    string // one of the above
	Source  string // the address that the request came from, or the user of a command; empty: there is none
	Session string // of the console: its name, which is no secret; empty: none
}

// SourceOf returns a connection's remote address without the port: an Actor's Source. Headers that name another address
// don't count.
func SourceOf(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	return host
}

type actorKey struct{}

// WithActor returns a context whose changes are the actor's.
func WithActor(ctx context.Context, actor Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, actor)
}

// ActorOf returns whose changes a context's are: ActorLocal's unless WithActor said otherwise.
func ActorOf(ctx context.Context) Actor {
	if actor, ok := ctx.Value(actorKey{}).(Actor); ok {
		return actor
	}
	return Actor{Name: ActorLocal}
}

// by gives an entry the context's actor, unless it names one, and where that is from.
func (e AuditEntry) by(ctx context.Context) AuditEntry {
	actor := ActorOf(ctx)
	if e.Actor == "" {
		e.Actor = actor.Name
	}
	e.Source, e.Session = actor.Source, actor.Session
	return e
}
