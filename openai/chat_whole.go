package openai

import (
	"encoding/json"
	"strconv"
	"strings"

	"iop/execution"
)

// Whole implements Renderer.
func (r *chatRenderer) Whole(dst []byte, result *execution.Result) ([]byte, *Error) {
	if err := checkWhole(result); err != nil {
		return dst, err
	}
	dst = r.identity(append(dst, '{'), "chat.completion")
	dst = append(dst, `,"choices":[`...)
	for i := range result.Choices {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = r.wholeChoice(dst, i, &result.Choices[i])
	}
	dst = append(dst, ']')
	if result.Usage.Known {
		dst = appendChatUsage(append(dst, `,"usage":`...), result.Usage)
	}
	return append(dst, '}'), nil
}

// checkWhole checks that each choice of an answer came to its end.
func checkWhole(result *execution.Result) *Error {
	if result.Failure != nil {
		return ProviderFailed("")
	}
	if len(result.Choices) == 0 {
		return ProviderTruncated()
	}
	for i := range result.Choices {
		if result.Choices[i].Finish.Reason == "" {
			return ProviderTruncated()
		}
	}
	return nil
}

func (r *chatRenderer) wholeChoice(dst []byte, index int, c *execution.Choice) []byte {
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(index), 10)
	dst = append(dst, `,"message":{"role":"assistant","content":`...)
	if c.Text == "" && (len(c.ToolCalls) > 0 || c.Refusal != "") {
		dst = append(dst, `null`...)
	} else {
		dst = appendString(dst, c.Text)
	}
	dst = append(dst, `,"refusal":`...)
	dst = appendStringOrNull(dst, c.Refusal)
	dst = r.wholeExtras(dst, index, c)
	dst = append(dst, `},"logprobs":`...)
	dst = wholeLogprobs(dst, c)
	dst = append(dst, `,"finish_reason":"`...)
	dst = append(dst, chatReason(c.Finish.Reason)...)
	return append(dst, `"}`...)
}

// wholeExtras appends the members of a message that few answers have.
func (r *chatRenderer) wholeExtras(dst []byte, index int, c *execution.Choice) []byte {
	if thought := reasoningOf(c); thought != "" {
		dst = appendString(append(dst, `,"reasoning_content":`...), thought)
	}
	dst = append(dst, `,"annotations":[`...)
	dst = appendValues(dst, c.Annotations)
	dst = append(dst, ']')
	for i, call := range c.ToolCalls {
		if i == 0 {
			dst = append(dst, `,"tool_calls":[`...)
		} else {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"id":`...)
		dst = appendString(dst, callID(r.spec.ID, index, &execution.ToolCallDelta{Index: i, ID: call.ID}))
		dst = append(dst, `,"type":"function","function":{"name":`...)
		dst = appendString(dst, call.Name)
		dst = append(dst, `,"arguments":`...)
		dst = append(appendString(dst, call.Arguments), `}}`...)
	}
	if len(c.ToolCalls) > 0 {
		dst = append(dst, ']')
	}
	return dst
}

// reasoningOf is what the model thought, of what may be told.
func reasoningOf(c *execution.Choice) string {
	var text strings.Builder
	for i := range c.Reasoning {
		text.WriteString(c.Reasoning[i].Text)
	}
	return text.String()
}

// appendValues appends the well-formed ones of some JSON values, with commas between them.
func appendValues(dst []byte, values []json.RawMessage) []byte {
	first := true
	for _, v := range values {
		if !wellFormed(v) {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		dst, first = appendValue(dst, v), false
	}
	return dst
}

func wholeLogprobs(dst []byte, c *execution.Choice) []byte {
	if len(c.Logprobs) == 0 {
		return append(dst, `null`...)
	}
	all := []byte{'['}
	for _, piece := range c.Logprobs {
		all = joinArray(all, piece)
	}
	return appendChatLogprobs(dst, append(all, ']'), c.Text == "" && c.Refusal != "")
}

// joinArray appends an array's elements to an array that is still open.
func joinArray(dst []byte, array json.RawMessage) []byte {
	for e := arrayElements(array); e.next(); {
		if dst[len(dst)-1] != '[' {
			dst = append(dst, ',')
		}
		dst = appendValue(dst, e.val)
	}
	return dst
}
