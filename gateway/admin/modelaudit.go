package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"iop/execution"
	"iop/state"
)

// This file is the audit of commands: who changed the models of a Node. An entry is written when the change has ended.

const (
	// maxPullLine bounds what is kept of a line of a pull's progress; a line of Ollama's is a tenth of it.
	maxPullLine = 4 << 10
)

// modelActions are the calls of the Ollama API that change a Node's models, as the audit names them.
var modelActions = map[OllamaOperation]state.AuditAction{
	OllamaPull: state.AuditModelPulled, OllamaDelete: state.AuditModelDeleted,
}

// errOperatorLeft is the end of a pull whose operator waits no more.
var errOperatorLeft = &failure{http.StatusBadGateway, "cancelled", "", "the operator stopped waiting"}

// noteModel writes down that a Node's models were to be changed, and with which end: nil, or why not. What the provider
// said is not in it.
func (a *api) noteModel(r *http.Request, call OllamaCall, provider execution.ProviderID, end error) {
	action := modelActions[call.Operation]
	if action == 0 {
		return
	}
	var names struct{ Model, Name string } // name is what model was called once
	_ = json.Unmarshal(call.Body, &names)  // where it names none, the provider has refused it
	subject := names.Model
	if subject == "" {
		subject = names.Name
	}
	if provider != "" {
		subject = string(provider) + "/" + subject
	}
	entry := state.AuditEntry{Action: action, Outcome: state.AuditDone, Node: call.Node, Subject: subject}
	if end != nil {
		entry.Outcome, entry.Reason = state.AuditFailed, "internal_error"
		var f *failure
		var e *CommandError
		switch {
		case errors.As(end, &f):
			entry.Reason = f.code
		case errors.As(end, &e):
			f = e.failure()
			entry.Reason = f.code
		}
		if f != nil && f.status < http.StatusInternalServerError {
			entry.Outcome = state.AuditRefused
		}
	}
	a.note(r.Context(), entry)
}

// pullProgress reads along with a pull: it has ended well if its last line says so.
type pullProgress struct {
	line, last []byte // line is what came of one; last is the last whole one
}

func (p *pullProgress) write(data []byte) {
	for {
		line, rest, ended := bytes.Cut(data, []byte("\n"))
		p.line = append(p.line, line[:min(len(line), maxPullLine-len(p.line))]...)
		if !ended {
			return
		}
		p.turn()
		data = rest
	}
}

// turn ends a line. An empty one is none.
func (p *pullProgress) turn() {
	if len(bytes.TrimSpace(p.line)) > 0 {
		p.line, p.last = p.last, p.line
	}
	p.line = p.line[:0]
}

// end is how the pull ended: nil, what cut it off, or what its last line says.
func (p *pullProgress) end(cut error) error {
	if !errors.Is(cut, io.EOF) {
		return cut
	}
	p.turn()
	var last struct{ Status, Error string }
	if json.Unmarshal(p.last, &last) == nil && last.Status == "success" && last.Error == "" {
		return nil
	}
	return &failure{http.StatusBadGateway, "provider_error", "", "the provider did not confirm that it has the model"}
}
