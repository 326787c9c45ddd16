package gateway

import (
	"net/http"
	"strings"

	"iop/gateway/admission"
	"iop/openai"
	"iop/openai/anthropic"
	"iop/openai/ollama"
	"iop/state"
)

// kindLines is the content type of Ollama's streams.
const kindLines = "application/x-ndjson"

// sessionHeader names the client's session, before what the body says of it.
const sessionHeader = "X-Session-Id"

// maxSessionEcho bounds the session_id that is sent back as a header, in bytes.
const maxSessionEcho = 256

// parser reads the body of one operation as a normalized run.
type parser func(body []byte) (*openai.Request, *openai.Error)

// parsers are the operations that can be normalized runs.
var parsers = map[openai.OpID]parser{
	openai.OpChatCompletions: openai.ParseChat,
	openai.OpResponses:       openai.ParseResponses,
	openai.OpMessages:        anthropic.ParseMessages,
	openai.OpOllamaChat:      ollama.ParseChat,
	openai.OpOllamaGenerate:  ollama.ParseGenerate,
}

// normalizers are the adapters that may run the request as a normalized run.
func (x *exchange) normalizers() admission.Kinds {
	if x.form != nil || parsers[x.op.ID] == nil {
		return 0
	}
	return admission.EveryKind
}

// lines reports whether the request is answered with a stream of JSON lines, into which nothing else may be put.
func (x *exchange) lines() bool { return x.env.Stream && x.op.Stream == openai.StreamOllama }

// sessionOf is what the client calls its session: whatever it is, it never gives two runs anything in common.
func sessionOf(h http.Header, env *openai.Envelope, body []byte) string {
	if v := h[sessionHeader]; len(v) == 1 && v[0] != "" && len(v[0]) <= openai.MaxHintLength {
		return v[0]
	}
	if env.SessionID != "" {
		return env.SessionID
	}
	return env.MetadataSessionID(body)
}

// echoesSession reports whether the session_id can stand in a header.
func (x *exchange) echoesSession() bool {
	if x.session == "" || len(x.session) > maxSessionEcho {
		return false
	}
	for i := range len(x.session) {
		if c := x.session[i]; c < ' ' || c > '~' {
			return false
		}
	}
	return true
}

// latest is the tag that Ollama's names have where they have none.
const latest = ":latest"

// otherSpelling is Ollama's other name of the same model, with its tag or without it; empty if there is none.
func otherSpelling(model string) string {
	if name, ok := strings.CutSuffix(model, latest); ok {
		return name
	}
	if strings.Contains(model[strings.LastIndexByte(model, '/')+1:], ":") {
		return ""
	}
	return model + latest
}

// routedName is the name by which a model is looked for. On Ollama's paths a name without a tag and the same one with
// the tag "latest" are one model: what is served counts, then what is known, and of two what the client wrote.
func (s *Server) routedName(fam openai.Family, key *state.Key, model string) string {
	if fam != openai.FamilyOllama || model == "" {
		return model
	}
	other := otherSpelling(model)
	if other == "" {
		return model
	}
	for _, name := range [...]string{model, other} {
		if r := s.routing.table.Load().Resolve(name); r != nil && mayUse(key, r, name) && s.adm.Serves(r) {
			return name
		}
	}
	r := s.routing.table.Load().Resolve(model)
	if o := s.routing.table.Load().Resolve(other); o != nil && mayUse(key, o, other) && s.adm.Knows(o) && (r == nil || !s.adm.Knows(r)) {
		return other
	}
	return model
}

// inShape reports whether a provider's error, which passes on OpenAI's paths, is one of the family's own.
func inShape(fam openai.Family, body []byte) bool {
	switch fam {
	case openai.FamilyAnthropic:
		return openai.Text(openai.Member(body, "type")) == "error"
	case openai.FamilyOllama:
		return openai.Text(openai.Member(body, "error")) != ""
	}
	return true
}
