package anthropic

import (
	"strconv"

	"iop/execution"
	"iop/openai"
)

// overhead is what a message, a tool or a call costs a model beside its words: its role, its name, its ends.
const overhead = 4

// CountTokens returns about how many tokens the prompt is, at least 1, for a provider that does not count: a token for
// each four bytes of text, of tools and of their calls, [openai.MediaTokens] for an image, a recording or a document, and
// a few for each message and tool. It is the method by which the Edge estimates costs. English comes out within a
// quarter or so of what tokenizers say; other scripts and code can be far off. No tokenizer is asked.
func CountTokens(in *execution.Input) int64 {
	text, rest := 0, int64(0)
	for i := range in.Messages {
		m := &in.Messages[i]
		rest += overhead
		for j := range m.Parts {
			p := &m.Parts[j]
			text += len(p.Text) + len(p.Redacted)
			if p.Kind == execution.PartImage || p.Kind == execution.PartAudio || p.Kind == execution.PartFile {
				rest += mediaTokens(p)
			}
		}
		for _, c := range m.ToolCalls {
			text += len(c.Name) + len(c.Arguments)
			rest += overhead
		}
	}
	for _, t := range in.Tools {
		text += len(t.Name) + len(t.Description) + len(t.Parameters)
		rest += overhead
	}
	if in.Format != nil {
		text += len(in.Format.Schema)
	}
	return openai.EstimateTokens(text) + rest
}

// mediaTokens is the estimate of one part that is no text. A plain text is counted as what it is.
func mediaTokens(p *execution.Part) int64 {
	if p.MediaType == "text/plain" {
		return openai.EstimateTokens(len(p.Data) / 4 * 3)
	}
	return openai.MediaTokens
}

// AppendCount appends the answer of count_tokens.
func AppendCount(dst []byte, tokens int64) []byte {
	dst = append(dst, `{"input_tokens":`...)
	return append(strconv.AppendInt(dst, tokens, 10), '}')
}
