package openai

import (
	"strings"
	"testing"
)

// TestContextOverflow has a long prompt refused in the words of each engine: every family's clients learn what they look for.
func TestContextOverflow(t *testing.T) {
	for _, body := range []string{
		`{"error":{"message":"This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`,
		`{"error":{"message":"This model's maximum context length is 8192 tokens.","type":"BadRequestError","param":null,"code":400}}`,
		`{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error"}}`,
		`{"error":"the input length exceeds the context length"}`,
		`{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9000 tokens > 8192 maximum"}}`,
	} {
		f := ReadFailure(400, []byte(body))
		if f.Code != "context_length_exceeded" {
			t.Errorf("%s: code %q", body, f.Code)
		}
		e := &Error{Status: 400, Type: f.Type, Code: f.Code, Message: f.Message}
		told := string(AppendError(nil, FamilyAnthropic, "req_1", e))
		if strings.Count(told, "prompt is too long") != 1 {
			t.Errorf("%s: Anthropic's clients are told %s", body, told)
		}
	}
	for status, message := range map[int]string{400: "no such parameter: context_size", 500: "maximum context length", 429: "context window"} {
		if f := ReadFailure(status, []byte(`{"error":"`+message+`"}`)); f.Code == "context_length_exceeded" {
			t.Errorf("%d %s is taken for a long prompt", status, message)
		}
	}
}
