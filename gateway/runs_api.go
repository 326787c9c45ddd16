package gateway

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"iop/execution"
	"iop/openai"
)

// runView is a run as its caller sees it: never the Node, never the provider.
type runView struct {
	ID         execution.RunID  `json:"id"`
	Object     string           `json:"object"` // "run"
	RequestID  string           `json:"request_id"`
	Operation  string           `json:"operation"`
	Model      string           `json:"model"`
	Stream     bool             `json:"stream"`
	SessionID  string           `json:"session_id,omitempty"`
	Execution  string           `json:"execution,omitempty"` // "raw", "normalized"; none before the first attempt
	State      string           `json:"state"`               // "queued", "active", "ended"
	Phase      string           `json:"phase"`
	Outcome    string           `json:"outcome,omitempty"`
	Code       string           `json:"code,omitempty"`
	ClientCode string           `json:"client_code,omitempty"` // of the error in the answer
	Status     int              `json:"status,omitempty"`
	Created    int64            `json:"created"` // Unix seconds
	QueueMS    int64            `json:"queue_ms"`
	DurationMS int64            `json:"duration_ms"`
	Attempts   int              `json:"attempts"`
	Reason     string           `json:"reason,omitempty"`
	Usage      *execution.Usage `json:"usage,omitempty"`
}

var stateNames = [...]string{runQueued: "queued", runActive: "active", runEnded: "ended"}

func (rec *record) view() runView {
	phase := rec.phase()
	rec.mu.Lock()
	defer rec.mu.Unlock()
	v := runView{
		ID: rec.id, Object: "run", RequestID: rec.requestID, Operation: rec.op, Model: rec.model, Stream: rec.stream,
		SessionID: rec.session, Execution: rec.howLocked(),
		State: stateNames[rec.state], Phase: phase.String(), Created: rec.started.Unix(),
		QueueMS: rec.queuedLocked().Milliseconds(), Attempts: rec.attempts, Reason: rec.reason.Public(),
		DurationMS: time.Since(rec.started).Milliseconds(),
	}
	if rec.state == runEnded {
		v.DurationMS = rec.end.total.Milliseconds()
		v.ClientCode = rec.end.told
		v.Outcome, v.Code, v.Status = rec.end.terminal.Outcome.String(), rec.end.terminal.Code.String(), rec.end.status
		if u := rec.end.terminal.Usage; u.Known {
			v.Usage = &u
		}
	}
	return v
}

// serveRun shows or cancels a run of the caller's own key. A run of somebody else's is not there.
func (s *Server) serveRun(w http.ResponseWriter, r *http.Request, rest string) {
	id, cancels := strings.CutSuffix(rest, cancelSuffix)
	if id == "" || strings.Contains(id, "/") {
		s.answer(w, r, openai.UnknownPath(withoutKey(r.URL.Path)))
		return
	}
	method := http.MethodGet
	if cancels {
		method = http.MethodPost
	}
	if !s.allow(w, r, method) {
		return
	}
	key, e := s.authenticate(w, r, openai.FamilyOpenAI)
	if e != nil {
		s.answer(w, r, e)
		return
	}
	rec := s.runs.find(execution.RunID(id))
	if rec == nil || rec.key != key.ID {
		e := openai.UnknownPath(withoutKey(r.URL.Path))
		e.Code, e.Message = "run_not_found", "This key has no such run, or the run ended long ago."
		s.answer(w, r, e)
		return
	}
	if cancels {
		rec.cancel(execution.CodeCancelledByCaller)
	}
	body, err := json.Marshal(rec.view())
	if err != nil {
		s.answer(w, r, openai.Internal())
		return
	}
	writeJSON(w, openai.FamilyOpenAI, body)
}
