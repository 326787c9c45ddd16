package sim

import (
	"fmt"
	"net/http"
	"strings"
)

// decodeTranscription reads POST /v1/audio/transcriptions and /v1/audio/translations, multipart forms.
func decodeTranscription(x *exchange, body []byte) (*ask, error) {
	f, err := readForm(x, body)
	if err != nil {
		return nil, err
	}
	if f.fileBytes == 0 {
		return nil, &requestError{"file", "Missing required parameter: 'file'."}
	}
	a := f.ask()
	a.text = fmt.Sprintf("Heard %d bytes of %s:", f.fileBytes, f.fileName)
	a.input = countTokens(f.fileBytes)
	t := &transcript{form: f, task: "transcribe", seconds: float64(f.fileBytes) / (2 * sampleRate)}
	if strings.HasSuffix(x.r.URL.Path, "/translations") {
		t.task, a.stream = "translate", false
	}
	a.serve = t.serve
	return a, nil
}

// transcript is what was heard.
type transcript struct {
	form    *form
	task    string
	seconds float64
}

func (t *transcript) serve(x *exchange, a *ask) error {
	p := plan{script: x.scriptFor(a), finish: "stop"}
	p.usage = usage{input: a.input, output: p.script.total}
	if a.stream {
		return x.speak(&p, &transcriptStream{x: x}, sseType)
	}
	if err := x.compute(&p); err != nil {
		return err
	}
	text := x.fullText(&p)
	switch format := t.form.value("response_format"); format {
	case "", "json":
		return x.deliver("application/json", marshal(map[string]any{"text": text, "usage": p.usage.transcript()}))
	case "text":
		return x.deliver("text/plain; charset=utf-8", []byte(text+"\n"))
	case "srt":
		return x.deliver("application/x-subrip", []byte("1\n00:00:00,000 --> "+t.clock(",")+"\n"+text+"\n\n"))
	case "vtt":
		return x.deliver("text/vtt", []byte("WEBVTT\n\n00:00:00.000 --> "+t.clock(".")+"\n"+text+"\n\n"))
	case "verbose_json", "diarized_json":
		return x.deliver("application/json", marshal(t.verbose(text)))
	default:
		return x.refuse(badRequest("response_format", "Invalid 'response_format': "+format))
	}
}

func (u usage) transcript() map[string]any {
	return map[string]any{"type": "tokens", "input_tokens": u.input, "output_tokens": u.output, "total_tokens": u.input + u.output}
}

// clock is the end of the recording as subtitles write it.
func (t *transcript) clock(comma string) string {
	ms := int(t.seconds * 1000)
	return fmt.Sprintf("%02d:%02d:%02d%s%03d", ms/3600000, ms/60000%60, ms/1000%60, comma, ms%1000)
}

func (t *transcript) verbose(text string) map[string]any {
	return map[string]any{
		"task": t.task, "language": "english", "duration": t.seconds, "text": text,
		"segments": []any{map[string]any{
			"id": 0, "seek": 0, "start": 0.0, "end": t.seconds, "text": text, "tokens": tokensOf(text), "temperature": 0.0,
			"avg_logprob": -0.1, "compression_ratio": 1.0, "no_speech_prob": 0.0,
		}},
		"usage": map[string]any{"type": "duration", "seconds": int(t.seconds) + 1},
	}
}

// transcriptStream is the dialect of streamed transcriptions.
type transcriptStream struct {
	noTools
	x    *exchange
	said []byte
}

func (d *transcriptStream) begin() error { return nil }

func (d *transcriptStream) text(text []byte) error {
	d.said = append(d.said, text...)
	d.x.data = append(appendString(append(d.x.data[:0], `{"type":"transcript.text.delta","delta":`...), text), '}')
	return d.x.event("", d.x.data)
}

func (d *transcriptStream) end(p *plan) error {
	return d.x.event("", marshal(map[string]any{"type": "transcript.text.done", "text": string(d.said), "usage": p.usage.transcript()}))
}

func (d *transcriptStream) fail(e apiError) error {
	e.status = http.StatusInternalServerError
	return d.x.event("", marshal(map[string]any{"error": e.object(d.x.s.config.Flavour)}))
}
