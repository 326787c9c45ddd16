package sim

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/fnv"
	"image"
	"image/color"
	"image/png"
	"io"
	"math"
	"mime"
	"mime/multipart"
	"strconv"
)

// imageSide is the width and height of every image: small on purpose.
const imageSide = 32

// picture draws the PNG of a prompt: a gradient in a colour of its own.
func picture(prompt string, n int) []byte {
	h := fnv.New32a()
	io.WriteString(h, prompt)
	c := h.Sum32() + uint32(n)*0x9e3779b9
	img := image.NewRGBA(image.Rect(0, 0, imageSide, imageSide))
	for y := range imageSide {
		for x := range imageSide {
			img.SetRGBA(x, y, color.RGBA{uint8(c) + uint8(4*x), uint8(c>>8) + uint8(4*y), uint8(c >> 16), 255})
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		panic(err) // into memory
	}
	return b.Bytes()
}

// decodeImages reads POST /v1/images/generations.
func decodeImages(_ *exchange, body []byte) (*ask, error) {
	var in struct {
		order
		Model         string `json:"model"`
		Prompt        string `json:"prompt"`
		N             *int   `json:"n"`
		Stream        bool   `json:"stream"`
		PartialImages int    `json:"partial_images"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	if in.Prompt == "" {
		return nil, &requestError{"prompt", "Missing required parameter: 'prompt'."}
	}
	a := &ask{model: in.Model, stream: in.Stream, orders: in.list(), text: in.Prompt, input: countTokens(len(in.Prompt)), n: 1}
	if in.N != nil {
		a.n = *in.N
	}
	return a, a.draws(in.PartialImages, "image_generation")
}

// decodeImageEdits reads POST /v1/images/edits, a multipart form.
func decodeImageEdits(x *exchange, body []byte) (*ask, error) {
	f, err := readForm(x, body)
	if err != nil {
		return nil, err
	}
	if f.fileBytes == 0 {
		return nil, &requestError{"image", "Missing required parameter: 'image'."}
	}
	a := f.ask()
	a.text, a.n = f.value("prompt"), 1
	a.input = countTokens(len(a.text) + f.fileBytes)
	if n := f.value("n"); n != "" {
		if a.n, err = strconv.Atoi(n); err != nil {
			return nil, &requestError{"n", "Invalid 'n': must be a number."}
		}
	}
	partial, _ := strconv.Atoi(f.value("partial_images"))
	return a, a.draws(partial, "image_edit")
}

// draws makes a an ask for images.
func (a *ask) draws(partial int, event string) error {
	if a.n < 1 || a.n > 10 || partial < 0 || partial > 3 {
		return &requestError{"n", "Invalid 'n': must be 1 to 10, and 'partial_images' 0 to 3."}
	}
	a.serve = func(x *exchange, a *ask) error {
		u := usage{input: a.input, output: 64 * a.n}
		if a.stream {
			p := plan{script: script{total: partial, style: "image"}, usage: u}
			return x.speak(&p, &imageStream{x: x, a: a, event: event}, sseType)
		}
		p := plan{usage: u}
		if err := x.compute(&p); err != nil {
			return err
		}
		data := make([]any, a.n)
		for i := range data {
			data[i] = map[string]any{"b64_json": base64.StdEncoding.EncodeToString(picture(a.text, i))}
		}
		return x.deliver("application/json", marshal(map[string]any{
			"created": unixNow(), "data": data, "output_format": "png", "size": "32x32", "usage": u.image(),
		}))
	}
	return nil
}

func (u usage) image() map[string]any {
	return map[string]any{
		"input_tokens": u.input, "output_tokens": u.output, "total_tokens": u.input + u.output,
		"input_tokens_details": map[string]int{"text_tokens": u.input, "image_tokens": 0},
	}
}

// imageStream is the dialect of streamed images: partial ones, then the whole.
type imageStream struct {
	noTools
	x       *exchange
	a       *ask
	event   string
	partial int
}

func (d *imageStream) send(kind string, n int, more map[string]any) error {
	more["type"], more["b64_json"] = d.event+"."+kind, base64.StdEncoding.EncodeToString(picture(d.a.text, n))
	more["created_at"], more["size"], more["output_format"] = unixNow(), "32x32", "png"
	return d.x.event(d.event+"."+kind, marshal(more))
}

func (d *imageStream) begin() error { return nil }

func (d *imageStream) text([]byte) error {
	d.partial++
	return d.send("partial_image", d.partial, map[string]any{"partial_image_index": d.partial - 1})
}

func (d *imageStream) end(p *plan) error {
	return d.send("completed", 0, map[string]any{"usage": p.usage.image()})
}

func (d *imageStream) fail(e apiError) error {
	return d.x.event("error", marshal(map[string]any{"type": "error", "error": e.object(OpenAI)}))
}

// noTools is the part of a dialect that neither thinks nor calls.
type noTools struct{}

func (noTools) think([]byte) error            { return nil }
func (noTools) callStart(int, toolCall) error { return nil }
func (noTools) callPart(int, string) error    { return nil }
func (noTools) callEnd(int, toolCall) error   { return nil }

// The simulator's voice: one 440 Hz tone, 16-bit mono.
const (
	sampleRate   = 24000
	toneHertz    = 440
	tokenSamples = sampleRate / 20 // 50 ms a token
	maxSpeech    = 2000            // tokens
)

// tone returns samples from..from+n as little-endian PCM.
func tone(from, n int) []byte {
	b := make([]byte, 0, 2*n)
	for i := range n {
		v := 0.3 * math.MaxInt16 * math.Sin(2*math.Pi*toneHertz*float64(from+i)/sampleRate)
		b = binary.LittleEndian.AppendUint16(b, uint16(int16(v)))
	}
	return b
}

// wavHeader is the head of a WAV file with that many samples.
func wavHeader(samples int) []byte {
	size := uint32(2 * samples)
	b := binary.LittleEndian.AppendUint32([]byte("RIFF"), 36+size)
	b = append(b, "WAVEfmt "...)
	b = binary.LittleEndian.AppendUint32(b, 16)
	b = binary.LittleEndian.AppendUint16(b, 1) // PCM
	b = binary.LittleEndian.AppendUint16(b, 1) // mono
	b = binary.LittleEndian.AppendUint32(b, sampleRate)
	b = binary.LittleEndian.AppendUint32(b, 2*sampleRate)
	b = binary.LittleEndian.AppendUint16(b, 2)
	b = binary.LittleEndian.AppendUint16(b, 16)
	return binary.LittleEndian.AppendUint32(append(b, "data"...), size)
}

// decodeSpeech reads POST /v1/audio/speech. The answer is a WAV file whatever format was asked for, except raw PCM:
// it is valid and says what it is.
func decodeSpeech(_ *exchange, body []byte) (*ask, error) {
	var in struct {
		order
		Model          string `json:"model"`
		Input          string `json:"input"`
		ResponseFormat string `json:"response_format"`
		StreamFormat   string `json:"stream_format"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	if in.Input == "" {
		return nil, &requestError{"input", "Missing required parameter: 'input'."}
	}
	a := &ask{
		model: in.Model, stream: in.StreamFormat == "sse", orders: in.list(), text: in.Input,
		input: countTokens(len(in.Input)), n: 1, limit: maxSpeech,
	}
	a.serve = func(x *exchange, a *ask) error {
		total := min(max(1, countTokens(len(a.text))), maxSpeech)
		if x.k.tokens != unset {
			total = min(x.k.tokens, maxSpeech)
		}
		p := plan{script: script{total: total, style: "sound"}, usage: usage{input: a.input, output: total}}
		d := &speechStream{x: x, total: total, events: a.stream, raw: in.ResponseFormat == "pcm"}
		switch {
		case a.stream:
			return x.speak(&p, d, sseType)
		case d.raw:
			return x.speak(&p, d, "audio/pcm")
		}
		return x.speak(&p, d, "audio/wav")
	}
	return a, nil
}

// speechStream is the dialect of sound: a file in pieces, or events with pieces of it.
type speechStream struct {
	noTools
	x      *exchange
	total  int // tokens
	done   int // tokens
	events bool
	raw    bool
}

func (d *speechStream) write(b []byte) error {
	if !d.events {
		return d.x.writePieces(b)
	}
	data := append(d.x.data[:0], `{"type":"speech.audio.delta","audio":"`...)
	data = append(base64.StdEncoding.AppendEncode(data, b), `"}`...)
	d.x.data = data
	return d.x.event("", data)
}

func (d *speechStream) begin() error {
	if d.raw {
		return nil
	}
	return d.write(wavHeader(d.total * tokenSamples))
}

func (d *speechStream) text([]byte) error {
	d.done++
	return d.write(tone((d.done-1)*tokenSamples, tokenSamples))
}

func (d *speechStream) end(p *plan) error {
	if !d.events {
		return nil
	}
	return d.x.event("", marshal(map[string]any{
		"type":  "speech.audio.done",
		"usage": map[string]int{"input_tokens": p.usage.input, "output_tokens": p.usage.output, "total_tokens": p.usage.input + p.usage.output},
	}))
}

func (d *speechStream) fail(e apiError) error {
	if !d.events { // a file has no place for an error
		return d.x.cut(false)
	}
	return d.x.event("error", marshal(map[string]any{"type": "error", "error": e.object(OpenAI)}))
}

// form is a multipart request. Of its files only the first one's name and the total size are kept.
type form struct {
	values    map[string]string
	fileName  string
	fileBytes int
}

func (f *form) value(name string) string { return f.values[name] }

// ask is the form's part of an ask: its knobs stand in the fields prompt, safety_identifier and user.
func (f *form) ask() *ask {
	return &ask{
		model: f.value("model"), stream: f.value("stream") == "true", limit: unset, n: 1,
		orders: []string{f.value("prompt"), f.value("safety_identifier"), f.value("user")},
	}
}

func readForm(x *exchange, body []byte) (*form, error) {
	kind, params, err := mime.ParseMediaType(x.r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" {
		return nil, &requestError{"", "The body must be multipart/form-data."}
	}
	f := &form{values: map[string]string{}}
	r := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	for {
		part, err := r.NextPart()
		if errors.Is(err, io.EOF) {
			return f, nil
		}
		if err != nil {
			return nil, &requestError{"", "The multipart form is broken: " + err.Error()}
		}
		b, err := io.ReadAll(part)
		if err != nil {
			return nil, &requestError{"", "The multipart form is broken: " + err.Error()}
		}
		if part.FileName() == "" {
			f.values[part.FormName()] = string(b)
			continue
		}
		f.fileBytes += len(b)
		if f.fileName == "" {
			f.fileName = part.FileName()
		}
	}
}
