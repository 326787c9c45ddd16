package adapter

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"iop/execution"
)

// Refuse returns the error of an input that the protocol can't carry.
func Refuse(param execution.Param, detail string) *execution.UnsupportedError {
	return &execution.UnsupportedError{Param: param, Detail: detail}
}

// Encode writes a request's document. Its parts are what an adapter made, and raw JSON of the client's.
func Encode(document any) ([]byte, *execution.UnsupportedError) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(document); err != nil {
		return nil, Refuse(execution.ParamMessages, "The request can't be written as JSON: "+err.Error())
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Extension returns the input's extension for one adapter. It refuses those of others, and members that are not known.
func Extension(in *execution.Input, name string, known func(member string) bool) (execution.Extension, *execution.UnsupportedError) {
	for _, other := range slices.Sorted(maps.Keys(in.Extensions)) {
		for _, member := range slices.Sorted(maps.Keys(in.Extensions[other])) {
			if other != name || !known(member) {
				return nil, Refuse(execution.Param(member), fmt.Sprintf("The model's provider uses the %s protocol, which does not have this parameter.", name))
			}
		}
	}
	return in.Extensions[name], nil
}

// EffortOf returns how much thinking is asked for: none, minimal, low, medium, high or xhigh; empty where the client left
// it to the model. What is asked for as a budget or as a plain yes becomes an effort: up to 1,024 tokens are minimal, 4,096 low, 16,384
// medium and more is high; a yes is medium.
func EffortOf(r *execution.Reasoning) string {
	switch {
	case r == nil:
		return ""
	case r.Enabled != nil && !*r.Enabled:
		return "none"
	case r.Effort != "":
		return r.Effort
	case r.Budget != nil:
		return effortOfBudget(*r.Budget)
	case r.Enabled != nil:
		return "medium"
	}
	return ""
}

func effortOfBudget(tokens int64) string {
	switch {
	case tokens <= 0:
		return "none"
	case tokens <= 1024:
		return "minimal"
	case tokens <= 4096:
		return "low"
	case tokens <= 16384:
		return "medium"
	}
	return "high"
}

// BudgetOf returns the tokens that an effort stands for, 0 for none; ok is false for an effort that is not in the list.
func BudgetOf(effort string) (tokens int64, ok bool) {
	tokens, ok = map[string]int64{"none": 0, "minimal": 1024, "low": 4096, "medium": 16384, "high": 24576, "xhigh": 32768}[effort]
	return tokens, ok
}

// NewCallID returns an id for a tool call of a provider that gives none. It is unique, so that a conversation may hold
// calls of many runs.
func NewCallID() string {
	var b [12]byte
	rand.Read(b[:]) // never fails
	return "call_" + hex.EncodeToString(b[:])
}

// Asks reports whether a number that may be absent asks for something: what is the protocol's own default does not.
func Asks(value *float64, meaningless float64) bool { return value != nil && *value != meaningless }
