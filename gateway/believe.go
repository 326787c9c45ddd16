package gateway

import (
	"bytes"
	"log/slog"
	"time"

	"iop/execution"
	"iop/openai"
	"iop/state"
)

// What a run can have used at most. A Node's report is a claim: one absurd number must not use up a key's budget, and
// must not become an estimate. The bounds are far above what honest providers report.
const (
	// A token of a prompt takes a byte or more, but a provider adds to it: a template, tools, an image behind a URL.
	inputPerByte = 8
	inputBeyond  = 64 << 10
	// inputPerReference is for lists of media: an address takes sixty bytes or more, an image some 16,000 tokens.
	inputPerReference = 512
	// contextMost is for requests whose input may be elsewhere: the context of the largest models.
	contextMost = 2 << 20
	// Tokens of an answer that passed take a byte or more. Hidden ones (reasoning) take time; this is more than twice
	// what the fastest engines make for one sequence.
	outputPerSecond = 8192
	// maxChoices bounds what a client's number of choices can make of it.
	maxChoices = 128
)

// inputBound is how many tokens of input a request can be.
func inputBound(op *openai.Operation, env *openai.Envelope, body []byte) int64 {
	read := int64(len(body))
	if op.ID.Reranks() {
		read = openai.RerankReads(body)
	}
	beyond, own := int64(inputBeyond), inputPerByte*read
	switch {
	case (op.ID.Reranks() || op.ID == openai.OpEmbeddings) && refers(body, listed): // each of the list is a prompt of its own
		own = inputPerReference * read
	case op.ID == openai.OpResponses, op.ID == openai.OpOllamaGenerate && env.ReadsMore(), // it has a template
		readsTools(op.ID) && own < contextMost && (env.ReadsMore() || refers(body, references[:])):
		beyond = contextMost
	}
	return min(beyond+own, state.MaxRunTokens)
}

// readsTools reports whether providers take addresses, documents and tools of their own for an operation.
func readsTools(op openai.OpID) bool {
	return op == openai.OpChatCompletions || op == openai.OpCompletions || op == openai.OpMessages
}

// references are what a request's content has that makes its provider read more than the request: an address, the id of a file,
// or a document or film, of which some kilobytes can hold many pages. A picture of one colour takes a hundred bytes, and thousands
// of tokens; a tensor of one row takes no more, whatever its length. An address has slashes, each perhaps with JSON's backslash, or
// is what a member is named for: fetch takes "https:host" for one. An escape may stand for any of these.
var references = [...][]byte{
	[]byte("://"), []byte(`:\/`), []byte(`:/\/`), []byte(`url"`), []byte(`Url"`), []byte(`URL"`), []byte(`uri"`), []byte(`Uri"`), []byte(`URI"`),
	[]byte("file_id"), []byte("fileId"), []byte("file_data"), []byte("fileData"), []byte(`"video`), []byte(`"image"`), []byte(`_embeds"`), []byte(escapeMark), []byte(`"document`),
}

// escapeMark begins an escape for a character of Latin 1.
const escapeMark = `\u00`

// listed are those of references that mean something in a list to embed or rank: its texts are documents, too.
var listed = references[:len(references)-1]

// refers reports whether the input may be larger than the request. A document behind an address, or a compressed one, can fill a
// model's context: to book no more than the request's own size for it would sell it at a tenth.
func refers(body []byte, marks [][]byte) bool {
	for _, mark := range marks {
		if bytes.Contains(body, mark) {
			return true
		}
	}
	return false
}

// outputBound is how many tokens of output an answer can be of which so many bytes passed in that time.
func outputBound(bytes, choices int64, took time.Duration) int64 {
	seconds := int64(max(took, 0)/time.Second) + 1
	return min(bytes+outputPerSecond*min(max(choices, 1), maxChoices)*seconds, state.MaxRunTokens)
}

// believe brings what a Node says of a run within what is possible. A count that was out of bounds becomes an estimate:
// it is booked as the bound, and nothing is learnt from it.
func (x *exchange) believe(t *execution.Terminal) {
	took := time.Since(x.started) - x.rec.queuedFor()
	d := &t.Timings
	d.Admission, d.Provider = within(d.Admission, took), within(d.Provider, took)
	d.FirstByte = within(d.FirstByte, d.Provider)
	u := &t.Usage
	if !u.Known {
		return
	}
	claimed := *u
	u.Input = within(u.Input, x.inputMost)
	u.Output = within(u.Output, outputBound(x.passed(), x.length.Choices, took))
	u.Cached, u.Reasoning = within(u.Cached, u.Input), within(u.Reasoning, u.Output)
	if u.Input == claimed.Input && u.Output == claimed.Output {
		return
	}
	u.Estimated = true
	x.s.metrics.implausible.Inc()
	x.s.log.LogAttrs(x.r.Context(), slog.LevelWarn, "a Node reported impossible usage",
		slog.String("run_id", string(x.rec.id)), slog.String("node", string(x.ticket.Target.Node)),
		slog.String("provider", string(x.ticket.Target.Provider)),
		slog.Int64("input_tokens", claimed.Input), slog.Int64("output_tokens", claimed.Output),
	)
}

func within[T ~int64](v, most T) T { return min(max(v, 0), max(most, 0)) }

// passed is about how many bytes of the answer have come, at least as many as there were.
func (x *exchange) passed() int64 {
	n := x.reply.bytes + int64(len(x.answer.buf))
	if x.norm != nil {
		n += int64(x.norm.gathered() + len(x.norm.out))
	}
	return n
}
