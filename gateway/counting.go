package gateway

import (
	"iop/execution"
	"iop/gateway/admission"
	"iop/openai/anthropic"
)

// estimatedHeader is on an answer of count_tokens that no provider gave: the count is an estimate.
const estimatedHeader = "X-Iop-Token-Count"

// countTokens answers count_tokens in place of a provider that has it and is free: nobody waits for a count. waiter is who
// waits for one that is busy, or nil.
func (x *exchange) countTokens(waiter *admission.Waiter) *verdict {
	if waiter != nil {
		waiter.Leave()
	}
	v := &verdict{terminal: execution.Terminal{Outcome: execution.Completed}}
	request, e := anthropic.ParseCountTokens(x.body)
	if e != nil {
		v.terminal.Outcome, v.terminal.Code, v.problem = execution.Rejected, execution.CodeBadRequest, e
		return v
	}
	x.w.Header()[estimatedHeader] = []string{"estimated"}
	x.answerHere(anthropic.AppendCount(nil, anthropic.CountTokens(request.Input)), &v.terminal)
	return v
}

// answerHere sends an answer for which no Node is asked.
func (x *exchange) answerHere(body []byte, end *execution.Terminal) {
	x.answer = answer{status: 200, kind: "application/json", length: int64(len(body))}
	x.send(&x.answer, body, true, end)
}
