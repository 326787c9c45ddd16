package gateway

import (
	"iop/gateway/admission"
	"iop/openai"
	"iop/openai/anthropic"
	"iop/openai/ollama"
	"net/http"
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
