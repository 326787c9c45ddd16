package conformance

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
)

// replay answers every request with one of the golden files.
type replay struct{ file string }

func (r replay) RoundTrip(req *http.Request) (*http.Response, error) {
	data, err := os.ReadFile(filepath.Join("..", "testdata", "rendered", r.file))
	if err != nil {
		return nil, err
	}
	contentType := "application/json"
	if strings.HasSuffix(r.file, ".sse") {
		contentType = "text/event-stream; charset=utf-8"
	}
	return &http.Response{
		StatusCode: http.StatusOK, Request: req, Header: http.Header{"Content-Type": {contentType}},
		Body: io.NopCloser(bytes.NewReader(data)),
	}, nil
}

func client(file string) openai.Client {
	return openai.NewClient(option.WithBaseURL("http://edge.invalid/v1"), option.WithAPIKey("k"), option.WithMaxRetries(0),
		option.WithHTTPClient(&http.Client{Transport: replay{file}}))
}

// names are the golden answers that came to their end.
var names = []string{"text", "empty", "calls", "calls_at_once", "reasoning", "refusal", "annotated", "choices"}

func TestChat(t *testing.T) {
	for _, name := range names {
		c := client("chat_" + name + ".json")
		whole, err := c.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c = client("chat_" + name + ".sse")
		stream := c.Chat.Completions.NewStreaming(t.Context(), openai.ChatCompletionNewParams{})
		var acc openai.ChatCompletionAccumulator
		for stream.Next() {
			if chunk := stream.Current(); !acc.AddChunk(chunk) || chunk.ID != whole.ID || !chunk.JSON.Created.Valid() {
				t.Fatalf("%s: a chunk that does not fit: %s", name, chunk.RawJSON())
			}
		}
		if stream.Err() != nil || len(acc.Choices) != len(whole.Choices) {
			t.Fatalf("%s: %v, %d choices", name, stream.Err(), len(acc.Choices))
		}
		for i, want := range whole.Choices {
			got := acc.Choices[i]
			if got.Message.Content != want.Message.Content || got.Message.Refusal != want.Message.Refusal || got.FinishReason != want.FinishReason ||
				len(got.Message.ToolCalls) != len(want.Message.ToolCalls) {
				t.Errorf("%s, choice %d: the stream says %+v, the whole %+v", name, i, got, want)
			}
			for k, call := range want.Message.ToolCalls {
				if g := got.Message.ToolCalls[k]; g.ID != call.ID || g.Function.Name != call.Function.Name || g.Function.Arguments != call.Function.Arguments {
					t.Errorf("%s: call %+v, want %+v", name, g, call)
				}
			}
		}
	}
}

func TestResponses(t *testing.T) {
	for _, name := range names {
		c := client("responses_" + name + ".json")
		whole, err := c.Responses.New(t.Context(), responses.ResponseNewParams{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c = client("responses_" + name + ".sse")
		stream := c.Responses.NewStreaming(t.Context(), responses.ResponseNewParams{})
		var final responses.Response
		text := ""
		for stream.Next() {
			switch e := stream.Current().AsAny().(type) {
			case responses.ResponseTextDeltaEvent:
				text += e.Delta
			case responses.ResponseCompletedEvent:
				final = e.Response
			case responses.ResponseIncompleteEvent:
				final = e.Response
			case nil:
				t.Errorf("%s: an event that the client does not know: %s", name, stream.Current().RawJSON())
			}
		}
		if stream.Err() != nil || final.ID != whole.ID || final.Status != whole.Status || final.OutputText() != text || whole.OutputText() != text {
			t.Errorf("%s: %v: %q, %s", name, stream.Err(), text, final.RawJSON())
		}
		if final.Usage.InputTokensDetails.CachedTokens != 4 || final.Usage.OutputTokensDetails.ReasoningTokens != 2 || whole.Usage.TotalTokens != 15 {
			t.Errorf("%s: usage %s", name, final.Usage.RawJSON())
		}
	}
}

// TestFailed: half an answer raises an error, in both protocols.
func TestFailed(t *testing.T) {
	c := client("chat_failed.sse")
	chat := c.Chat.Completions.NewStreaming(t.Context(), openai.ChatCompletionNewParams{})
	for chat.Next() {
	}
	if chat.Err() == nil || !strings.Contains(chat.Err().Error(), "before it was complete") {
		t.Error(chat.Err())
	}
	c = client("responses_failed.sse")
	stream := c.Responses.NewStreaming(t.Context(), responses.ResponseNewParams{})
	failed := false
	for stream.Next() {
		_, isError := stream.Current().AsAny().(responses.ResponseErrorEvent)
		failed = failed || isError
	}
	if stream.Err() == nil && !failed {
		t.Error("no error")
	}
}
