package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"iop/openai"
)

// maxAnswer bounds what is read of one answer that is not a stream.
const maxAnswer = 64 << 20

// result is what one request came to.
type result struct {
	kind    string // of failure; empty: it succeeded
	message string
	tokens  int64
	latency time.Duration
	ttft    time.Duration
	between histogram
}

func (r *result) fail(kind, format string, args ...any) {
	r.kind, r.message = kind, fmt.Sprintf(format, args...)
}

// requestBody is the same for all requests of a run.
func requestBody(cfg Config) []byte {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	type streamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	}
	body := struct {
		Model         string         `json:"model"`
		Messages      []message      `json:"messages"`
		MaxTokens     int            `json:"max_tokens,omitempty"`
		Stream        bool           `json:"stream,omitempty"`
		StreamOptions *streamOptions `json:"stream_options,omitempty"`
	}{
		Model:     cfg.Target.Model,
		Messages:  []message{{"user", cfg.Prompt}},
		MaxTokens: cfg.MaxTokens,
		Stream:    cfg.Stream,
	}
	if cfg.Stream {
		body.StreamOptions = &streamOptions{IncludeUsage: true}
	}
	data, err := json.Marshal(body)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return data
}

// request makes one request and fills r, which is zero.
func (l *load) request(ctx context.Context, r *result) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, l.cfg.Target.endpoint("/chat/completions"), bytes.NewReader(l.body))
	if err != nil {
		r.fail(KindConnect, "%v", err)
		return
	}
	request.Header.Set("Content-Type", "application/json")
	if l.cfg.Target.Key != "" {
		request.Header.Set("Authorization", "Bearer "+l.cfg.Target.Key)
	}
	begin := time.Now()
	response, err := l.client.Do(request)
	if err != nil {
		r.fail(KindConnect, "%v", err)
	} else {
		l.answer(response, begin, r)
		response.Body.Close()
	}
	r.latency = time.Since(begin)
	if r.ttft == 0 {
		r.ttft = r.latency
	}
	if r.kind != "" && ctx.Err() != nil {
		r.kind = KindUnfinished
	}
}

func (l *load) answer(response *http.Response, begin time.Time, r *result) {
	switch {
	case response.StatusCode != http.StatusOK:
		body, _ := io.ReadAll(io.LimitReader(response.Body, 4<<10)) // the status is the news
		r.fail(fmt.Sprintf("http_%d", response.StatusCode), "%s: %s", response.Status, errorMessage(body))
	case l.cfg.Stream:
		readStream(openai.NewEventReader(response.Body), begin, r)
	default:
		readWhole(response.Body, r)
	}
}

// chunk is what is read of an answer, or of one event of a stream.
type chunk struct {
	Choices []struct {
		Delta        content `json:"delta"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		CompletionTokens int64 `json:"completion_tokens"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// content is what counts as a token of a stream, under whichever name the engine sends it.
type content struct {
	Content          string            `json:"content"`
	Reasoning        string            `json:"reasoning"`
	ReasoningContent string            `json:"reasoning_content"`
	ToolCalls        []json.RawMessage `json:"tool_calls"`
}

func (c *chunk) hasContent() bool {
	for _, choice := range c.Choices {
		d := choice.Delta
		if d.Content != "" || d.Reasoning != "" || d.ReasoningContent != "" || len(d.ToolCalls) > 0 {
			return true
		}
	}
	return false
}

func (c *chunk) finished() bool {
	for _, choice := range c.Choices {
		if choice.FinishReason != nil {
			return true
		}
	}
	return false
}

// streamReader times the tokens of one stream.
type streamReader struct {
	r        *result
	begin    time.Time
	last     time.Time // of the last token
	chunks   int64     // with content
	usage    int64
	complete bool
}

func readStream(events *openai.EventReader, begin time.Time, r *result) {
	s := streamReader{r: r, begin: begin}
	for r.kind == "" {
		event, err := events.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			r.fail(KindBroken, "%v", err)
			return
		}
		if string(event.Data) == "[DONE]" {
			s.complete = true
			break
		}
		s.event(event.Data)
	}
	r.tokens = s.chunks
	if s.usage > 0 {
		r.tokens = s.usage
	}
	if r.kind == "" && !s.complete {
		r.fail(KindTruncated, "the stream ended without finish_reason and [DONE]")
	}
}

func (s *streamReader) event(data []byte) {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		s.r.fail(KindBadAnswer, "an event is no JSON: %v", err)
		return
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		s.r.fail(KindInBand, "%s", errorMessage(data))
		return
	}
	if c.Usage != nil {
		s.usage = c.Usage.CompletionTokens
	}
	s.complete = s.complete || c.finished()
	if !c.hasContent() {
		return
	}
	now := time.Now()
	if s.chunks == 0 {
		s.r.ttft = now.Sub(s.begin)
	} else {
		s.r.between.add(now.Sub(s.last))
	}
	s.last = now
	s.chunks++
}

func readWhole(body io.Reader, r *result) {
	data, err := io.ReadAll(io.LimitReader(body, maxAnswer))
	if err != nil {
		r.fail(KindBroken, "%v", err)
		return
	}
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		r.fail(KindBadAnswer, "the answer is no JSON: %v", err)
		return
	}
	if len(c.Choices) == 0 {
		r.fail(KindBadAnswer, "the answer has no choices")
		return
	}
	if c.Usage != nil {
		r.tokens = c.Usage.CompletionTokens
	}
}

// errorMessage is the message of an error object, or the beginning of what came instead.
func errorMessage(body []byte) string {
	var object struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &object) == nil && object.Error.Message != "" {
		return object.Error.Message
	}
	text := strings.TrimSpace(string(body))
	if len(text) > 200 {
		text = text[:200]
	}
	return text
}
