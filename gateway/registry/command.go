package registry

import (
	"context"

	"iop/execution"
	"iop/tunnel"
)

// Commanded is a session that the operator's commands can be asked of: one whose socket is in this process.
type Commanded interface {
	Generation() execution.Generation
	Info() *tunnel.NodeInfo
	Open(spec tunnel.OpenSpec) (Run, error)
	TransportStatus() tunnel.TransportStatus
	Capabilities(ctx context.Context, session execution.SessionID) (*tunnel.NodeInfo, execution.SessionID, error)
	PeerTransportStatus(ctx context.Context, session execution.SessionID) (tunnel.TransportStatus, execution.SessionID, error)
}

var _ Commanded = local{}

// Command returns the Node's current session for commands. Commands take no place and pass by admission: they work while
// the Node is drained too. ErrUnknownNode: the Node has no session here.
func (r *Registry) Command(id execution.NodeID) (Commanded, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[id]
	if n == nil || n.current == nil {
		return nil, ErrUnknownNode
	}
	s, ok := n.current.s.(Commanded)
	if !ok {
		return nil, ErrUnknownNode
	}
	return s, nil
}
