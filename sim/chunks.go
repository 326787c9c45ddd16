package sim

import "strconv"

// chunkStream is the dialect of streamed Chat Completions, and of the older Completions.
type chunkStream struct {
	x        *exchange
	a        *ask
	textOnly bool     // Completions: text, nothing else
	head     []byte   // of every chunk, up to the choices
	tail     []byte   // of every chunk, after them
	openings [][]byte // of each choice, up to what is new in it
	closing  string   // of each choice, after that
}

func newChunkStream(x *exchange, a *ask, p *plan, id string, created int64, textOnly bool) *chunkStream {
	object, opening, closing := "chat.completion.chunk", `,"delta":{`, `},"logprobs":null,"finish_reason":`
	switch {
	case textOnly:
		object, opening, closing = "text_completion", ",", `,"logprobs":null,"finish_reason":`
	case x.s.config.Flavour == Ollama: // it repeats the role
		opening = `,"delta":{"role":"assistant",`
	}
	c := &chunkStream{x: x, a: a, textOnly: textOnly, closing: closing}
	c.head = appendString([]byte(`{"id":`), id)
	c.head = appendString(append(c.head, `,"object":`...), object)
	c.head = strconv.AppendInt(append(c.head, `,"created":`...), created, 10)
	c.head = appendString(append(c.head, `,"model":`...), a.model)
	c.head = append(c.head, `,"system_fingerprint":"fp_sim","choices":[`...)
	c.tail = []byte(`]}`)
	switch {
	case x.k.usage == "always":
		c.tail = usageTail(p)
	case x.k.usage == "" && a.includeUsage:
		c.tail = []byte(`],"usage":null}`)
	}
	for i := range a.n {
		c.openings = append(c.openings, []byte(`{"index":`+strconv.Itoa(i)+opening))
	}
	return c
}

func usageTail(p *plan) []byte {
	return append(append([]byte(`],"usage":`), marshal(p.usage.chat())...), '}')
}

// chunk writes one chunk for every choice. add appends what is new in it.
func (c *chunkStream) chunk(add func(b []byte) []byte, finish string) error {
	for i := range c.a.n {
		b := append(append(c.x.data[:0], c.head...), c.openings[i]...)
		b = append(add(b), c.closing...)
		if finish == "" {
			b = append(b, "null}"...)
		} else {
			b = append(appendString(b, finish), '}')
		}
		b = append(b, c.tail...)
		c.x.data = b
		if err := c.x.event("", b); err != nil {
			return err
		}
	}
	return nil
}

func (c *chunkStream) begin() error {
	if f := c.x.s.config.Flavour; c.textOnly || f == Ollama || f == LlamaCPP { // neither of them announces the role
		return nil
	}
	return c.chunk(func(b []byte) []byte { return append(b, `"role":"assistant","content":"","refusal":null`...) }, "")
}

func (c *chunkStream) think(text []byte) error {
	if c.textOnly {
		return nil
	}
	return c.chunk(func(b []byte) []byte { return appendString(append(b, `"reasoning_content":`...), text) }, "")
}

func (c *chunkStream) text(text []byte) error {
	if c.textOnly {
		return c.chunk(func(b []byte) []byte { return appendString(append(b, `"text":`...), text) }, "")
	}
	return c.chunk(func(b []byte) []byte { return appendString(append(b, `"content":`...), text) }, "")
}

func (c *chunkStream) callStart(i int, call toolCall) error {
	return c.chunk(func(b []byte) []byte {
		b = strconv.AppendInt(append(b, `"tool_calls":[{"index":`...), int64(i), 10)
		b = appendString(append(b, `,"id":`...), call.id)
		b = appendString(append(b, `,"type":"function","function":{"name":`...), call.name)
		return append(b, `,"arguments":""}}]`...)
	}, "")
}

func (c *chunkStream) callPart(i int, part string) error {
	return c.chunk(func(b []byte) []byte {
		b = strconv.AppendInt(append(b, `"tool_calls":[{"index":`...), int64(i), 10)
		b = appendString(append(b, `,"function":{"arguments":`...), part)
		return append(b, `}}]`...)
	}, "")
}

func (c *chunkStream) callEnd(int, toolCall) error { return nil }

func (c *chunkStream) end(p *plan) error {
	asked, always := c.a.includeUsage, c.x.k.usage == "always"
	inFinish := c.x.k.usage == "finish"
	if c.x.s.config.Flavour == LlamaCPP && c.x.k.usage == "" { // asked or not
		inFinish = true
	}
	if inFinish {
		c.tail = usageTail(p)
		if c.x.s.config.Flavour == LlamaCPP {
			c.tail = append(c.tail[:len(c.tail)-1], `,"timings":{"prompt_n":`+strconv.Itoa(p.usage.input)+`,"predicted_n":`+strconv.Itoa(p.usage.output)+`}}`...)
		}
	}
	if err := c.finish(p.finish); err != nil {
		return err
	}
	if !inFinish && c.x.k.usage != "never" && (asked || always) {
		if err := c.x.event("", append(append(c.x.data[:0], c.head...), usageTail(p)...)); err != nil {
			return err
		}
	}
	if err := c.x.done(); err != nil {
		return err
	}
	if c.x.k.trailing {
		return c.text([]byte(" after the end"))
	}
	return nil
}

// finish writes the chunk with finish_reason, whose delta is empty.
func (c *chunkStream) finish(reason string) error {
	return c.chunk(func(b []byte) []byte {
		if c.textOnly {
			return append(b, `"text":""`...)
		}
		if c.x.s.config.Flavour == Ollama { // after the role
			return append(b, `"content":""`...)
		}
		return b
	}, reason)
}

func (c *chunkStream) fail(e apiError) error {
	if err := c.x.event("", marshal(map[string]any{"error": e.object(c.x.s.config.Flavour)})); err != nil {
		return err
	}
	if c.x.s.config.Flavour == VLLM {
		return c.x.done()
	}
	return nil
}

// die is how Ollama's stream ends when its engine dies: an empty delta without a model, then a clean end.
func (c *chunkStream) die() error {
	return c.x.event("", []byte(`{"id":"chatcmpl-0","object":"chat.completion.chunk","created":0,"model":"","system_fingerprint":"fp_sim","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`))
}
