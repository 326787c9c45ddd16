package openai

import (
	"fmt"
	"math"
)

// lengthNames are the names of the answer's length: OpenAI's, and those that engines, and gateways on their behalf, take
// on the same paths. llama.cpp's n_predict goes before max_tokens there: left alone it would undo a cap.
var lengthNames = [...]string{
	MaxTokensParameter, completionLength, "max_output_tokens", "n_predict", optionLength, "max_new_tokens",
	"max_tokens_to_sample", "max_gen_len", "max_length", "tokens_to_generate",
}

// completionLength is the newer name of max_tokens in chat, which OpenAI's reasoning models insist on and which Ollama, LM
// Studio and others pass over.
const completionLength = "max_completion_tokens"

const (
	// maxCount is what a request may count up to here, so that the product of two counts is still a number. No model comes
	// near it.
	maxCount = 1 << 40
	// maxChoices is likewise for the number of answers.
	maxChoices = 1 << 20
	// noBound is a length that bounds nothing: -1 means "no limit" to engines, 0 does to some.
	noBound = -1
)

// takeCount reads how many answers are asked for.
func (p *envelopeParser) takeCount(f field, raw []byte) *Error {
	if raw[0] == 'n' {
		return nil
	}
	v, ok := number(raw)
	if !ok || v < 0 || v != math.Trunc(v) {
		return InvalidRequest(f.String(), fmt.Sprintf("%s must be a whole number", f))
	}
	p.e.Choices = max(p.e.Choices, int64(min(v, maxChoices)))
	return nil
}

// takeLength reads a length of the answer. What is no number is refused: some readers take "5" and true for one. What
// bounds nothing is the provider's to refuse, unless a route has a cap.
func takeLength(name string, raw []byte, n *int64) *Error {
	if raw[0] == 'n' {
		return nil
	}
	v, ok := number(raw)
	if !ok {
		return InvalidRequest(name, fmt.Sprintf("%s must be a number", name))
	}
	*n = noBound
	if isLength(v) {
		*n = int64(min(v, maxCount))
	}
	return nil
}

// isLength reports whether a number is a length in tokens.
func isLength(v float64) bool { return v >= 1 && (v == math.Trunc(v) || math.IsInf(v, 1)) }

func (p *envelopeParser) takeOptionLength(exact bool, at span) *Error {
	if err := onlyOnce(optionsLength, exact, p.optionSeen); err != nil {
		return err
	}
	p.optionSeen = true
	p.e.optionAt = at
	return takeLength(optionsLength, p.b[at.start:at.end], &p.e.optionLength)
}

// Length is what is known of the answers' length before they are there.
type Length struct {
	// Tokens is the greatest length of one answer that the request names, 0 if it names none.
	Tokens int64
	// Bounded reports whether each provider that may run the request takes one of the named for a bound.
	Bounded bool
	// Choices is how many answers each prompt gets, at least 1.
	Choices int64
}

// Length returns how long an answer may become for an operation, with what a route does to it. Where a request names several
// lengths it depends on the provider which one counts: it is the greatest.
func (e *Envelope) Length(op OpID, defaults []ParameterDefault, caps []ParameterCap) Length {
	operation, _ := op.Operation()
	l := e.named(operation)
	l.Choices = e.choices(defaults, caps)
	if operation.MaxTokens == "" && !operation.Options {
		return l
	}
	if !e.hasLength(operation) {
		for _, d := range defaults {
			if v, ok := number([]byte(d.Value)); ok && ParameterIsLength(d.Name) && isLength(v) {
				l.Tokens, l.Bounded = max(l.Tokens, int64(min(v, maxCount))), true
			}
		}
	}
	for _, c := range caps {
		if most := int64(min(c.Max, maxCount)); ParameterIsLength(c.Name) && (!l.Bounded || l.Tokens > most) {
			l.Tokens, l.Bounded = most, true
		}
	}
	return l
}

// choices is the number of answers to each prompt, with what a route does to it.
func (e *Envelope) choices(defaults []ParameterDefault, caps []ParameterCap) int64 {
	n := max(e.Choices, 1)
	for _, d := range defaults {
		if v, ok := number([]byte(d.Value)); ok && n == 1 && (ParameterIsChoices(d.Name) || d.Name == fieldBestOf.String()) {
			n = int64(max(min(v, maxChoices), 1))
		}
	}
	for _, c := range caps {
		if c.Name == ChoicesParameter {
			n = min(n, int64(min(max(c.Max, 1), maxChoices)))
		}
	}
	return n
}

// named is what the client's request says.
func (e *Envelope) named(op Operation) (l Length) {
	l.Tokens = max(e.optionLength, 0)
	l.Bounded = op.Options && e.optionLength > 0
	unbounded := e.optionLength == noBound
	for i, n := range e.lengths {
		l.Tokens = max(l.Tokens, n)
		unbounded = unbounded || n == noBound
		l.Bounded = l.Bounded || n > 0 && !op.Options && op.knowsLength(lengthNames[i])
	}
	l.Bounded = l.Bounded && !unbounded
	return l
}

// hasLength reports whether the client gave a length that the operation knows, of whatever value.
func (e *Envelope) hasLength(op Operation) bool {
	if op.Options {
		return e.optionLength != 0
	}
	for i, n := range e.lengths {
		if n != 0 && op.knowsLength(lengthNames[i]) {
			return true
		}
	}
	return false
}

// knowsLength reports whether a name of the answer's length means something to the operation.
func (o Operation) knowsLength(name string) bool {
	return name == o.MaxTokens || name == completionLength && o.ID == OpChatCompletions
}
