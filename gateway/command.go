package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"iop/execution"
	"iop/gateway/admin"
	"iop/gateway/registry"
	"iop/tunnel"
	"iop/tunnel/wire"
)

const (
	commandTimeout = 10 * time.Second
	// An Ollama call's own deadlines at the Node: beyond the Node's limit of what answers at once, and longer than any pull.
	ollamaDeadline = 2 * time.Minute
	pullDeadline   = 24 * time.Hour
	ollamaEngine   = "ollama"
)

// commanded returns the session of a Node for commands.
func (o operator) commanded(node execution.NodeID) (registry.Commanded, error) {
	s, err := o.s.reg.Command(node)
	if err != nil {
		return nil, &admin.CommandError{Status: http.StatusNotFound, Code: "node_not_found", Param: "node", Message: err.Error()}
	}
	return s, nil
}

// commandFailed is the error of a command that was not answered.
func commandFailed(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return &admin.CommandError{Status: http.StatusGatewayTimeout, Code: "node_timeout", Message: "the Node did not answer in time"}
	}
	return &admin.CommandError{Status: http.StatusBadGateway, Code: "node_failed", Message: err.Error()}
}

// ForgetNode implements admin.Edge.
func (o operator) ForgetNode(ctx context.Context, node execution.NodeID) error {
	switch err := o.s.reg.ForgetNode(ctx, node); {
	case errors.Is(err, registry.ErrUnknownNode):
		return &admin.CommandError{Status: http.StatusNotFound, Code: "node_not_found", Param: "node", Message: "no Node with this name was connected in the last 30 days"}
	case errors.Is(err, registry.ErrConnected):
		return &admin.CommandError{Status: http.StatusConflict, Code: "node_connected", Param: "node", Message: err.Error()}
	default:
		return err
	}
}

// Capabilities implements admin.Commands.
func (o operator) Capabilities(ctx context.Context, node execution.NodeID, session execution.SessionID) (*admin.NodeCapabilities, error) {
	s, err := o.commanded(node)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	info, echo, err := s.Capabilities(ctx, session)
	if err != nil {
		return nil, commandFailed(err)
	}
	c := &admin.NodeCapabilities{
		Node: node, Generation: s.Generation(), SessionID: echo, Version: info.Version, Labels: map[string]string{}, Providers: []admin.Capability{},
	}
	if info.Labels != nil {
		c.Labels = info.Labels
	}
	for i := range info.Providers {
		c.Providers = append(c.Providers, capabilityOf(info, &info.Providers[i]))
	}
	return c, nil
}

func capabilityOf(info *tunnel.NodeInfo, p *tunnel.ProviderInfo) admin.Capability {
	c := admin.Capability{
		ID: p.ID, Adapter: p.Adapter, Engine: p.Engine, EngineVersion: p.EngineVersion, Health: tunnel.HealthName(p.Health),
		Capacity: p.Capacity, InFlight: p.InFlight, Operations: append([]string{}, p.Operations...), OperationsKnown: p.OperationsKnown,
		Normalized: p.Runs, Models: []admin.CapabilityModel{},
	}
	for _, m := range info.Models {
		if m.Provider == p.ID {
			c.Models = append(c.Models, admin.CapabilityModel{ID: m.ID, Loaded: m.Loaded})
		}
	}
	return c
}

// Transport implements admin.Commands.
func (o operator) Transport(ctx context.Context, node execution.NodeID, session execution.SessionID) (*admin.NodeTransport, error) {
	s, err := o.commanded(node)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	peer, echo, err := s.PeerTransportStatus(ctx, session)
	if err != nil {
		return nil, commandFailed(err)
	}
	t := &admin.NodeTransport{Node: node, SessionID: echo, Edge: transportView(s.TransportStatus()), AtNode: transportView(peer)}
	uptime := peer.ProcessUptime.Milliseconds()
	t.AtNode.Reconnects, t.AtNode.ProcessUptimeMS = &peer.Reconnects, &uptime
	return t, nil
}

func transportView(st tunnel.TransportStatus) admin.Transport {
	return admin.Transport{
		Generation: st.Generation, UptimeMS: st.Uptime.Milliseconds(), HeartbeatRTTMS: millis(st.HeartbeatRTT),
		LastAckAgeMS: st.LastAckAge.Milliseconds(), Draining: st.Draining,
		OpenRuns: st.OpenStreams, StalledRuns: st.StalledStreams, QueuedBytes: st.QueuedBytes,
		SessionWindow: st.SessionWindow, SessionInFlight: st.SessionInFlight,
		FramesSent: st.FramesSent, FramesReceived: st.FramesReceived, BytesSent: st.BytesSent, BytesReceived: st.BytesReceived,
	}
}

// Ollama implements admin.Commands.
func (o operator) Ollama(ctx context.Context, call admin.OllamaCall) (*admin.OllamaAnswer, error) {
	s, err := o.commanded(call.Node)
	if err != nil {
		return nil, err
	}
	provider, err := ollamaProvider(s.Info(), call.Provider)
	if err != nil {
		return nil, err
	}
	deadline := ollamaDeadline
	if call.Operation == admin.OllamaPull {
		deadline = pullDeadline
	}
	run, err := s.Open(tunnel.OpenSpec{
		Body: call.Body,
		Open: &wire.Open{
			RunId: string(execution.NewRunID()), SessionId: string(call.Session), TimeoutMs: milliseconds(deadline),
			Kind: &wire.Open_Ollama{Ollama: &wire.OllamaRequest{Provider: string(provider), Operation: call.Operation.String()}},
		},
	})
	if err != nil {
		return nil, commandFailed(err)
	}
	body := &ollamaBody{ctx: ctx, run: run}
	status, err := body.head()
	if err != nil {
		body.Close()
		return nil, err
	}
	return &admin.OllamaAnswer{Provider: provider, Status: status, Body: body}, nil
}

// ollamaProvider finds the provider that is meant: the one that is named, or the Node's only Ollama.
func ollamaProvider(info *tunnel.NodeInfo, named execution.ProviderID) (execution.ProviderID, error) {
	var found []string
	for _, p := range info.Providers {
		ollama := p.Engine == ollamaEngine || p.Engine == "" && p.Adapter == ollamaEngine
		switch {
		case p.ID == named && !ollama:
			return "", &admin.CommandError{Status: http.StatusConflict, Code: "not_ollama", Param: "provider", Message: fmt.Sprintf("provider %q of this Node is not Ollama", named)}
		case p.ID == named:
			return named, nil
		case ollama:
			found = append(found, string(p.ID))
		}
	}
	switch {
	case named != "":
		return "", &admin.CommandError{Status: http.StatusNotFound, Code: "provider_not_found", Param: "provider", Message: fmt.Sprintf("this Node has no provider %q", named)}
	case len(found) == 0:
		return "", &admin.CommandError{Status: http.StatusConflict, Code: "not_ollama", Message: "this Node has no Ollama provider"}
	case len(found) > 1:
		return "", &admin.CommandError{Status: http.StatusBadRequest, Code: "provider_required", Param: "provider", Message: "this Node has several Ollama providers; name one of them: " + strings.Join(found, ", ")}
	}
	return execution.ProviderID(found[0]), nil
}

// ollamaBody reads the answer of a call of the Ollama API. It is for one goroutine.
type ollamaBody struct {
	ctx  context.Context // ends the call
	run  registry.Run
	left []byte // arrived, valid until the next Take
	end  *execution.Terminal
}

// head waits for the provider's status. What came with it of the body is kept.
func (b *ollamaBody) head() (status int, err error) {
	for {
		batch, err := b.take()
		if err != nil {
			return 0, err
		}
		if batch.Head != nil {
			return int(batch.Head.Status), nil
		}
		if b.end == nil {
			continue
		}
		if err := ollamaEnded(b.end); !errors.Is(err, io.EOF) {
			return 0, err
		}
		return 0, commandFailed(errors.New("the Node ended the call without a response"))
	}
}

// take waits for the next that arrives.
func (b *ollamaBody) take() (tunnel.Batch, error) {
	for {
		if batch, ok := b.run.Take(); ok {
			b.left, b.end = batch.Data, batch.End
			return batch, nil
		}
		select {
		case <-b.run.Ready():
		case <-b.ctx.Done():
			return tunnel.Batch{}, commandFailed(b.ctx.Err())
		}
	}
}

// Read implements io.Reader.
func (b *ollamaBody) Read(p []byte) (int, error) {
	for len(b.left) == 0 {
		if b.end != nil {
			return 0, ollamaEnded(b.end)
		}
		if _, err := b.take(); err != nil {
			return 0, err
		}
	}
	n := copy(p, b.left)
	b.left = b.left[n:]
	return n, nil
}

// Close ends the call at the Node, if it has not ended.
func (b *ollamaBody) Close() error {
	if b.end == nil {
		b.run.Abandon(execution.CodeCancelledByOperator, "the operator stopped waiting")
	}
	return nil
}

// ollamaEnded is the end of a call: io.EOF where it came to its own.
func ollamaEnded(t *execution.Terminal) error {
	e := &admin.CommandError{Status: http.StatusBadGateway, Code: "node_failed", Message: "the call ended as " + t.Outcome.String()}
	switch t.Code {
	case execution.CodeNone:
		if t.Outcome == execution.Completed {
			return io.EOF
		}
	case execution.CodeCapacity:
		e.Status, e.Code = http.StatusTooManyRequests, "too_many_calls"
	case execution.CodeUnsupported:
		e.Status, e.Code = http.StatusConflict, "not_ollama"
	case execution.CodeUnknownProvider:
		e.Status, e.Code, e.Param = http.StatusNotFound, "provider_not_found", "provider"
	case execution.CodeBadRequest:
		e.Status, e.Code = http.StatusBadRequest, "invalid_request"
	case execution.CodeProviderTimeout, execution.CodeDeadline:
		e.Status, e.Code = http.StatusGatewayTimeout, "node_timeout"
	}
	if t.Code != execution.CodeNone {
		e.Message += " (" + t.Code.String() + ")"
	}
	if t.Detail != "" {
		e.Message += ": " + t.Detail
	}
	return e
}
