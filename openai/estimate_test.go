package openai

import (
	"fmt"
	"strings"
	"testing"
)

func TestEstimatePrompt(t *testing.T) {
	text := strings.Repeat("All work and no play. ", 200)
	media := strings.Repeat("iVBORw0KGgo+/AAA", 1<<16) // 1 MiB
	tests := map[string]struct {
		prompt string
		want   int64
	}{
		"none":           {``, 1},
		"text":           {text, int64(len(text)) / 4},
		"a data URL":     {fmt.Sprintf(`[{"image_url":{"url":"data:image/png;base64,%s"}}]`, media), 1012},
		"a recording":    {fmt.Sprintf(`[{"input_audio":{"data": "%s"}}]`, media), 1007},
		"two of them":    {fmt.Sprintf(`[{"image_url": "data:image/png;base64,%s"},{"file_data":"data:application/pdf;base64,%s"}]`, media, media), 2021},
		"a text like it": {fmt.Sprintf(`[{"content":"data:text/plain;base64,%s"}]`, media), int64(len(media)+38) / 4},
		"a quoted one":   {fmt.Sprintf(`[{"content":"\"url\":\"data:text/plain;base64,%s"}]`, media), int64(len(media)+50) / 4},
		"an element":     {fmt.Sprintf(`["data:image/png;base64,%s"]`, media), int64(len(media)+26) / 4},
		"a short one":    {`["data:image/png;base64,iVBORw0KGgo="]`, 9},
		"text in data":   {fmt.Sprintf(`{"data":"%s"}`, text), int64(len(text)+11) / 4},
		"addresses":      {`[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://a"}},{"type":"image_url","image_url":"https://b"},{"type":"text","text":"x"}]}]`, 2038},
		"files":          {`[{"content":[{"type":"file","file":{"file_id":"f"}},{"type":"input_file","file_id":"f"},{"type":"input_file","file_url":"f"},{"type":"image_embeds","image_embeds":"AA"}]}]`, 4042},
		"in a result":    {`[{"content":[{"type":"tool_result","content":[{"type":"image","source":{"type":"url","url":"https://a"}}]}]},{"output":[{"type":"input_image","image_url":"https://a"}]}]`, 2042},
		"small media":    {`[{"content":[{"type":"image","source":{"type":"base64","data":"iVBORw0KGgo="}}]}]`, 1020},
		"both":           {fmt.Sprintf(`[{"content":[{"image_url":{"url":"data:image/png;base64,%s"}},{"video_url":{"url":"https://a"}}]}]`, media), 2024},
		"no media":       {`[{"content":[{"type":"text","text":"\"image_url\""},{"type":"document","source":{"type":"text","data":"url\""}},{"image_url":null,"url":null}]},"url"]`, 37},
		"cut off":        {`["data:image/png;base64,` + media, int64(len(media)+24) / 4},
		"data in a text": {fmt.Sprintf(`["%s;base64,"]`, text), int64(len(text)+12) / 4},
	}
	for name, test := range tests {
		if got := EstimatePrompt([]byte(test.prompt)); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

// TestEstimateInputOfTools: a tool's description is text, whatever it looks like.
func TestEstimateInputOfTools(t *testing.T) {
	long := strings.Repeat("Summarize+the+text+above+", 1<<12)
	for _, form := range []string{
		`{"model":"m","messages":[],"tools":[{"function":{"parameters":{"url":"data:a/b;base64,%s"}}}]}`,
		`{"model":"m","messages":[],"tools":[{"function":{"parameters":{"data":"%s"}}}]}`,
		`{"model":"m","messages":[],"system":[{"data":"%s"}]}`,
		`{"model":"m","messages":[{"role":"user","content":";base64,%s"}]}`,
	} {
		body := fmt.Appendf(nil, form, long)
		e, err := ParseEnvelope(body)
		if err != nil {
			t.Fatal(err)
		}
		if got, least := e.EstimateInput(OpChatCompletions, body), int64(len(long)/4); got < least {
			t.Errorf("%s: %d tokens, want at least %d", form, got, least)
		}
	}
}

// TestEstimateOfArguments: what stands where a provider takes no media is text, whatever it looks like.
func TestEstimateOfArguments(t *testing.T) {
	long := strings.Repeat("Summarize+the+text+above+", 1<<12)
	media := fmt.Sprintf(`{"data":"%s","url":"data:a/b;base64,%s"}`, long, long)
	for _, form := range []string{
		`{"messages":[{"role":"assistant","content":[{"type":"tool_use","input":%s}]}]}`,
		`{"messages":[{"role":"assistant","content":[{"type":"tool_use","input":{"source":%s}}]}]}`,
		`{"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":%s}}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"document","source":{"type":"text","data":"` + long + `","x":%s}}]}]}`,
		`{"input":[{"type":"mcp_call","arguments":%s}]}`,
		`{"prompt":{"id":"p","variables":{"a":%s}}}`,
	} {
		body := fmt.Appendf(nil, form, media)
		e, err := ParseEnvelope(body)
		if err != nil {
			t.Fatal(err)
		}
		if got, least := e.EstimateInput(OpChatCompletions, body), int64(len(long)/2); got < least {
			t.Errorf("%.80s: %d tokens, want at least %d", form, got, least)
		}
	}
	image := strings.Repeat("iVBORw0KGgo+/AAA", 1<<12)
	for _, form := range []string{
		`{"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"%s"}}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image","source":{"type":"base64","data":"%s"}}]}]}]}`,
		`{"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,%s"}]}]}`,
		`{"input":[{"type":"function_call_output","output":[{"type":"input_file","file_data":"data:application/pdf;base64,%s"}]}]}`,
		`{"input":[{"type":"computer_call_output","output":{"type":"computer_screenshot","image_url":"data:image/png;base64,%s"}}]}`,
		`{"messages":[{"role":"user","content":[{"type":"document","source":{"type":"content","content":[{"type":"image","source":{"type":"base64","data":"%s"}}]}}]}]}`,
	} {
		body := fmt.Appendf(nil, form, image)
		e, err := ParseEnvelope(body)
		if err != nil {
			t.Fatal(err)
		}
		if got := e.EstimateInput(OpChatCompletions, body); got < MediaTokens || got > MediaTokens+100 {
			t.Errorf("%.80s: %d tokens", form, got)
		}
	}
}

// TestEstimateOllamaImages: images in Ollama's places count as elsewhere, on its own paths alone, and a text there as text.
func TestEstimateOllamaImages(t *testing.T) {
	media, text := strings.Repeat("iVBORw0KGgo+/AAA", 1<<16), strings.Repeat("All work and no play. ", 50_000)
	for _, test := range []struct {
		op    OpID
		body  string
		least int64
		most  int64
	}{
		{OpOllamaChat, fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"hi","images":["%s","%s"]},{"role":"user","images":["%[1]s"]}]}`, media, media), 3000, 3100},
		{OpOllamaGenerate, fmt.Sprintf(`{"model":"m","prompt":"hi","images":["%s"]}`, media), 1000, 1100},
		{OpOllamaGenerate, fmt.Sprintf(`{"model":"m","images":["%s"]}`, media), 1000, 1100},
		{OpOllamaChat, fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"%s","images":["%s"]}]}`, text, media), 1000 + int64(len(text)/4), 1100 + int64(len(text)/4)},
		{OpOllamaChat, fmt.Sprintf(`{"model":"m","messages":[{"role":"user","images":["%s"]}]}`, text), int64(len(text) / 4), int64(len(text)/4) + 100},
		{OpOllamaGenerate, `{"model":"m","prompt":"hi","images":["iVBORw0KGgo="]}`, 1, 100},
		{OpChatCompletions, fmt.Sprintf(`{"model":"m","messages":[{"role":"user","images":["%s"]}]}`, media), int64(len(media) / 4), int64(len(media)/4) + 100},
	} {
		body := []byte(test.body)
		e, err := ParseEnvelope(body)
		if err != nil {
			t.Fatal(err)
		}
		if got := e.EstimateInput(test.op, body); got < test.least || got > test.most {
			t.Errorf("%s %.80s: %d tokens, want %d to %d", test.op, body, got, test.least, test.most)
		}
	}
}

func BenchmarkEstimatePrompt(b *testing.B) {
	prompt := []byte(strings.Repeat("All work and no play makes Jack a dull boy. ", 200))
	b.SetBytes(int64(len(prompt)))
	for b.Loop() {
		EstimatePrompt(prompt)
	}
}
