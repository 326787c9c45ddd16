package openai

import (
	"fmt"
	"strings"
)

// OpID names one operation of the public API. It travels on the tunnel as its name, so numbers may only be appended
// and names never change. The zero value is invalid.
type OpID uint8

// The operations, in the order in which they were added.
const (
	OpChatCompletions OpID = iota + 1
	OpCompletions
	OpEmbeddings
	OpResponses
	OpModerations
	OpRerank     // /v1/rerank
	OpRerankRoot // /rerank
	OpRerankV2   // /v2/rerank
	OpImagesGenerations
	OpImagesEdits
	OpAudioSpeech
	OpAudioTranscriptions
	OpAudioTranslations
	OpTokenize
	OpDetokenize
	OpMessages
	OpCountTokens
	OpOllamaChat
	OpOllamaGenerate
	OpOllamaEmbed
	OpOllamaEmbeddings // the older form of embed
)

// Answer is the shape of an operation's answer. The zero value is invalid.
type Answer uint8

// The shapes of an answer.
const (
	AnswerUnary  Answer = iota + 1 // one JSON document, always
	AnswerSSE                      // one JSON document, or an event stream when the request says `stream: true`
	AnswerBinary                   // media bytes; a provider may answer with an event stream where asked in its own ways
	AnswerNDJSON                   // a stream of JSON lines, or one JSON document when the request says `stream: false`
)

// StreamKind says which protocol an event stream speaks, and with it what ends it. The zero value is StreamNone.
type StreamKind uint8

// The kinds of stream.
const (
	StreamNone      StreamKind = iota // no stream
	StreamChat                        // SSE: chat and text completions; ends with a finish_reason or [DONE]
	StreamResponses                   // SSE: typed events; ends with response.completed, .incomplete or .failed
	StreamMessages                    // SSE: Anthropic Messages; ends with message_stop
	StreamOllama                      // NDJSON: ends with done:true
	StreamMedia                       // SSE: images, speech and transcripts; ends with the typed completed/done event, or as chat does
)

// Operation is one row of the closed table: what a client may call, and what a provider is called with. No byte of a
// path that a client wrote reaches a provider.
type Operation struct {
	ID     OpID
	Name   string // the ID's name on the tunnel, in logs and in metrics
	Method string
	Path   string // the client's path, matched exactly
	// UpstreamPath is the constant path at the provider, below the provider's base URL without its /v1.
	UpstreamPath string

	Answer       Answer
	Stream       StreamKind // the protocol of its event stream; StreamNone where there is none
	JSON         bool       // takes application/json
	Multipart    bool       // takes multipart/form-data
	IncludeUsage bool       // stream_options.include_usage means something here
	// MaxTokens is the parameter that bounds the answer's length in tokens, empty where there is no such thing.
	MaxTokens string
	// Options: sampling and the answer's length are not parameters of the request itself but of its member options.
	Options bool
}

// Streams reports whether a request to this operation that says `stream: true` is answered with an event stream.
func (o Operation) Streams() bool { return o.Answer == AnswerSSE || o.Answer == AnswerNDJSON }

// StreamsUnlessTold reports whether a request that does not say `stream` is answered with a stream, as Ollama does.
func (o Operation) StreamsUnlessTold() bool { return o.Answer == AnswerNDJSON }

// isOllama reports whether the operation is one of Ollama's own API.
func (o *Operation) isOllama() bool { return strings.HasPrefix(o.Path, "/api/") }

// OpSet is a set of operations. The zero value is empty.
type OpSet uint64

// With returns the set with the operation in it.
func (s OpSet) With(id OpID) OpSet { return s | 1<<id }

// Has reports whether the operation is in the set.
func (s OpSet) Has(id OpID) bool { return s&(1<<id) != 0 }

var operations = [...]Operation{
	{ID: OpChatCompletions, Name: "chat.completions", Path: "/v1/chat/completions", Answer: AnswerSSE, Stream: StreamChat, JSON: true, IncludeUsage: true, MaxTokens: "max_tokens"},
	{ID: OpCompletions, Name: "completions", Path: "/v1/completions", Answer: AnswerSSE, Stream: StreamChat, JSON: true, IncludeUsage: true, MaxTokens: "max_tokens"},
	{ID: OpEmbeddings, Name: "embeddings", Path: "/v1/embeddings", Answer: AnswerUnary, JSON: true},
	{ID: OpResponses, Name: "responses", Path: "/v1/responses", Answer: AnswerSSE, Stream: StreamResponses, JSON: true, MaxTokens: "max_output_tokens"},
	{ID: OpModerations, Name: "moderations", Path: "/v1/moderations", Answer: AnswerUnary, JSON: true},
	{ID: OpRerank, Name: "rerank", Path: "/v1/rerank", Answer: AnswerUnary, JSON: true},
	{ID: OpRerankRoot, Name: "rerank.root", Path: "/rerank", Answer: AnswerUnary, JSON: true},
	{ID: OpRerankV2, Name: "rerank.v2", Path: "/v2/rerank", Answer: AnswerUnary, JSON: true},
	{ID: OpImagesGenerations, Name: "images.generations", Path: "/v1/images/generations", Answer: AnswerSSE, Stream: StreamMedia, JSON: true},
	{ID: OpImagesEdits, Name: "images.edits", Path: "/v1/images/edits", Answer: AnswerSSE, Stream: StreamMedia, JSON: true, Multipart: true},
	{ID: OpAudioSpeech, Name: "audio.speech", Path: "/v1/audio/speech", Answer: AnswerBinary, Stream: StreamMedia, JSON: true},
	{ID: OpAudioTranscriptions, Name: "audio.transcriptions", Path: "/v1/audio/transcriptions", Answer: AnswerSSE, Stream: StreamMedia, Multipart: true},
	{ID: OpAudioTranslations, Name: "audio.translations", Path: "/v1/audio/translations", Answer: AnswerUnary, Multipart: true},
	{ID: OpTokenize, Name: "tokenize", Path: "/tokenize", Answer: AnswerUnary, JSON: true},
	{ID: OpDetokenize, Name: "detokenize", Path: "/detokenize", Answer: AnswerUnary, JSON: true},
	{ID: OpMessages, Name: "messages", Path: "/v1/messages", Answer: AnswerSSE, Stream: StreamMessages, JSON: true, MaxTokens: "max_tokens"},
	{ID: OpCountTokens, Name: "messages.count_tokens", Path: "/v1/messages/count_tokens", Answer: AnswerUnary, JSON: true},
	{ID: OpOllamaChat, Name: "ollama.chat", Path: "/api/chat", Answer: AnswerNDJSON, Stream: StreamOllama, JSON: true, Options: true},
	{ID: OpOllamaGenerate, Name: "ollama.generate", Path: "/api/generate", Answer: AnswerNDJSON, Stream: StreamOllama, JSON: true, Options: true},
	{ID: OpOllamaEmbed, Name: "ollama.embed", Path: "/api/embed", Answer: AnswerUnary, JSON: true},
	{ID: OpOllamaEmbeddings, Name: "ollama.embeddings", Path: "/api/embeddings", Answer: AnswerUnary, JSON: true},
}

// operationMethod is the method of every operation so far; the field exists so that this can change in one row.
const operationMethod = "POST"

// byName is filled once at start-up and only read afterwards.
var byName = make(map[string]*Operation, len(operations))

func init() {
	for i := range operations {
		o := &operations[i]
		o.Method, o.UpstreamPath = operationMethod, o.Path
		byName[o.Name] = o
	}
}

// Operations returns a copy of the whole table, in the order of the ids.
func Operations() []Operation {
	return append([]Operation(nil), operations[:]...)
}

// ParseOp returns the operation that has this name on the tunnel.
func ParseOp(name string) (OpID, bool) {
	if o := byName[name]; o != nil {
		return o.ID, true
	}
	return 0, false
}

// Operation returns the table's row for the id; ok is false for an id that is not in it.
func (id OpID) Operation() (op Operation, ok bool) {
	if id == 0 || int(id) > len(operations) {
		return Operation{}, false
	}
	return operations[id-1], true
}

// Name returns the operation's name on the tunnel, "unknown_N" for an id that is not in the table.
func (id OpID) Name() string {
	if op, ok := id.Operation(); ok {
		return op.Name
	}
	return fmt.Sprintf("unknown_%d", uint8(id))
}

// String is Name.
func (id OpID) String() string { return id.Name() }
