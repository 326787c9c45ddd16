package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

// matrixImage is a picture of one pixel.
const matrixImage = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"

// matrixGo is the official Go client as a driver of the matrix; it says what must be booked as the scripts do.
type matrixGo struct {
	*matrixWorld
	openai.Client
	books   []matrixBook
	failing int
}

func (w *matrixWorld) runGo(t *testing.T) []matrixBook {
	g := &matrixGo{matrixWorld: w, Client: goClient(w.URL+"/v1", w.Key, option.WithMaxRetries(0)), failing: w.FailingFrom}
	cases := []struct {
		name string
		run  func(t *testing.T, kind, session string)
	}{
		{"chat", g.chat}, {"chat_stream", g.chatStream}, {"chat_tools", g.chatTools}, {"chat_structured", g.chatStructured}, {"chat_image", g.chatImage},
		{"chat_reasoning", g.chatReasoning}, {"chat_abort", g.chatAbort}, {"chat_errors", g.chatErrors}, {"chat_broken", g.chatBroken},
		{"responses", g.responses}, {"responses_stream", g.responsesStream}, {"responses_tools", g.responsesTools}, {"responses_errors", g.responsesErrors},
	}
	for _, kind := range matrixKinds[:3] {
		for _, c := range cases {
			name := "openai-go/" + kind.name + "/" + c.name
			if strings.Contains(name, w.Only) {
				t.Run(name, func(t *testing.T) { c.run(t, kind.name, "go/"+name) })
			}
		}
	}
	return g.books
}

// book says what must be booked on the session: of Chat Completions unless its name says Responses.
func (g *matrixGo) book(kind, session, outcome string, runs int, tokens ...int64) {
	b := matrixBook{Session: session, Execution: "normalized", Outcome: outcome, Runs: runs}
	if kind == "openai" && !strings.Contains(session, "responses") {
		b.Execution = "raw"
	}
	if len(tokens) == 2 {
		b.Input, b.Output = &tokens[0], &tokens[1]
	}
	g.books = append(g.books, b)
}

func inSession(session string) option.RequestOption {
	return option.WithHeader("X-Session-Id", session)
}

func (g *matrixGo) broken(kind string) string {
	g.failing++
	return fmt.Sprintf("%s-failing-%d", kind, g.failing)
}

func matrixChat(kind, text string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: kind + "-model", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)}}
}

// ask answers one chat request, which must succeed.
func (g *matrixGo) ask(t *testing.T, session string, p openai.ChatCompletionNewParams) *openai.ChatCompletion {
	t.Helper()
	a, err := g.Chat.Completions.New(t.Context(), p, inSession(session))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (g *matrixGo) chat(t *testing.T, kind, session string) {
	a := g.ask(t, session, matrixChat(kind, "sim:tokens=5 hello there"))
	if a.Choices[0].Message.Content != "hello there t2 t3 t4" || a.Choices[0].FinishReason != "stop" {
		t.Errorf("%s", a.RawJSON())
	}
	g.book(kind, session, "completed", 1, a.Usage.PromptTokens, a.Usage.CompletionTokens)
}

func (g *matrixGo) chatStream(t *testing.T, kind, session string) {
	p := matrixChat(kind, "sim:tokens=9,text=mix hello there")
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	chunks, err := readAll(g.Chat.Completions.NewStreaming(t.Context(), p, inSession(session)))
	if err != nil || !strings.HasPrefix(chunkText(chunks, 0), "hello there ") {
		t.Fatalf("%v %q", err, chunkText(chunks, 0))
	}
	u := chunks[len(chunks)-1].Usage
	g.book(kind, session, "completed", 1, u.PromptTokens, u.CompletionTokens)
}

func (g *matrixGo) chatTools(t *testing.T, kind, session string) {
	p := matrixChat(kind, "ask get_weather")
	p.Tools = []openai.ChatCompletionToolUnionParam{
		openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "get_weather", Parameters: weatherSchema}),
	}
	var acc openai.ChatCompletionAccumulator
	chunks, err := readAll(g.Chat.Completions.NewStreaming(t.Context(), p, inSession(session)))
	if err != nil {
		t.Fatal(err)
	}
	for _, chunk := range chunks {
		acc.AddChunk(chunk)
	}
	calls := acc.Choices[0].Message.ToolCalls
	if len(calls) != 1 || calls[0].Function.Name != "get_weather" || !json.Valid([]byte(calls[0].Function.Arguments)) || acc.Choices[0].FinishReason != "tool_calls" {
		t.Fatalf("%+v", acc.Choices[0])
	}
	p.Messages = append(p.Messages, acc.Choices[0].Message.ToParam(), openai.ToolMessage("sunny", calls[0].ID))
	if a := g.ask(t, session, p); a.Choices[0].Message.Content == "" {
		t.Errorf("no answer after the tool's: %s", a.RawJSON())
	}
	g.book(kind, session, "completed", 2)
}

func (g *matrixGo) chatStructured(t *testing.T, kind, session string) {
	p := matrixChat(kind, "who")
	p.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{
		JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "person", Schema: personSchema, Strict: openai.Bool(true)},
	}
	var person struct{ Name, Age *any }
	if text := g.ask(t, session, p).Choices[0].Message.Content; json.Unmarshal([]byte(text), &person) != nil || person.Name == nil || person.Age == nil {
		t.Errorf("%s", text)
	}
	g.book(kind, session, "completed", 1)
}

func (g *matrixGo) chatImage(t *testing.T, kind, session string) {
	p := matrixChat(kind, "")
	p.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{
		openai.TextContentPart("look"), openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: matrixImage}),
	})}
	if a := g.ask(t, session, p); !strings.HasPrefix(a.Choices[0].Message.Content, "look") {
		t.Errorf("%s", a.RawJSON())
	}
	g.book(kind, session, "completed", 1)
}

func (g *matrixGo) chatReasoning(t *testing.T, kind, session string) {
	p := matrixChat(kind, "sim:tokens=3,reasoning=3 hello")
	p.ReasoningEffort = shared.ReasoningEffortLow
	a := g.ask(t, session, p)
	if m := a.Choices[0].Message; m.Content != "hello t1 t2" || !strings.Contains(m.RawJSON(), `"reasoning_content":"Let me think......"`) {
		t.Errorf("%s", m.RawJSON())
	}
	g.book(kind, session, "completed", 1, a.Usage.PromptTokens, a.Usage.CompletionTokens)
}

func (g *matrixGo) chatAbort(t *testing.T, kind, session string) {
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	s := g.Chat.Completions.NewStreaming(ctx, matrixChat(kind, "sim:tokens=100000,itl=20ms "+session+" leaves"), inSession(session))
	if !s.Next() {
		t.Fatal(s.Err())
	}
	leave()
	s.Close()
	sim := &simulator{url: g.Sims[kind]}
	eventually(t, patience, "the provider was left", func() bool { return sim.sdkSeen(t, session+" leaves")[0].State == "cancelled" })
	g.book(kind, session, "cancelled", 1)
}

// fails checks that err is the API's, with the status and words in the message, the parameter or the code.
func (g *matrixGo) fails(t *testing.T, err error, status int, words string) *openai.Error {
	t.Helper()
	var e *openai.Error
	if !errors.As(err, &e) || e.StatusCode != status || !strings.Contains(e.Message+e.Param+e.Code, words) {
		t.Fatalf("%v, not status %d with %q", err, status, words)
	}
	return e
}

func (g *matrixGo) chatErrors(t *testing.T, kind, session string) {
	ask := func(model, knobs string, more ...option.RequestOption) error {
		_, err := g.Chat.Completions.New(t.Context(), goChatFor(model, knobs+" hello", ""), append(more, inSession(session))...)
		return err
	}
	g.fails(t, ask(kind+"-model", "", option.WithAPIKey(g.WrongKey)), 401, "key")
	g.fails(t, ask("nobody-has", ""), 404, "nobody-has")
	g.fails(t, ask(g.broken(kind), "sim:overflow"), 400, "context")
	slow := option.WithAPIKey(g.SlowKey)
	e := g.fails(t, cmp.Or(ask(kind+"-model", "", slow), ask(kind+"-model", "", slow)), 429, "")
	if wait, err := strconv.Atoi(e.Response.Header.Get("Retry-After")); err != nil || wait < 1 || wait > 60 {
		t.Errorf("%v", e.Response.Header)
	}
	if kind == "openai" {
		return
	}
	p := matrixChat(kind, "hello")
	p.LogitBias = map[string]int64{"1": 5}
	_, err := g.Chat.Completions.New(t.Context(), p)
	if e := g.fails(t, err, 400, "logit_bias"); e.Param != "logit_bias" {
		t.Errorf("param %q", e.Param)
	}
}

func (g *matrixGo) chatBroken(t *testing.T, kind, session string) {
	for i, knob := range []string{"die=4", "error_event_mid=4", "midclose=4"} {
		_, err := readAll(g.Chat.Completions.NewStreaming(t.Context(), goChatFor(g.broken(kind), "sim:tokens=9,"+knob+" hello", ""), inSession(session+knob)))
		if err == nil {
			t.Errorf("%s: half an answer for a whole one", knob)
		}
		g.book(kind, session+[]string{"die=4", "error_event_mid=4", "midclose=4"}[i], "failed", 1)
	}
}

func matrixResponse(kind, text string) responses.ResponseNewParams {
	return responses.ResponseNewParams{Model: kind + "-model", Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(text)}}
}

func (g *matrixGo) responses(t *testing.T, kind, session string) {
	a, err := g.Responses.New(t.Context(), matrixResponse(kind, "sim:tokens=4 hello there"), inSession(session))
	if err != nil || a.OutputText() != "hello there t2 t3" || a.Status != "completed" {
		t.Fatalf("%v %+v", err, a)
	}
	g.book(kind, session, "completed", 1, a.Usage.InputTokens, a.Usage.OutputTokens)
}

func (g *matrixGo) responsesStream(t *testing.T, kind, session string) {
	p := matrixResponse(kind, "sim:tokens=4,reasoning=2 hello there")
	p.Reasoning = shared.ReasoningParam{Effort: shared.ReasoningEffortLow, Summary: shared.ReasoningSummaryAuto}
	events, err := readAll(g.Responses.NewStreaming(t.Context(), p, inSession(session)))
	if err != nil {
		t.Fatal(err)
	}
	var text, thought string
	for i, e := range events {
		if e.SequenceNumber != int64(i) {
			t.Errorf("sequence_number %d at place %d", e.SequenceNumber, i)
		}
		switch e.Type {
		case "response.output_text.delta":
			text += e.Delta
		case "response.reasoning_summary_text.delta":
			thought += e.Delta
		}
	}
	last := events[len(events)-1]
	if text != "hello there t2 t3" || thought != "Let me think..." || last.Type != "response.completed" || last.Response.OutputText() != text {
		t.Errorf("%q %q %s", thought, text, last.RawJSON())
	}
	g.book(kind, session, "completed", 1, last.Response.Usage.InputTokens, last.Response.Usage.OutputTokens)
}

func (g *matrixGo) responsesTools(t *testing.T, kind, session string) {
	p := matrixResponse(kind, "ask get_weather")
	p.Tools = []responses.ToolUnionParam{responses.ToolParamOfFunction("get_weather", weatherSchema, true)}
	a, err := g.Responses.New(t.Context(), p, inSession(session))
	if err != nil || len(a.Output) != 1 || a.Output[0].Name != "get_weather" {
		t.Fatalf("%v %+v", err, a)
	}
	call := a.Output[0].AsFunctionCall()
	p.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{
		responses.ResponseInputItemParamOfMessage("ask get_weather", responses.EasyInputMessageRoleUser),
		responses.ResponseInputItemParamOfFunctionCall(call.Arguments, call.CallID, call.Name),
		{OfFunctionCallOutput: &responses.ResponseInputItemFunctionCallOutputParam{
			CallID: openai.String(call.CallID), Output: responses.ResponseInputItemFunctionCallOutputOutputUnionParam{OfString: openai.String("sunny")},
		}},
	}}
	b, err := g.Responses.New(t.Context(), p, inSession(session))
	if err != nil || b.OutputText() == "" {
		t.Fatalf("%v %+v", err, b)
	}
	g.book(kind, session, "completed", 2)
}

func (g *matrixGo) responsesErrors(t *testing.T, kind, session string) {
	p := matrixResponse(kind, "hello")
	p.PreviousResponseID = openai.String("resp_1")
	_, err := g.Responses.New(t.Context(), p)
	if e := g.fails(t, err, 400, "previous_response_id"); e.Param != "previous_response_id" {
		t.Errorf("param %q", e.Param)
	}
	p = matrixResponse(kind, "sim:tokens=9,die=4 hello")
	p.Model = g.broken(kind)
	events, err := readAll(g.Responses.NewStreaming(t.Context(), p, inSession(session)))
	if err == nil && events[len(events)-1].Type != "response.failed" {
		t.Errorf("half an answer for a whole one: %s", events[len(events)-1].RawJSON())
	}
	g.book(kind, session, "failed", 1)
}
