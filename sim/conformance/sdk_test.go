package conformance

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"image/png"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
	"go.uber.org/goleak"

	"iop/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Numbers of the simulator that its answers show.
const (
	imageSide    = 32
	reasonTokens = 4
	sampleRate   = 24000
)

// start runs a simulator until the test ends and returns the SDK's client for it.
func start(t *testing.T) openai.Client {
	t.Helper()
	c := sim.DefaultConfig()
	c.Listen = "127.0.0.1:0"
	c.Models = append(c.Models, "sim-reason")
	s, err := sim.New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return openai.NewClient(
		option.WithBaseURL(s.URL()+"/v1"), option.WithAPIKey("k"), option.WithMaxRetries(0),
		option.WithHTTPClient(&http.Client{Transport: transport}),
	)
}

// tone is a WAV file of one second with something in it.
func tone(t *testing.T, c openai.Client) []byte {
	t.Helper()
	resp, err := c.Audio.Speech.New(t.Context(), openai.AudioSpeechNewParams{
		Model: "sim-audio", Input: strings.Repeat("abc", 20), Voice: openai.AudioSpeechNewParamsVoiceUnion{OfString: openai.String("alloy")},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || len(b) != 44+2*sampleRate {
		t.Fatalf("%v, %d bytes", err, len(b))
	}
	return b
}

func chatParams(text, knobs string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: "sim-reason", User: openai.String("sim:" + knobs),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)},
	}
}

func weatherTool() openai.ChatCompletionToolUnionParam {
	return openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "get_weather", Parameters: shared.FunctionParameters{
		"type": "object", "required": []string{"city", "unit"},
		"properties": map[string]any{"city": map[string]any{"type": "string"}, "unit": map[string]any{"enum": []string{"celsius", "kelvin"}}},
	}})
}

func TestSDKChat(t *testing.T) {
	c := start(t)
	p := chatParams("hello 你好", "tokens=5,text=emoji")
	p.N = openai.Int(2)
	a, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	const want = "hello 你好🏳️‍🌈🇩🇪👍🏽"
	if len(a.Choices) != 2 || a.Choices[1].Index != 1 || a.Choices[1].Message.Content != want || a.Choices[0].FinishReason != "stop" {
		t.Errorf("%+v", a.Choices)
	}
	if u := a.Usage; u.CompletionTokens != 2*(5+reasonTokens) || u.CompletionTokensDetails.ReasoningTokens != 2*reasonTokens || u.TotalTokens != u.PromptTokens+u.CompletionTokens {
		t.Errorf("usage %+v", u)
	}
	p.MaxCompletionTokens = openai.Int(3)
	if a, err = c.Chat.Completions.New(t.Context(), p); err != nil || a.Choices[0].FinishReason != "length" {
		t.Errorf("%v %+v", err, a)
	}
}

func TestSDKChatStream(t *testing.T) {
	c := start(t)
	p := chatParams("hello \"world\"\n", "tokens=20,text=mix")
	p.N = openai.Int(2)
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	s := c.Chat.Completions.NewStreaming(t.Context(), p)
	var acc openai.ChatCompletionAccumulator
	reasoning := 0
	var ids []string
	for s.Next() {
		chunk := s.Current()
		if !acc.AddChunk(chunk) {
			t.Fatalf("a chunk that does not fit: %s", chunk.RawJSON())
		}
		if !slices.Contains(ids, chunk.ID) {
			ids = append(ids, chunk.ID)
		}
		if strings.Contains(chunk.RawJSON(), "reasoning_content") {
			reasoning++
		}
		if last := len(chunk.Choices) == 0; last != chunk.JSON.Usage.Valid() {
			t.Errorf("usage in the wrong chunk: %s", chunk.RawJSON())
		}
	}
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	if reasoning != 2*reasonTokens || len(ids) != 1 || acc.Usage.CompletionTokens != 48 {
		t.Errorf("reasoning %d, ids %v, usage %+v", reasoning, ids, acc.Usage)
	}
	p.StreamOptions = openai.ChatCompletionStreamOptionsParam{}
	a, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	for i, choice := range acc.Choices {
		if choice.Message.Content != a.Choices[0].Message.Content || choice.FinishReason != "stop" {
			t.Errorf("choice %d streamed %q, whole %q", i, choice.Message.Content, a.Choices[0].Message.Content)
		}
	}
}

func TestSDKTools(t *testing.T) {
	c := start(t)
	p := chatParams("call get_weather", "")
	p.Tools = []openai.ChatCompletionToolUnionParam{weatherTool()}
	a, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	m := a.Choices[0].Message
	if len(m.ToolCalls) != 1 || a.Choices[0].FinishReason != "tool_calls" {
		t.Fatalf("%s", a.RawJSON())
	}
	var args struct{ City, Unit string }
	if err := json.Unmarshal([]byte(m.ToolCalls[0].Function.Arguments), &args); err != nil || args.City == "" || args.Unit != "celsius" {
		t.Errorf("%v %+v", err, args)
	}

	s := c.Chat.Completions.NewStreaming(t.Context(), p)
	var acc openai.ChatCompletionAccumulator
	for s.Next() {
		acc.AddChunk(s.Current())
	}
	if s.Err() != nil || len(acc.Choices) != 1 || len(acc.Choices[0].Message.ToolCalls) != 1 {
		t.Fatalf("%v %+v", s.Err(), acc.Choices)
	}
	if call := acc.Choices[0].Message.ToolCalls[0]; call.Function.Name != "get_weather" || call.Function.Arguments != m.ToolCalls[0].Function.Arguments || call.ID == "" {
		t.Errorf("%+v", call)
	}

	p.Messages = append(p.Messages, m.ToParam(), openai.ToolMessage("sunny", m.ToolCalls[0].ID))
	if a, err = c.Chat.Completions.New(t.Context(), p); err != nil || a.Choices[0].Message.Content == "" {
		t.Errorf("after the tool's answer: %v %s", err, a.RawJSON())
	}
}

func TestSDKStructuredOutput(t *testing.T) {
	c := start(t)
	p := chatParams("hello", "")
	p.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{
		Name: "person", Schema: map[string]any{
			"type": "object", "required": []string{"name", "age"},
			"properties": map[string]any{"name": map[string]any{"type": "string"}, "age": map[string]any{"type": "integer", "minimum": 18}},
		},
	}}
	a, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	var person struct {
		Name string
		Age  int
	}
	if err := json.Unmarshal([]byte(a.Choices[0].Message.Content), &person); err != nil || person.Name == "" || person.Age < 18 {
		t.Errorf("%v %s", err, a.Choices[0].Message.Content)
	}
}

func TestSDKErrors(t *testing.T) {
	c := start(t)
	p := chatParams("hello", "")
	p.Model = "nobody"
	_, err := c.Chat.Completions.New(t.Context(), p)
	if e, ok := errors.AsType[*openai.Error](err); !ok || e.StatusCode != 404 || e.Code != "model_not_found" {
		t.Errorf("%v", err)
	}
	s := c.Chat.Completions.NewStreaming(t.Context(), chatParams("hello", "error_event_mid"))
	n := 0
	for s.Next() {
		n++
	}
	if s.Err() == nil || n == 0 {
		t.Errorf("%d chunks, then %v", n, s.Err())
	}
}

func TestSDKCompletions(t *testing.T) {
	c := start(t)
	p := openai.CompletionNewParams{Model: "sim-small", Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfStrings: []string{"a", "b c"}}}
	a, err := c.Completions.New(t.Context(), p)
	if err != nil || len(a.Choices) != 2 || !strings.HasPrefix(a.Choices[1].Text, "b c t2") {
		t.Fatalf("%v %+v", err, a)
	}
	s := c.Completions.NewStreaming(t.Context(), p)
	text := ""
	for s.Next() {
		for _, choice := range s.Current().Choices {
			if choice.Index == 1 {
				text += choice.Text
			}
		}
	}
	if s.Err() != nil || text != a.Choices[1].Text {
		t.Errorf("%v %q", s.Err(), text)
	}
}

func TestSDKEmbeddings(t *testing.T) {
	c := start(t)
	p := openai.EmbeddingNewParams{Model: "sim-embed", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", "b", "a"}}, Dimensions: openai.Int(8)}
	a, err := c.Embeddings.New(t.Context(), p)
	if err != nil || len(a.Data) != 3 || len(a.Data[0].Embedding) != 8 {
		t.Fatalf("%v %+v", err, a)
	}
	if !slices.Equal(a.Data[0].Embedding, a.Data[2].Embedding) || slices.Equal(a.Data[0].Embedding, a.Data[1].Embedding) {
		t.Error("vectors do not follow their texts")
	}
	p.Input = openai.EmbeddingNewParamsInputUnion{OfArrayOfTokens: []int64{1<<24 | 'a'<<16}}
	b, err := c.Embeddings.New(t.Context(), p)
	if err != nil || !slices.Equal(b.Data[0].Embedding, a.Data[0].Embedding) {
		t.Errorf("by tokens: %v", err)
	}
}

func TestSDKModelsAndModeration(t *testing.T) {
	c := start(t)
	page, err := c.Models.List(t.Context())
	if err != nil || len(page.Data) != 6 || page.Data[0].ID != "sim-small" {
		t.Fatalf("%v %+v", err, page)
	}
	if m, err := c.Models.Get(t.Context(), "sim-large"); err != nil || m.ID != "sim-large" {
		t.Errorf("%v %+v", err, m)
	}
	if _, err := c.Models.Get(t.Context(), "nobody"); err == nil {
		t.Error("an unknown model is there")
	}
	m, err := c.Moderations.New(t.Context(), openai.ModerationNewParams{Input: openai.ModerationNewParamsInputUnion{OfStringArray: []string{"fine", "flag this"}}})
	if err != nil || m.Results[0].Flagged || !m.Results[1].Flagged || !m.Results[1].Categories.Violence {
		t.Errorf("%v %+v", err, m)
	}
}

// checkPNG decodes one image and returns its file.
func checkPNG(t *testing.T, b64 string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(b64)
	if err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(b))
	if err != nil || img.Bounds().Dx() != imageSide {
		t.Errorf("no image: %v", err)
	}
	return b
}

func TestSDKImages(t *testing.T) {
	c := start(t)
	a, err := c.Images.Generate(t.Context(), openai.ImageGenerateParams{Model: "sim-image", Prompt: "a cat", N: openai.Int(2)})
	if err != nil || len(a.Data) != 2 || a.Data[0].B64JSON == a.Data[1].B64JSON {
		t.Fatalf("%v %+v", err, a)
	}
	raw := checkPNG(t, a.Data[1].B64JSON)

	s := c.Images.GenerateStreaming(t.Context(), openai.ImageGenerateParams{Model: "sim-image", Prompt: "a cat", PartialImages: openai.Int(2)})
	var kinds []string
	for s.Next() {
		kinds = append(kinds, s.Current().Type)
		checkPNG(t, s.Current().B64JSON)
	}
	if want := []string{"image_generation.partial_image", "image_generation.partial_image", "image_generation.completed"}; s.Err() != nil || !slices.Equal(kinds, want) {
		t.Errorf("%v %v", s.Err(), kinds)
	}

	e, err := c.Images.Edit(t.Context(), openai.ImageEditParams{
		Model: "sim-image", Prompt: "a dog", SafetyIdentifier: openai.String("sim:ttft=1ms"),
		Image: openai.ImageEditParamsImageUnion{OfFile: openai.File(bytes.NewReader(raw), "x.png", "image/png")},
	})
	if err != nil {
		t.Fatal(err)
	}
	checkPNG(t, e.Data[0].B64JSON)
}

func TestSDKSpeech(t *testing.T) {
	c := start(t)
	p := openai.AudioSpeechNewParams{Model: "sim-audio", Input: "say something", Voice: openai.AudioSpeechNewParamsVoiceUnion{OfString: openai.String("alloy")}}
	resp, err := c.Audio.Speech.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.Header.Get("Content-Type") != "audio/wav" {
		t.Fatalf("%v %v", err, resp.Header)
	}
	checkWAV(t, b)

	p.ResponseFormat = "pcm"
	raw, err := c.Audio.Speech.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Body.Close()
	if pcm, err := io.ReadAll(raw.Body); err != nil || !bytes.Equal(pcm, b[44:]) {
		t.Errorf("%v: raw sound differs from the file's", err)
	}
}

// checkWAV reads the head of a WAV file and compares its sizes with the file's.
func checkWAV(t *testing.T, b []byte) {
	t.Helper()
	le := func(at, n int) (v int) {
		for i := n - 1; i >= 0; i-- {
			v = v<<8 | int(b[at+i])
		}
		return v
	}
	if len(b) < 44 || string(b[:4]) != "RIFF" || string(b[8:16]) != "WAVEfmt " || string(b[36:40]) != "data" {
		t.Fatalf("no WAV: %q", b[:min(44, len(b))])
	}
	if le(4, 4) != len(b)-8 || le(40, 4) != len(b)-44 || le(24, 4) != sampleRate || le(28, 4) != sampleRate*2 || le(22, 2) != 1 || le(34, 2) != 16 {
		t.Errorf("head %v for %d bytes", b[:44], len(b))
	}
	silent := true
	for _, v := range b[44:] {
		silent = silent && v == 0
	}
	if silent {
		t.Error("no sound")
	}
}

func TestSDKTranscription(t *testing.T) {
	c := start(t)
	sound := tone(t, c)
	params := func() openai.AudioTranscriptionNewParams {
		return openai.AudioTranscriptionNewParams{
			Model: "sim-audio", File: openai.File(bytes.NewReader(sound), "one.wav", "audio/wav"),
		}
	}
	const want = "Heard 48044 bytes of one.wav:"
	a, err := c.Audio.Transcriptions.New(t.Context(), params())
	if err != nil || !strings.HasPrefix(a.Text, want) || a.Usage.OutputTokens == 0 {
		t.Fatalf("%v %+v", err, a)
	}
	p := params()
	p.ResponseFormat = openai.AudioResponseFormatVerboseJSON
	if v, err := c.Audio.Transcriptions.New(t.Context(), p); err != nil || v.Duration < 1 || len(v.Segments) != 1 || v.Text != a.Text {
		t.Errorf("%v %+v", err, v)
	}
	p = params()
	p.Prompt = openai.String("sim:tokens=3")
	s := c.Audio.Transcriptions.NewStreaming(t.Context(), p)
	var text, last string
	for s.Next() {
		text += s.Current().Delta
		last = s.Current().Text
	}
	if s.Err() != nil || text != last || text != "Heard 48044 bytes" {
		t.Errorf("%v %q %q", s.Err(), text, last)
	}
	//lint:ignore SA1019 the endpoint is deprecated, and served
	tr, err := c.Audio.Translations.New(t.Context(), openai.AudioTranslationNewParams{Model: "sim-audio", File: params().File})
	if err != nil || tr.Text != a.Text {
		t.Errorf("%v %+v", err, tr)
	}
}

func TestSDKResponses(t *testing.T) {
	c := start(t)
	p := responses.ResponseNewParams{
		Model: "sim-reason", User: openai.String("sim:tokens=4"), Instructions: openai.String("be brief"),
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("hello there")},
	}
	a, err := c.Responses.New(t.Context(), p)
	if err != nil || a.OutputText() != "hello there t2 t3" || a.Status != "completed" || a.Usage.OutputTokens != 8 {
		t.Fatalf("%v %s", err, a.RawJSON())
	}
	kinds, last := readResponse(t, c, p)
	want := []string{
		"response.created", "response.in_progress",
		"response.output_item.added", "response.reasoning_summary_part.added",
		"response.reasoning_summary_text.delta", "response.reasoning_summary_text.delta", "response.reasoning_summary_text.delta", "response.reasoning_summary_text.delta",
		"response.reasoning_summary_text.done", "response.reasoning_summary_part.done", "response.output_item.done",
		"response.output_item.added", "response.content_part.added",
		"response.output_text.delta", "response.output_text.delta", "response.output_text.delta", "response.output_text.delta",
		"response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
	}
	if !slices.Equal(kinds, want) || last.OutputText() != a.OutputText() || len(last.Output) != 2 {
		t.Errorf("%v\n%s", kinds, last.RawJSON())
	}

	p.MaxOutputTokens = openai.Int(2)
	if kinds, last := readResponse(t, c, p); kinds[len(kinds)-1] != "response.incomplete" || last.IncompleteDetails.Reason != "max_output_tokens" {
		t.Errorf("%v %s", kinds, last.RawJSON())
	}
}

func TestSDKResponsesFailure(t *testing.T) {
	c := start(t)
	s := c.Responses.NewStreaming(t.Context(), responses.ResponseNewParams{
		Model: "sim-small", User: openai.String("sim:error_event_mid=1"), Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("x")},
	})
	for s.Next() {
	}
	if s.Err() == nil {
		t.Error("the client noticed nothing")
	}
}

func TestSDKResponsesTools(t *testing.T) {
	c := start(t)
	p := responses.ResponseNewParams{
		Model: "sim-small", Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("use get_weather")},
		Tools: []responses.ToolUnionParam{responses.ToolParamOfFunction("get_weather", map[string]any{"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}}, false)},
	}
	kinds, last := readResponse(t, c, p)
	if len(last.Output) != 1 || last.Output[0].Name != "get_weather" || last.Output[0].Arguments.OfString != `{"city":"text"}` || last.Output[0].CallID == "" {
		t.Errorf("%s", last.RawJSON())
	}
	for _, kind := range []string{"response.function_call_arguments.delta", "response.function_call_arguments.done", "response.output_item.done"} {
		if !slices.Contains(kinds, kind) {
			t.Errorf("no %s in %v", kind, kinds)
		}
	}
	p.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{
		responses.ResponseInputItemParamOfMessage("use get_weather", "user"),
		responses.ResponseInputItemParamOfFunctionCall("{}", "call_1", "get_weather"),
		responses.ResponseInputItemParamOfFunctionCallOutput("sunny"),
	}}
	if a, err := c.Responses.New(t.Context(), p); err != nil || a.OutputText() == "" {
		t.Errorf("after the tool's answer: %v %s", err, a.RawJSON())
	}
}

// readResponse streams a response and checks what holds for every event.
func readResponse(t *testing.T, c openai.Client, p responses.ResponseNewParams) (kinds []string, last responses.Response) {
	t.Helper()
	s := c.Responses.NewStreaming(t.Context(), p)
	for s.Next() {
		e := s.Current()
		if e.SequenceNumber != int64(len(kinds)) {
			t.Errorf("sequence_number %d at place %d", e.SequenceNumber, len(kinds))
		}
		kinds = append(kinds, e.Type)
		if strings.HasPrefix(e.Type, "response.completed") || strings.HasPrefix(e.Type, "response.incomplete") {
			last = e.Response
		}
	}
	if s.Err() != nil {
		t.Error(s.Err())
	}
	return kinds, last
}
