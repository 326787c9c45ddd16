package tunnel

import (
	"context"
	"errors"
	"fmt"

	"iop/execution"
	"iop/tunnel/wire"
)

// CommandError is a Node's refusal of a command.
type CommandError struct {
	Message string // the Node's own words, fit for a line of text
}

func (e *CommandError) Error() string { return "the Node refused the command: " + e.Message }

// errNotAnswered is the error for a result without what was asked for.
var errNotAnswered = errors.New("the Node answered the command with something else")

// Command asks the Node one of the closed set of questions, whose kind and session_id req has. Errors: ErrSessionClosed,
// ctx's, or too many commands at once (64). A result may have an error of the Node's.
func (s *NodeSession) Command(ctx context.Context, req *wire.CommandRequest) (*wire.CommandResult, error) {
	l := &s.link
	l.mu.Lock()
	if l.end != nil {
		l.mu.Unlock()
		return nil, ErrSessionClosed
	}
	if len(s.commands) >= 64 {
		l.mu.Unlock()
		return nil, fmt.Errorf("too many commands at once")
	}
	s.lastCommand++
	id := s.lastCommand
	ch := make(chan *wire.CommandResult, 1)
	s.commands[id] = ch
	asked := &wire.CommandRequest{Id: id, Kind: req.Kind, SessionId: req.SessionId}
	l.urgentLocked(wire.TypeCommand, nil, asked)
	l.mu.Unlock()
	select {
	case result := <-ch:
		return result, nil
	case <-l.done:
		return nil, ErrSessionClosed
	case <-ctx.Done():
		l.mu.Lock()
		delete(s.commands, id)
		l.mu.Unlock()
		return nil, ctx.Err()
	}
}

// ask is Command for an answer that has what was asked for.
func (s *NodeSession) ask(ctx context.Context, req *wire.CommandRequest) (*wire.CommandResult, error) {
	result, err := s.Command(ctx, req)
	if err == nil && result.Error != "" {
		return nil, &CommandError{Message: truncate(result.Error, maxMessageBytes)}
	}
	return result, err
}

// maxCapabilityPages bounds the answers to one question: far more than the largest inventory takes.
const maxCapabilityPages = 256

// Capabilities asks the Node what it has now. session is an opaque correlation, wire.MaxSessionID bytes at most; the one
// that is returned is the Node's echo of it (an older Node has none). Errors: as of Command, *CommandError, or an answer
// that can't be taken.
func (s *NodeSession) Capabilities(ctx context.Context, session execution.SessionID) (*NodeInfo, execution.SessionID, error) {
	info := &NodeInfo{Labels: s.register.GetLabels()}
	had := 0
	for range maxCapabilityPages {
		result, err := s.ask(ctx, &wire.CommandRequest{
			SessionId: string(session),
			Kind:      &wire.CommandRequest_Capabilities{Capabilities: &wire.CapabilitiesCommand{Skip: uint32(had)}},
		})
		if err != nil {
			return nil, "", err
		}
		page := result.Capabilities
		if page == nil {
			return nil, "", errNotAnswered
		}
		if _, err := appendPage(info, &wire.NodeRefresh{Providers: page.Providers, Models: page.Models}, nil); err != nil {
			return nil, "", fmt.Errorf("the Node's answer: %w", err)
		}
		had += len(page.Providers) + len(page.Models)
		info.Version = truncate(page.SoftwareVersion, maxNameBytes)
		if !page.More || len(page.Providers)+len(page.Models) == 0 {
			return info, echoed(result), nil
		}
	}
	return nil, "", errNotAnswered
}

// echoed is the session_id of a result, as far as it may be one.
func echoed(result *wire.CommandResult) execution.SessionID {
	return execution.SessionID(truncate(result.SessionId, wire.MaxSessionID))
}

// PeerTransportStatus asks the Node for its view of this session; session and errors as of Capabilities.
func (s *NodeSession) PeerTransportStatus(ctx context.Context, session execution.SessionID) (TransportStatus, execution.SessionID, error) {
	result, err := s.ask(ctx, &wire.CommandRequest{
		SessionId: string(session), Kind: &wire.CommandRequest_TransportStatus{TransportStatus: &wire.TransportStatusCommand{}},
	})
	switch {
	case err != nil:
		return TransportStatus{}, "", err
	case result.TransportStatus == nil:
		return TransportStatus{}, "", errNotAnswered
	}
	return parseStatus(result.TransportStatus), echoed(result), nil
}
