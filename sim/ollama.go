package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ollamaVersion is the version that the Ollama flavour reports.
const ollamaVersion = "0.12.6"

// ollamaRoutes adds Ollama's own API.
func (s *Server) ollamaRoutes(m *http.ServeMux) {
	m.Handle("GET /{$}", s.plain(func(x *exchange) error {
		return x.whole(http.StatusOK, "text/plain; charset=utf-8", []byte("Ollama is running"))
	}))
	m.Handle("GET /api/version", s.plain(func(x *exchange) error {
		return x.deliver("application/json", marshal(map[string]string{"version": ollamaVersion}))
	}))
	m.Handle("GET /api/tags", s.plain(func(x *exchange) error { return x.ollamaModels(x.s.Models(), false) }))
	m.Handle("GET /api/ps", s.plain(func(x *exchange) error { return x.ollamaModels(x.s.Loaded(), true) }))
	m.Handle("POST /api/show", s.aside(decodeOllamaShow))
	m.Handle("POST /api/pull", s.aside(decodeOllamaPull))
	m.Handle("DELETE /api/delete", s.aside(decodeOllamaDelete))
	m.Handle("POST /api/chat", s.infer(decodeOllamaChat))
	m.Handle("POST /api/generate", s.infer(decodeOllamaGenerate))
	m.Handle("POST /api/embed", s.infer(decodeOllamaEmbed))
	m.Handle("POST /api/embeddings", s.infer(decodeOllamaEmbed))
}

// ollamaTrusts reports whether an Ollama that listens on loopback takes the request: its Host must be local, and so
// must be its Origin if it has one. That is Ollama's defence against web pages that rebind their name.
func (x *exchange) ollamaTrusts() bool {
	addr, ok := x.s.Addr().(*net.TCPAddr)
	if !ok || !addr.IP.IsLoopback() {
		return true
	}
	if !localHost(x.r.Host) {
		return false
	}
	origin := x.r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && localHost(u.Host)
}

func localHost(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	if ip, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return ip.IsLoopback() || ip.IsPrivate() || ip.IsUnspecified()
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || strings.HasSuffix(host, ".local") || strings.HasSuffix(host, ".internal")
}

func ollamaDetails() map[string]any {
	return map[string]any{
		"parent_model": "", "format": "gguf", "family": "sim", "families": []string{"sim"}, "parameter_size": "8B", "quantization_level": "Q4_K_M",
	}
}

func (x *exchange) ollamaModels(models []string, loaded bool) error {
	list := []any{}
	for _, m := range models {
		sum := sha256.Sum256([]byte(m))
		o := map[string]any{
			"name": m, "model": m, "size": 4912898304, "digest": hex.EncodeToString(sum[:]), "details": ollamaDetails(),
		}
		if loaded {
			o["expires_at"], o["size_vram"], o["context_length"] = time.Now().Add(5*time.Minute), 4912898304, contextLength
		} else {
			o["modified_at"] = modelsCreated
		}
		list = append(list, o)
	}
	return x.deliver("application/json", marshal(map[string]any{"models": list}))
}

func decodeOllamaShow(_ *exchange, body []byte) (*ask, error) {
	var in struct {
		Model string `json:"model"`
		Name  string `json:"name"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	if in.Model == "" {
		in.Model = in.Name
	}
	return &ask{model: in.Model, n: 1, serve: func(x *exchange, _ *ask) error {
		return x.deliver("application/json", marshal(map[string]any{
			"license": "", "modelfile": "FROM sim", "parameters": "", "template": "{{ .Prompt }}", "details": ollamaDetails(),
			"model_info":   map[string]any{"general.architecture": "sim", "general.parameter_count": 8030261248, "sim.context_length": contextLength},
			"capabilities": []string{"completion", "tools", "thinking", "vision", "embedding"}, "modified_at": modelsCreated,
		}))
	}}, nil
}

type ollamaRequest struct {
	order
	Model    string          `json:"model"`
	Messages []chatMessage   `json:"messages"`
	Prompt   string          `json:"prompt"`
	System   string          `json:"system"`
	Stream   *bool           `json:"stream"`
	Format   json.RawMessage `json:"format"`
	Tools    []chatTool      `json:"tools"`
	Think    json.RawMessage `json:"think"`
	// KeepAlive is looked at only where there is no prompt.
	KeepAlive json.RawMessage `json:"keep_alive"`
	Options   struct {
		NumPredict *int `json:"num_predict"`
	} `json:"options"`
}

func readOllama(body []byte) (*ollamaRequest, *ask, error) {
	var in ollamaRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, nil, err
	}
	a := &ask{model: in.Model, stream: in.Stream == nil || *in.Stream, orders: in.list(), limit: unset, n: 1}
	if n := in.Options.NumPredict; n != nil && *n >= 0 {
		a.limit = *n
	}
	for _, t := range in.Tools {
		a.tools = append(a.tools, tool{t.Function.Name, t.Function.Parameters})
	}
	switch {
	case string(in.Format) == `"json"`:
		a.jsonObject = true
	case len(in.Format) > 0 && in.Format[0] == '{':
		a.schema = in.Format
	}
	return &in, a, nil
}

// thinks reports whether the request wants the model to think aloud.
func (in *ollamaRequest) thinks() bool {
	return len(in.Think) > 0 && !slices.Contains([]string{"false", "null"}, string(in.Think))
}

func decodeOllamaChat(_ *exchange, body []byte) (*ask, error) {
	in, a, err := readOllama(body)
	if err != nil {
		return nil, err
	}
	a.takeMessages(in.Messages)
	if len(in.Messages) == 0 {
		a.serve = func(x *exchange, a *ask) error { return serveOllamaLoad(x, a, in, true) }
		return a, nil
	}
	a.serve = func(x *exchange, a *ask) error { return serveOllama(x, a, in, true) }
	return a, nil
}

func decodeOllamaGenerate(_ *exchange, body []byte) (*ask, error) {
	in, a, err := readOllama(body)
	if err != nil {
		return nil, err
	}
	a.text, a.input = in.Prompt, countTokens(len(in.Prompt)+len(in.System))
	if in.Prompt == "" {
		a.serve = func(x *exchange, a *ask) error { return serveOllamaLoad(x, a, in, false) }
		return a, nil
	}
	a.serve = func(x *exchange, a *ask) error { return serveOllama(x, a, in, false) }
	return a, nil
}

// serveOllamaLoad answers a request without a prompt: it asks for the model to be loaded, or with keep_alive 0 to be
// unloaded. The simulator's memory is not touched beyond what any request does to it.
func serveOllamaLoad(x *exchange, a *ask, in *ollamaRequest, chat bool) error {
	if err := x.turn(); err != nil {
		return err
	}
	out := map[string]any{"model": a.model, "created_at": time.Now().UTC(), "done": true, "done_reason": "load"}
	if keep := string(in.KeepAlive); keep == "0" || keep == `"0"` || keep == `"0s"` {
		out["done_reason"] = "unload"
	}
	if chat {
		out["message"] = map[string]any{"role": "assistant", "content": ""}
	} else {
		out["response"] = ""
	}
	return x.deliver("application/json; charset=utf-8", marshal(out))
}

func serveOllama(x *exchange, a *ask, in *ollamaRequest, chat bool) error {
	if in.thinks() && x.k.reasoning == unset {
		x.k.reasoning = reasonTokens
	}
	p := x.planFor(a)
	d := &ollamaStream{x: x, a: a, chat: chat, started: time.Now()}
	if a.stream {
		return x.speak(&p, d, ndjsonType)
	}
	if err := x.compute(&p); err != nil {
		return err
	}
	out := d.final(&p)
	text := ""
	if len(p.calls) == 0 {
		text = x.fullText(&p)
	}
	if chat {
		message := map[string]any{"role": "assistant", "content": text}
		if p.reasoning > 0 {
			message["thinking"] = p.reasoningText()
		}
		if len(p.calls) > 0 {
			var calls []any
			for i, c := range p.calls {
				calls = append(calls, ollamaCall(i, c))
			}
			message["tool_calls"] = calls
		}
		out["message"] = message
	} else {
		out["response"] = text
		if p.reasoning > 0 {
			out["thinking"] = p.reasoningText()
		}
	}
	return x.deliver("application/json; charset=utf-8", marshal(out))
}

func ollamaCall(i int, c toolCall) map[string]any {
	return map[string]any{"id": c.id, "function": map[string]any{"index": i, "name": c.name, "arguments": json.RawMessage(c.arguments)}}
}

// ollamaStream is the dialect of /api/chat and /api/generate.
type ollamaStream struct {
	x       *exchange
	a       *ask
	chat    bool
	started time.Time
}

// send writes one line; open and shut stand around the text.
func (d *ollamaStream) send(open string, text []byte, shut string) error {
	b := appendString(append(d.x.data[:0], `{"model":`...), d.a.model)
	b = time.Now().UTC().AppendFormat(append(b, `,"created_at":"`...), time.RFC3339Nano)
	b = append(append(b, `",`...), open...)
	from := len(b)
	b = appendString(b, text)
	if bytes.ContainsAny(b[from:], "\u2028\u2029") { // Ollama is written in Go, whose encoder does this
		b = append(b[:from], goLines.Replace(string(b[from:]))...)
	}
	b = append(b, shut...)
	b = append(b, `,"done":false}`...)
	d.x.data = b
	return d.x.line(b)
}

var goLines = strings.NewReplacer("\u2028", `\u2028`, "\u2029", `\u2029`)

func (d *ollamaStream) begin() error { return nil }

func (d *ollamaStream) think(text []byte) error {
	if d.chat {
		return d.send(`"message":{"role":"assistant","content":"","thinking":`, text, "}")
	}
	return d.send(`"response":"","thinking":`, text, "")
}

func (d *ollamaStream) text(text []byte) error {
	if d.chat {
		return d.send(`"message":{"role":"assistant","content":`, text, "}")
	}
	return d.send(`"response":`, text, "")
}

func (d *ollamaStream) callStart(int, toolCall) error { return nil }

func (d *ollamaStream) callPart(int, string) error { return nil }

// callEnd writes the whole call: Ollama does not stream arguments.
func (d *ollamaStream) callEnd(i int, c toolCall) error {
	return d.x.line(marshal(map[string]any{
		"model": d.a.model, "created_at": time.Now().UTC(), "done": false,
		"message": map[string]any{"role": "assistant", "content": "", "tool_calls": []any{ollamaCall(i, c)}},
	}))
}

// final is the last line, without its message.
func (d *ollamaStream) final(p *plan) map[string]any {
	reason := "stop"
	if p.finish == "length" {
		reason = "length"
	}
	out := map[string]any{
		"model": d.a.model, "created_at": time.Now().UTC(), "done": true, "done_reason": reason,
		"total_duration": time.Since(d.started).Nanoseconds(), "load_duration": 1, "prompt_eval_duration": 1, "eval_duration": 1,
	}
	if d.x.k.usage != "never" {
		out["prompt_eval_count"], out["eval_count"] = p.usage.input, p.usage.output
	}
	if d.chat {
		out["message"] = map[string]any{"role": "assistant", "content": ""}
	} else {
		out["response"], out["context"] = "", []int{1, 2, 3}
	}
	return out
}

func (d *ollamaStream) end(p *plan) error {
	if err := d.x.line(marshal(d.final(p))); err != nil {
		return err
	}
	if d.x.k.trailing {
		return d.text([]byte(" after the end"))
	}
	return nil
}

func (d *ollamaStream) fail(apiError) error {
	return d.x.line([]byte(`{"error":` + strconv.Quote("an error was encountered while running the model: unexpected EOF") + `}`))
}

// decodeOllamaEmbed reads POST /api/embed and the older /api/embeddings.
func decodeOllamaEmbed(x *exchange, body []byte) (*ask, error) {
	var in struct {
		order
		Model      string  `json:"model"`
		Input      prompts `json:"input"`
		Prompt     string  `json:"prompt"`
		Dimensions *int    `json:"dimensions"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	dimensions, err := dimensionsOf(in.Dimensions)
	if err != nil {
		return nil, err
	}
	old := x.r.URL.Path == "/api/embeddings"
	if old {
		in.Input = prompts{in.Prompt}
	}
	a := &ask{model: in.Model, orders: in.list(), n: 1, input: countTokens(in.Input.bytes())}
	if len(in.Input) > 0 {
		a.text = in.Input[0]
	}
	a.serve = func(x *exchange, a *ask) error {
		p := single(a)
		if err := x.compute(&p); err != nil {
			return err
		}
		if old {
			return x.deliver("application/json; charset=utf-8", marshal(map[string]any{"embedding": vector(in.Prompt, dimensions)}))
		}
		list := [][]float32{}
		for _, text := range in.Input {
			list = append(list, vector(text, dimensions))
		}
		return x.deliver("application/json; charset=utf-8", marshal(map[string]any{
			"model": a.model, "embeddings": list, "total_duration": 1, "load_duration": 1, "prompt_eval_count": a.input,
		}))
	}
	return a, nil
}
