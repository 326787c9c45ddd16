package gateway

import (
	"net/http"
	"time"

	"iop/execution"
	"iop/gateway/limit"
	"iop/openai"
	"iop/state"
)

// estimate says how many tokens the request will take, as far as can be told before it ran: a token for each four
// bytes of what the provider reads, and of the answer as many as the client allows, or as the route's answers mostly have.
func (x *exchange) estimate() {
	prompts := int64(1)
	if x.form != nil {
		x.input = openai.EstimateTokens(len(x.body) / mediaBytes)
	} else {
		prompts, _ = x.env.Prompts(x.body)
		x.prompts = prompts
		x.input = x.env.EstimateInput(x.op.ID, x.body)
		if x.op.ID.Reranks() {
			x.input = max(x.input, openai.RerankReads(x.body)/bytesPerToken)
		}
	}
	x.input = min(x.input, state.MaxRunTokens)
	x.inputMost = inputBound(x.op, &x.env, x.body)
	var most int64
	if x.op.Stream != openai.StreamNone && x.op.Stream != openai.StreamMedia {
		x.output = x.stats.output.expected()
		most = max(x.output, x.length.Tokens)
		if x.length.Bounded {
			x.output, most = min(x.output, x.length.Tokens), x.length.Tokens
		}
	}
	if x.op.ID == openai.OpCountTokens {
		x.input, x.output, x.tokens = 0, 0, 0 // nothing is generated
		return
	}
	// Neither factor is above MaxRunTokens, which more than a product of theirs is not booked.
	answers := min(x.length.Choices*min(prompts, state.MaxRunTokens), state.MaxRunTokens)
	if most > 0 && answers > state.MaxRunTokens/most {
		most, answers = state.MaxRunTokens, 1
	}
	x.tokens = min(x.input+most*answers, state.MaxRunTokens)
}

// bytesPerToken is how many bytes of text count as a token.
const bytesPerToken = 4

// mediaBytes is how many bytes of a form count as one of text: it is recordings or images, of which a second, or a
// picture, is about as long as a sentence.
const mediaBytes = 256

// arrive counts the request against its key's requests a minute, or says that none is left.
func (x *exchange) arrive() *openai.Error {
	if over := x.s.limits.Arrive(x.key); over != nil {
		return limitError(over)
	}
	x.arrived = true
	return nil
}

// withdraw takes arrive back where the caller could not help that the request was refused: the Edge had no room or was
// at fault, or another limit of the key refused it, which takes nothing from this one.
func (x *exchange) withdraw(e *openai.Error) {
	if x.arrived && (e.Status >= http.StatusInternalServerError || e.Status == http.StatusTooManyRequests) {
		x.s.limits.Withdraw(x.key)
	}
}

// charge takes the request from the key's other limits, or says which one is exceeded.
func (x *exchange) charge() *openai.Error {
	hold, over, err := x.s.limits.Take(x.r.Context(), x.key, x.tokens)
	switch {
	case err != nil:
		x.s.log.Error("could not check the limits of a key", "key", x.key.ID, "key_name", x.key.Name, "error", err)
		return openai.StateUnavailable(time.Second)
	case over != nil:
		return limitError(over)
	}
	x.hold = hold
	return nil
}

func limitError(over *limit.Exceeded) *openai.Error {
	e := openai.RateLimited(over.RetryAfter, over.Message())
	if over.NoRetry {
		e.Code, e.NoRetry, e.RetryAfter = "insufficient_quota", true, 0 // what OpenAI calls it; waiting a minute does not help
	}
	return e
}

// settle replaces the estimate by what is booked.
func (x *exchange) settle(end *ending) {
	if u := end.terminal.Usage; u.Known {
		x.hold.Settle(u.Input + u.Output)
	} else {
		x.hold.Release()
	}
}

// costs reports whether a run of unknown usage counts as what was estimated: its provider may have worked on it. One
// that answered with an error, or could not be reached, did not, unless it gave up on a long answer.
func (x *exchange) costs(t *execution.Terminal) bool {
	return t.Phase >= phaseCharged && t.Code != execution.CodeProviderUnreachable &&
		(x.answer.status < http.StatusMultipleChoices || timedOut(x.answer.status, t.Timings.Provider))
}

// leastTimeout is the least that a provider works before it gives up. What says so earlier is an error like others.
const leastTimeout = 100 * time.Millisecond

// statusTimeout is how Cloudflare says 504.
const statusTimeout = 524

// timedOut reports whether a provider's error says that the answer took too long, as proxies and gateways before an engine do: a
// client that asks for long answers could otherwise have engines work for nothing, time and again.
func timedOut(status int, took time.Duration) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusGatewayTimeout, statusTimeout:
		return took >= leastTimeout
	}
	return false
}

// spent is what an attempt used that another one follows: what its provider said or showed, or the estimate where it ran out of
// time, which is the client's doing. Other failures are not.
func (x *exchange) spent(t *execution.Terminal) execution.Usage {
	if t.Usage.Known || t.Code == execution.CodeProviderTimeout || timedOut(x.answer.status, t.Timings.Provider) {
		return x.used(t)
	}
	return execution.Usage{}
}

// plus adds up the usage of two attempts.
func plus(a, b execution.Usage) execution.Usage {
	return execution.Usage{
		Input: a.Input + b.Input, Output: a.Output + b.Output, Cached: a.Cached + b.Cached, Reasoning: a.Reasoning + b.Reasoning,
		Known: a.Known || b.Known, Estimated: a.Estimated || b.Estimated,
	}
}

// limitHeaders says what is left of the key's limits.
func (x *exchange) limitHeaders(h http.Header) {
	if snapshot, ok := x.s.limits.Snapshot(x.key); ok {
		snapshot.Headers(h)
	}
}
