package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"unicode"

	"iop/execution"
)

// This file is what an operator may ask of one Node: the closed set of commands.

// Commands is what the commands need of the Edge. Errors are *CommandError. session is an opaque correlation, which the
// answers have again.
type Commands interface {
	// Capabilities asks the Node what it has.
	Capabilities(ctx context.Context, node execution.NodeID, session execution.SessionID) (*NodeCapabilities, error)
	// Transport is the Edge's view of the Node's session, and the Node's.
	Transport(ctx context.Context, node execution.NodeID, session execution.SessionID) (*NodeTransport, error)
	// Ollama makes one call of the Ollama API of a provider of the Node. The caller closes the answer's body; that, and the
	// end of ctx, ends the call at the Node.
	Ollama(ctx context.Context, call OllamaCall) (*OllamaAnswer, error)
}

// OllamaOperation is one operation of the Ollama API. The zero value is none.
type OllamaOperation uint8

// The operations, all that there are.
const (
	OllamaTags OllamaOperation = iota + 1
	OllamaLoaded
	OllamaVersion
	OllamaShow
	OllamaDelete
	OllamaPull
)

var ollamaNames = [...]string{"", "tags", "ps", "version", "show", "delete", "pull"}

// String returns the operation's name on the tunnel and in paths.
func (o OllamaOperation) String() string { return ollamaNames[o] }

// OllamaCall is one call of the Ollama API.
type OllamaCall struct {
	Node      execution.NodeID
	Provider  execution.ProviderID // empty: the Node's only one that is an Ollama
	Operation OllamaOperation
	Session   execution.SessionID
	Body      []byte // JSON; nil where the operation has no request
}

// OllamaAnswer is what the provider answered.
type OllamaAnswer struct {
	Provider execution.ProviderID
	Status   int
	Body     io.ReadCloser // its Read fails with a *CommandError where the answer was cut
}

// CommandError says why a command came to nothing.
type CommandError struct {
	Status  int // for the operator, as HTTP has it
	Code    string
	Param   string // or empty
	Message string
}

func (e *CommandError) Error() string { return e.Message }

// failure is the error as the API's.
func (e *CommandError) failure() *failure { return &failure{e.Status, e.Code, e.Param, e.Message} }

// NodeCapabilities is the answer to GET /admin/v1/nodes/{node}/capabilities: what the Node itself says now.
type NodeCapabilities struct {
	Node       execution.NodeID     `json:"node"`
	Generation execution.Generation `json:"generation"`
	SessionID  execution.SessionID  `json:"session_id,omitempty"`
	Version    string               `json:"version"`
	Labels     map[string]string    `json:"labels"`
	Providers  []Capability         `json:"providers"`
}

// Capability is one provider in it.
type Capability struct {
	ID            execution.ProviderID `json:"id"`
	Adapter       string               `json:"adapter"`
	Engine        string               `json:"engine,omitempty"`
	EngineVersion string               `json:"engine_version,omitempty"`
	Health        string               `json:"health"` // "ok", "hung", "gone", "unknown"
	Capacity      int                  `json:"capacity"`
	InFlight      int                  `json:"in_flight"`
	// Operations are those whose path it has; with OperationsKnown unset nobody knows. Normalized says that runs of other
	// protocols can be normalized for it.
	Operations      []string          `json:"operations"`
	OperationsKnown bool              `json:"operations_known"`
	Normalized      bool              `json:"normalized"`
	Models          []CapabilityModel `json:"models"`
}

// CapabilityModel is one model that a provider serves.
type CapabilityModel struct {
	ID     string `json:"id"`
	Loaded bool   `json:"loaded"`
}

// NodeTransport is the answer to GET /admin/v1/nodes/{node}/transport: one session from both its ends.
type NodeTransport struct {
	Node      execution.NodeID    `json:"node"`
	SessionID execution.SessionID `json:"session_id,omitempty"`
	Edge      Transport           `json:"edge_view"`
	AtNode    Transport           `json:"node_view"`
}

// Transport is one end's view of a session. Bytes in flight, in the window and queued are of requests and answers.
type Transport struct {
	Generation      execution.Generation `json:"generation"`
	UptimeMS        int64                `json:"uptime_ms"`
	HeartbeatRTTMS  float64              `json:"heartbeat_rtt_ms"`
	LastAckAgeMS    int64                `json:"last_ack_age_ms"`
	Draining        bool                 `json:"draining"`
	OpenRuns        int                  `json:"open_runs"`
	StalledRuns     int                  `json:"stalled_runs"`
	QueuedBytes     int                  `json:"queued_bytes"`
	SessionWindow   int                  `json:"session_window"`
	SessionInFlight int                  `json:"session_in_flight"`
	FramesSent      uint64               `json:"frames_sent"`
	FramesReceived  uint64               `json:"frames_received"`
	BytesSent       uint64               `json:"bytes_sent"`
	BytesReceived   uint64               `json:"bytes_received"`
	// Of the Node alone; absent of the Edge.
	Reconnects      *uint64 `json:"reconnects,omitempty"`
	ProcessUptimeMS *int64  `json:"process_uptime_ms,omitempty"`
}

// OllamaResult is the answer to a call of the Ollama API that does not stream.
type OllamaResult struct {
	Node      execution.NodeID     `json:"node"`
	Provider  execution.ProviderID `json:"provider"`
	Operation string               `json:"operation"`
	SessionID execution.SessionID  `json:"session_id,omitempty"`
	Result    json.RawMessage      `json:"result"` // the provider's own; null where it says nothing
}

// Query parameters of commands.
var (
	commandParameters = []string{"session_id"}
	ollamaParameters  = []string{"session_id", "provider"}
)

const (
	sessionHeader = "X-Session-Id"
	maxSession    = 256
	// maxOllamaAnswer bounds an answer that is gathered: a server with a thousand models lists them in half of it.
	maxOllamaAnswer = 4 << 20
)

func (a *api) commandEndpoints() []endpoint {
	list := []endpoint{
		{method: "GET", path: "/nodes/{node}/capabilities", query: commandParameters, answer: a.capabilities},
		{method: "GET", path: "/nodes/{node}/transport", query: commandParameters, answer: a.transport},
		{method: "POST", path: "/nodes/{node}/ollama/pull", query: ollamaParameters, body: jsonBody, stream: a.ollamaPull},
	}
	for _, op := range []OllamaOperation{OllamaTags, OllamaLoaded, OllamaVersion, OllamaShow, OllamaDelete} {
		e := endpoint{method: "POST", path: "/nodes/{node}/ollama/" + op.String(), query: ollamaParameters}
		if op == OllamaShow || op == OllamaDelete {
			e.body = jsonBody
		}
		e.answer = func(r *http.Request) (any, error) { return a.ollama(r, op) }
		list = append(list, e)
	}
	return list
}

// sessionOf is the correlation that whoever asks wants back: a header or a parameter.
func sessionOf(r *http.Request) (execution.SessionID, error) {
	header, query := r.Header.Get(sessionHeader), r.URL.Query().Get("session_id")
	if header != "" && query != "" && header != query {
		return "", invalid("session_id", "the header and the parameter have different session IDs")
	}
	if query != "" {
		header = query
	}
	if len(header) > maxSession {
		return "", invalid("session_id", fmt.Sprintf("session_id must be at most %d bytes long", maxSession))
	}
	for _, c := range header {
		if !unicode.IsPrint(c) {
			return "", invalid("session_id", "session_id must be printable text")
		}
	}
	return execution.SessionID(header), nil
}

func (a *api) capabilities(r *http.Request) (any, error) {
	session, err := sessionOf(r)
	if err != nil {
		return nil, err
	}
	return a.edge.Capabilities(r.Context(), nodeID(r), session)
}

func (a *api) transport(r *http.Request) (any, error) {
	session, err := sessionOf(r)
	if err != nil {
		return nil, err
	}
	return a.edge.Transport(r.Context(), nodeID(r), session)
}

// callOllama makes a call of the Ollama API; the provider's own refusal is an error here.
func (a *api) callOllama(r *http.Request, op OllamaOperation) (OllamaCall, *OllamaAnswer, error) {
	call := OllamaCall{Node: nodeID(r), Provider: execution.ProviderID(r.URL.Query().Get("provider")), Operation: op}
	var err error
	if call.Session, err = sessionOf(r); err != nil {
		return call, nil, err
	}
	if r.ContentLength != 0 {
		var body json.RawMessage
		if err := decode(r, &body); err != nil {
			return call, nil, err
		}
		if body = bytes.TrimSpace(body); body[0] != '{' {
			return call, nil, invalid("", "the body must be a JSON object")
		}
		call.Body = body
	} else if op >= OllamaShow {
		return call, nil, invalid("", "the body must be a JSON object")
	}
	answer, err := a.edge.Ollama(r.Context(), call)
	if err != nil {
		a.noteModel(r, call, call.Provider, err)
		return call, nil, err
	}
	if answer.Status >= http.StatusBadRequest {
		defer answer.Body.Close()
		err := providerRefusal(answer)
		a.noteModel(r, call, answer.Provider, err)
		return call, nil, err
	}
	if op == OllamaDelete || op == OllamaPull {
		a.done(r, "ollama "+op.String(), "node", call.Node, "provider", answer.Provider, "request", string(call.Body), "session_id", call.Session)
	}
	return call, answer, nil
}

// providerRefusal is the error of an answer whose status is one.
func providerRefusal(answer *OllamaAnswer) error {
	var said struct {
		Error string `json:"error"`
	}
	data, _ := io.ReadAll(io.LimitReader(answer.Body, maxBody)) // the status is the news
	message := fmt.Sprintf("the provider answered with status %d", answer.Status)
	if json.Unmarshal(data, &said) == nil && said.Error != "" {
		message = "the provider says: " + said.Error
	}
	status := http.StatusBadGateway
	switch answer.Status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusConflict:
		status = answer.Status
	}
	return &failure{status, "provider_error", "", message}
}

// ollama answers with what the provider says, whole.
func (a *api) ollama(r *http.Request, op OllamaOperation) (any, error) {
	call, answer, err := a.callOllama(r, op)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxOllamaAnswer+1))
	a.noteModel(r, call, answer.Provider, err)
	if err != nil {
		return nil, err
	}
	data = bytes.TrimSpace(data)
	switch {
	case len(data) == 0:
		data = []byte("null")
	case len(data) > maxOllamaAnswer, !json.Valid(data):
		return nil, &failure{http.StatusBadGateway, "provider_error", "", "the provider's response is not JSON or too long"}
	}
	return OllamaResult{Node: call.Node, Provider: answer.Provider, Operation: op.String(), SessionID: call.Session, Result: data}, nil
}

// ollamaPull passes the provider's progress on, a JSON object a line. Where it breaks off the last line has an error.
func (a *api) ollamaPull(w http.ResponseWriter, r *http.Request) error {
	call, answer, err := a.callOllama(r, OllamaPull)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	header(w, "application/x-ndjson")
	w.Header().Set("X-Accel-Buffering", "no")
	if call.Session != "" {
		w.Header().Set(sessionHeader, string(call.Session))
	}
	flush := http.NewResponseController(w)
	buf := make([]byte, 16<<10)
	last := byte('\n')
	var progress pullProgress
	for {
		n, err := answer.Body.Read(buf)
		if n > 0 {
			progress.write(buf[:n])
			if _, werr := w.Write(buf[:n]); werr != nil || flush.Flush() != nil {
				a.noteModel(r, call, answer.Provider, errOperatorLeft)
				return nil // and closing the body ends the pull
			}
			last = buf[n-1]
		}
		switch {
		case err == nil:
			continue
		case last != '\n':
			_, _ = w.Write([]byte("\n"))
		}
		if r.Context().Err() != nil {
			err = errOperatorLeft
		}
		a.noteModel(r, call, answer.Provider, progress.end(err))
		if !errors.Is(err, io.EOF) {
			_ = json.NewEncoder(w).Encode(map[string]string{"error": a.failureOf(r, err).message})
		}
		return nil
	}
}
