package gateway

import (
	"iop/execution"
	"iop/openai"
)

// usedForError is the usage of a run that its provider ended with an error of that body: known to be something where the model's
// text is in it. Other errors cost nothing: a provider that refuses or fails mostly does no work.
func (x *exchange) usedForError(reported execution.Usage, body []byte) execution.Usage {
	if reported.Known {
		return reported
	}
	if openai.HoldsFailedText(body) {
		return execution.Usage{Input: x.input, Output: openai.EstimateTokens(len(body)), Known: true, Estimated: true}
	}
	return reported
}
