package gateway

import (
	"net/http"
	"time"

	"iop/execution"
	"iop/gateway/admission"
	"iop/openai"
	"iop/openai/anthropic"
	"iop/openai/ollama"
)

// estimatedHeader is on an answer of count_tokens that no provider gave: the count is an estimate.
const estimatedHeader = "X-Iop-Token-Count"

// countTokens answers count_tokens in place of a provider that has it and is free: nobody waits for a count. waiter is who
// waits for one that is busy, or nil.
func (x *exchange) countTokens(waiter *admission.Waiter) *verdict {
	if waiter != nil {
		waiter.Leave()
	}
	request, e := anthropic.ParseCountTokens(x.body)
	if e != nil {
		return &verdict{terminal: execution.Terminal{Outcome: execution.Rejected, Code: execution.CodeBadRequest}, problem: e}
	}
	x.w.Header()[estimatedHeader] = []string{"estimated"}
	return x.answered(anthropic.AppendCount(nil, anthropic.CountTokens(request.Input)))
}

// loads answers a request by which Ollama's clients load or unload a model, for targets that load what they need.
func (x *exchange) loads() (body []byte, ok bool) {
	generate := x.op.ID == openai.OpOllamaGenerate
	if !generate && x.op.ID != openai.OpOllamaChat {
		return nil, false
	}
	unload, ok := ollama.ParseLoad(x.body, generate)
	if !ok {
		return nil, false
	}
	return append(ollama.AppendLoaded(nil, x.env.Model, time.Now(), generate, unload), '\n'), true
}

// answered sends an answer for which no Node was asked.
func (x *exchange) answered(body []byte) *verdict {
	v := &verdict{terminal: execution.Terminal{Outcome: execution.Completed}}
	kind := "application/json"
	if x.lines() {
		kind = kindLines
	}
	x.answer = answer{status: http.StatusOK, kind: kind, length: int64(len(body))}
	x.send(&x.answer, body, true, &v.terminal)
	return v
}
