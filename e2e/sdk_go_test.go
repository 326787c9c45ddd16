package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"image/png"
	"io"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

// goSDK is the official Go client against the same world as the scripts'.
type goSDK struct {
	*sdkWorld
	openai.Client
	failed atomic.Int64 // requests that were to fail
}

// TestSDKGo has the checks of the scripts, under the same names.
func TestSDKGo(t *testing.T) {
	t.Parallel()
	w := newSDKWorld(t)
	g := &goSDK{sdkWorld: w, Client: goClient(w.BaseURL, w.Key)}
	checks := []struct {
		name string
		run  func(t *testing.T)
	}{
		{"chat/unary", g.chat}, {"chat/stream", g.chatStream}, {"chat/stream_of_two", g.chatStreamOfTwo}, {"chat/stream_in_pieces", g.chatStreamInPieces},
		{"chat/reasoning", g.chatReasoning}, {"chat/usage_asked", g.usageAsked}, {"chat/usage_not_asked", g.usageNotAsked},
		{"chat/tools", g.chatTools}, {"chat/structured", g.chatStructured},
		{"completions", g.completions}, {"embeddings", g.embeddings}, {"models", g.listModels}, {"moderations", g.moderations},
		{"responses/stream", g.responses}, {"responses/tools", g.responsesTools},
		{"audio/transcription", g.transcription}, {"audio/speech", g.speech}, {"images/generate", g.images}, {"images/edit", g.imageEdit},
		{"errors/edge", g.edgeErrors}, {"errors/provider", g.providerErrors}, {"errors/waiting", g.waiting},
		{"retries/then_success", g.retryThenSuccess}, {"retries/retry_after", g.retryAfter},
		{"abort/stream", g.abortStream}, {"abort/unary", g.abortUnary},
		{"broken/stream", g.brokenStream}, {"broken/at_once", g.brokenAtOnce}, {"broken/responses", g.brokenResponses},
		{"broken/node_killed", g.nodeKilled}, // there is no Node after it
	}
	for _, c := range checks {
		t.Run(c.name, c.run)
	}
	w.main.settled()
	w.tight.settled()
}

func goClient(baseURL, key string, more ...option.RequestOption) openai.Client {
	return openai.NewClient(append([]option.RequestOption{option.WithBaseURL(baseURL), option.WithAPIKey(key)}, more...)...)
}

func goChat(text, knobs string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: "sim-small", User: openai.String("sim:" + knobs),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)},
	}
}

func goChatFor(model, text, knobs string) openai.ChatCompletionNewParams {
	p := goChat(text, knobs)
	p.Model = model
	return p
}

// ask answers one chat request, which must succeed.
func (g *goSDK) ask(t *testing.T, p openai.ChatCompletionNewParams) *openai.ChatCompletion {
	t.Helper()
	a, err := g.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// stream reads one chat stream, which must end well.
func (g *goSDK) stream(t *testing.T, p openai.ChatCompletionNewParams) []openai.ChatCompletionChunk {
	t.Helper()
	chunks, err := readAll(g.Chat.Completions.NewStreaming(t.Context(), p))
	if err != nil {
		t.Fatalf("after %d chunks: %v", len(chunks), err)
	}
	return chunks
}

func readAll[T any](s *ssestream.Stream[T]) (all []T, err error) {
	defer s.Close()
	for s.Next() {
		all = append(all, s.Current())
	}
	return all, s.Err()
}

func chunkText(chunks []openai.ChatCompletionChunk, index int64) (text string) {
	for _, chunk := range chunks {
		for _, c := range chunk.Choices {
			if c.Index == index {
				text += c.Delta.Content
			}
		}
	}
	return text
}

func (g *goSDK) chat(t *testing.T) {
	a := g.ask(t, goChat("hello there", "tokens=5"))
	if a.Choices[0].Message.Content != "hello there t2 t3 t4" || a.Choices[0].FinishReason != "stop" || a.Usage.CompletionTokens != 5 {
		t.Errorf("%s", a.RawJSON())
	}
}

func (g *goSDK) chatStream(t *testing.T) {
	p := goChat("hi", "tokens=40,text=mix,itl=5ms")
	want := g.ask(t, p).Choices[0].Message.Content
	var acc openai.ChatCompletionAccumulator
	for _, chunk := range g.stream(t, p) {
		if !acc.AddChunk(chunk) {
			t.Fatalf("a chunk that does not fit: %s", chunk.RawJSON())
		}
	}
	if c := acc.Choices[0]; c.Message.Content != want || c.FinishReason != "stop" {
		t.Errorf("%q (%s), not %q", c.Message.Content, c.FinishReason, want)
	}
}

func (g *goSDK) chatStreamOfTwo(t *testing.T) {
	p := goChat("hi", "tokens=6,text=emoji")
	p.N = openai.Int(2)
	chunks := g.stream(t, p)
	if a, b := chunkText(chunks, 0), chunkText(chunks, 1); a != b || !strings.HasPrefix(a, "hi") {
		t.Errorf("%q, %q", a, b)
	}
}

func (g *goSDK) chatStreamInPieces(t *testing.T) {
	want := g.ask(t, goChat("hi", "tokens=12,text=cjk")).Choices[0].Message.Content
	for _, knobs := range []string{"split=3", "crlf", "comments", "nospace", "done=none"} {
		if got := chunkText(g.stream(t, goChat("hi", "tokens=12,text=cjk,"+knobs)), 0); got != want {
			t.Errorf("%s: %q, not %q", knobs, got, want)
		}
	}
}

func (g *goSDK) chatReasoning(t *testing.T) {
	p := goChatFor("sim-reason", "why", "tokens=3")
	thought := func(fields string) string {
		var v struct {
			ReasoningContent string `json:"reasoning_content"`
		}
		if err := json.Unmarshal([]byte(fields), &v); err != nil {
			t.Fatal(err)
		}
		return v.ReasoningContent
	}
	a, chunks := g.ask(t, p), g.stream(t, p)
	var streamed string
	for _, chunk := range chunks {
		streamed += thought(chunk.Choices[0].Delta.RawJSON())
	}
	if want := thought(a.Choices[0].Message.RawJSON()); want == "" || streamed != want || chunkText(chunks, 0) != a.Choices[0].Message.Content {
		t.Errorf("thought %q, not %q", streamed, want)
	}
}

func (g *goSDK) usageAsked(t *testing.T) {
	p := goChat("hi", "tokens=7")
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	chunks := g.stream(t, p)
	for i, chunk := range chunks {
		if last := i == len(chunks)-1; last != chunk.JSON.Usage.Valid() || last != (len(chunk.Choices) == 0) {
			t.Errorf("chunk %d of %d: %s", i, len(chunks), chunk.RawJSON())
		}
	}
	if n := chunks[len(chunks)-1].Usage.CompletionTokens; n != 7 {
		t.Errorf("%d tokens", n)
	}
}

func (g *goSDK) usageNotAsked(t *testing.T) {
	for _, knobs := range []string{"", ",usage=refuse", ",usage=never"} {
		for _, chunk := range g.stream(t, goChat("unasked-go"+knobs, "tokens=7"+knobs)) {
			if chunk.JSON.Usage.Valid() || len(chunk.Choices) != 1 {
				t.Errorf("%q: %s", knobs, chunk.RawJSON())
			}
		}
	}
	if first := g.main.sims[0].sdkSeen(t, "unasked-go")[0]; !strings.Contains(first.Body, `"include_usage":true`) {
		t.Errorf("the provider was not asked for the usage: %s", first.Body)
	}
}

var weatherSchema = map[string]any{
	"type": "object", "required": []string{"city", "unit"}, "additionalProperties": false,
	"properties": map[string]any{"city": map[string]any{"type": "string"}, "unit": map[string]any{"enum": []string{"celsius", "kelvin"}}},
}

func (g *goSDK) chatTools(t *testing.T) {
	p := goChat("call get_weather", "tools=2")
	p.Tools = []openai.ChatCompletionToolUnionParam{
		openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "get_weather", Parameters: weatherSchema}),
	}
	a := g.ask(t, p)
	want := a.Choices[0].Message.ToolCalls
	var args struct{ City, Unit string }
	if len(want) != 2 || a.Choices[0].FinishReason != "tool_calls" || json.Unmarshal([]byte(want[0].Function.Arguments), &args) != nil || args.Unit != "celsius" {
		t.Fatalf("%s", a.RawJSON())
	}
	var acc openai.ChatCompletionAccumulator
	for _, chunk := range g.stream(t, p) {
		acc.AddChunk(chunk)
	}
	for i, call := range acc.Choices[0].Message.ToolCalls {
		if call.ID == "" || call.Function.Name != "get_weather" || call.Function.Arguments != want[i].Function.Arguments {
			t.Errorf("streamed call %d: %+v", i, call)
		}
	}
	p.User = openai.String("")
	p.Messages = append(p.Messages, a.Choices[0].Message.ToParam(), openai.ToolMessage("sunny", want[0].ID))
	if b := g.ask(t, p); b.Choices[0].Message.Content == "" {
		t.Errorf("no answer after the tool's: %s", b.RawJSON())
	}
}

var personSchema = map[string]any{
	"type": "object", "required": []string{"name", "age"}, "additionalProperties": false,
	"properties": map[string]any{"name": map[string]any{"type": "string"}, "age": map[string]any{"type": "integer"}},
}

func (g *goSDK) chatStructured(t *testing.T) {
	p := goChat("who", "")
	p.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{
		JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "person", Schema: personSchema, Strict: openai.Bool(true)},
	}
	var person struct {
		Name string `json:"name"`
		Age  int    `json:"age"`
	}
	for _, text := range []string{g.ask(t, p).Choices[0].Message.Content, chunkText(g.stream(t, p), 0)} {
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&person); err != nil || person.Name == "" {
			t.Errorf("%v in %s", err, text)
		}
	}
}

func (g *goSDK) completions(t *testing.T) {
	p := openai.CompletionNewParams{
		Model: "sim-small", Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfStrings: []string{"a", "b c"}}, User: openai.String("sim:tokens=4"),
	}
	a, err := g.Completions.New(t.Context(), p)
	if err != nil || len(a.Choices) != 2 {
		t.Fatalf("%v %+v", err, a)
	}
	chunks, err := readAll(g.Completions.NewStreaming(t.Context(), p))
	var text [2]string
	for _, chunk := range chunks {
		for _, c := range chunk.Choices {
			text[c.Index] += c.Text
		}
	}
	if err != nil || text[0] != a.Choices[0].Text || text[1] != a.Choices[1].Text {
		t.Errorf("%v %q", err, text)
	}
}

func (g *goSDK) embeddings(t *testing.T) {
	p := openai.EmbeddingNewParams{
		Model: "sim-embed", Dimensions: openai.Int(16), Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", "b"}},
	}
	a, err := g.Embeddings.New(t.Context(), p)
	if err != nil || len(a.Data) != 2 || len(a.Data[1].Embedding) != 16 {
		t.Fatalf("%v %+v", err, a)
	}
	// The SDK knows no type for base64; its users read the answer themselves.
	p.EncodingFormat = openai.EmbeddingNewParamsEncodingFormatBase64
	var raw []byte
	if _, err := g.Embeddings.New(t.Context(), p, option.WithResponseBodyInto(&raw)); err != nil {
		t.Fatal(err)
	}
	var packed struct{ Data []struct{ Embedding string } }
	if err := json.Unmarshal(raw, &packed); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	b, err := base64.StdEncoding.DecodeString(packed.Data[1].Embedding)
	if err != nil || len(b) != 64 {
		t.Fatalf("%v, %d bytes", err, len(b))
	}
	for i, want := range a.Data[1].Embedding {
		bits := uint32(b[4*i]) | uint32(b[4*i+1])<<8 | uint32(b[4*i+2])<<16 | uint32(b[4*i+3])<<24
		if got := float64(math.Float32frombits(bits)); math.Abs(got-want) > 1e-6 {
			t.Errorf("value %d: %v in base64, %v in JSON", i, got, want)
		}
	}
}

func (g *goSDK) listModels(t *testing.T) {
	page, err := g.Client.Models.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, m := range page.Data {
		ids = append(ids, m.ID)
	}
	want := slices.Sorted(slices.Values(sdkServed()))
	if slices.Sort(ids); !slices.Equal(ids, want) {
		t.Errorf("%v, not %v", ids, want)
	}
	for _, id := range want {
		if m, err := g.Client.Models.Get(t.Context(), id); err != nil || m.ID != id {
			t.Errorf("%s: %v %+v", id, err, m)
		}
	}
	_, err = g.Client.Models.Get(t.Context(), "nobody/at:all")
	goError(t, err, 404, "model_not_found")
}

func (g *goSDK) moderations(t *testing.T) {
	a, err := g.Moderations.New(t.Context(), openai.ModerationNewParams{
		Model: "sim-small", Input: openai.ModerationNewParamsInputUnion{OfStringArray: []string{"fine", "flag this"}},
	})
	if err != nil || a.Results[0].Flagged || !a.Results[1].Flagged {
		t.Errorf("%v %+v", err, a)
	}
}

func goResponse(model, text, knobs string) responses.ResponseNewParams {
	return responses.ResponseNewParams{
		Model: model, User: openai.String("sim:" + knobs), Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(text)},
	}
}

func (g *goSDK) responses(t *testing.T) {
	p := goResponse("sim-reason", "hello there", "tokens=4")
	a, err := g.Responses.New(t.Context(), p)
	if err != nil || a.OutputText() != "hello there t2 t3" || a.Status != "completed" {
		t.Fatalf("%v %+v", err, a)
	}
	events, err := readAll(g.Responses.NewStreaming(t.Context(), p))
	if err != nil {
		t.Fatal(err)
	}
	var text string
	var kinds []string
	for i, e := range events {
		if e.SequenceNumber != int64(i) {
			t.Errorf("sequence_number %d at place %d", e.SequenceNumber, i)
		}
		kinds = append(kinds, e.Type)
		if e.Type == "response.output_text.delta" {
			text += e.Delta
		}
	}
	last := events[len(events)-1]
	if kinds[0] != "response.created" || last.Type != "response.completed" || text != a.OutputText() || last.Response.OutputText() != text {
		t.Errorf("%q from %v", text, kinds)
	}
	if !slices.Contains(kinds, "response.reasoning_summary_text.delta") {
		t.Errorf("no reasoning in %v", kinds)
	}
}

func (g *goSDK) responsesTools(t *testing.T) {
	p := goResponse("sim-small", "use get_weather", "")
	p.Tools = []responses.ToolUnionParam{responses.ToolParamOfFunction("get_weather", weatherSchema, true)}
	events, err := readAll(g.Responses.NewStreaming(t.Context(), p))
	var arguments string
	for _, e := range events {
		if e.Type == "response.function_call_arguments.delta" {
			arguments += e.Delta
		}
	}
	if err != nil || len(events) == 0 {
		t.Fatal(err)
	}
	if call := events[len(events)-1].Response.Output[0]; call.Name != "get_weather" || arguments == "" || call.Arguments.OfString != arguments {
		t.Errorf("%q, not %s", arguments, call.RawJSON())
	}
}

func goSound() io.Reader {
	const samples = 12000
	head := append([]byte("RIFF\xe4\x5d\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00"), 0xc0, 0x5d, 0, 0, 0x80, 0xbb, 0, 0, 2, 0, 16, 0)
	head = append(head, 'd', 'a', 't', 'a', 0xc0, 0x5d, 0, 0)
	return openai.File(bytes.NewReader(append(head, bytes.Repeat([]byte{7}, 2*samples)...)), "one.wav", "audio/wav")
}

func (g *goSDK) transcription(t *testing.T) {
	a, err := g.Audio.Transcriptions.New(t.Context(), openai.AudioTranscriptionNewParams{Model: "sim-audio", File: goSound()})
	if err != nil || !strings.HasPrefix(a.Text, "Heard 24044 bytes of one.wav:") {
		t.Fatalf("%v %+v", err, a)
	}
	events, err := readAll(g.Audio.Transcriptions.NewStreaming(t.Context(), openai.AudioTranscriptionNewParams{Model: "sim-audio", File: goSound()}))
	var text string
	for _, e := range events {
		text += e.Delta
	}
	if err != nil || text != a.Text || events[len(events)-1].Text != text {
		t.Errorf("%v %q", err, text)
	}
	//lint:ignore SA1019 the path is served, whatever the SDK's makers advise
	tr, err := g.Audio.Translations.New(t.Context(), openai.AudioTranslationNewParams{Model: "sim-audio", File: goSound()})
	if err != nil || tr.Text != a.Text {
		t.Errorf("%v %+v", err, tr)
	}
}

func (g *goSDK) speech(t *testing.T) {
	res, err := g.Audio.Speech.New(t.Context(), openai.AudioSpeechNewParams{
		Model: "sim-audio", Input: "say something", Voice: openai.AudioSpeechNewParamsVoiceUnion{OfString: openai.String("alloy")},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || !bytes.HasPrefix(b, []byte("RIFF")) || res.Header.Get("Content-Type") != "audio/wav" {
		t.Errorf("%v %v, %d bytes", err, res.Header, len(b))
	}
}

func checkPicture(t *testing.T, b64 string) {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(b64)
	if err == nil {
		_, err = png.Decode(bytes.NewReader(b))
	}
	if err != nil {
		t.Errorf("no picture: %v", err)
	}
}

func (g *goSDK) images(t *testing.T) {
	p := openai.ImageGenerateParams{Model: "sim-image", Prompt: "a cat", N: openai.Int(2)}
	a, err := g.Images.Generate(t.Context(), p)
	if err != nil || len(a.Data) != 2 {
		t.Fatalf("%v %+v", err, a)
	}
	checkPicture(t, a.Data[1].B64JSON)
	events, err := readAll(g.Images.GenerateStreaming(t.Context(), openai.ImageGenerateParams{Model: "sim-image", Prompt: "a cat", PartialImages: openai.Int(1)}))
	if err != nil || len(events) != 2 || events[1].Type != "image_generation.completed" {
		t.Fatalf("%v, %d events", err, len(events))
	}
	checkPicture(t, events[1].B64JSON)
}

func (g *goSDK) imageEdit(t *testing.T) {
	a, err := g.Images.Generate(t.Context(), openai.ImageGenerateParams{Model: "sim-image", Prompt: "a cat"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := base64.StdEncoding.DecodeString(a.Data[0].B64JSON)
	if err != nil {
		t.Fatal(err)
	}
	e, err := g.Images.Edit(t.Context(), openai.ImageEditParams{
		Model: "sim-image", Prompt: "a dog", Image: openai.ImageEditParamsImageUnion{OfFile: openai.File(bytes.NewReader(b), "a.png", "image/png")},
	})
	if err != nil {
		t.Fatal(err)
	}
	checkPicture(t, e.Data[0].B64JSON)
}

// sdkRequest is a request as the simulator remembers it.
type sdkRequest struct {
	Body    string
	State   string
	Started time.Time
	Ended   time.Time
}

// sdkSeen lists the requests that reached the provider with the marker in their body, the oldest first.
func (s *simulator) sdkSeen(t *testing.T, marker string) []sdkRequest {
	t.Helper()
	var all []sdkRequest
	s.control(t, "GET", "/sim/requests", nil, &all)
	slices.Reverse(all)
	return slices.DeleteFunc(all, func(r sdkRequest) bool { return !strings.Contains(r.Body, marker) })
}
