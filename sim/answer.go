package sim

import (
	"strings"
	"time"
)

// toolCall is one call that the answer makes.
type toolCall struct {
	id, name, arguments string // arguments are a JSON document
}

// usage is what an answer consumed.
type usage struct {
	input, output, cached, reasoning int
}

// plan is one answer as it was decided on before its first byte.
type plan struct {
	script    script
	reasoning int // tokens
	calls     []toolCall
	finish    string // stop, length, tool_calls
	usage     usage
}

// planFor decides on the answer to a.
func (x *exchange) planFor(a *ask) plan {
	p := plan{finish: "stop"}
	switch {
	case x.k.reasoning != unset:
		p.reasoning = x.k.reasoning
	case strings.HasSuffix(a.model, "-reason"):
		p.reasoning = reasonTokens
	}
	p.calls = x.callsFor(a)
	if len(p.calls) > 0 {
		p.finish = "tool_calls"
	} else {
		p.script = x.scriptFor(a)
		if p.script.cut {
			p.finish = "length"
		}
	}
	p.usage = usage{input: a.input, output: p.tokens() * a.n, cached: a.input / 2, reasoning: p.reasoning * a.n}
	switch {
	case x.cached != unset:
		p.usage.cached = x.cached
	case x.k.cached != unset:
		p.usage.cached = min(x.k.cached, a.input)
	}
	return p
}

// tokens is how many the answer has, of all kinds.
func (p *plan) tokens() int {
	n := p.reasoning + p.script.total
	for _, c := range p.calls {
		n += len(argumentPieces(c))
	}
	return n
}

func (p *plan) reasoningText() string {
	var b []byte
	for i := range p.reasoning {
		b = appendReasoning(b, i)
	}
	return string(b)
}

func appendReasoning(b []byte, i int) []byte {
	if i == 0 {
		return append(b, "Let me think"...)
	}
	return append(b, "..."...)
}

// argumentPieces cuts a call's arguments into tokens.
func argumentPieces(c toolCall) []string {
	var out []string
	for s := c.arguments; s != ""; {
		piece := clip(s, schemaPiece)
		out, s = append(out, piece), s[len(piece):]
	}
	return out
}

// callsFor decides which tools are called: those that a knob or tool_choice asks for, or that the prompt names.
func (x *exchange) callsFor(a *ask) []toolCall {
	if len(a.tools) == 0 || a.toolMode == "none" || a.answered && x.k.tools == unset {
		return nil
	}
	var chosen []tool
	switch {
	case x.k.tools != unset:
		for i := range x.k.tools {
			chosen = append(chosen, a.tools[i%len(a.tools)])
		}
	case a.toolName != "":
		for _, t := range a.tools {
			if t.name == a.toolName {
				chosen = append(chosen, t)
			}
		}
	case a.toolMode == "required":
		chosen = a.tools[:1]
	default:
		for _, t := range a.tools {
			if strings.Contains(a.text, t.name) {
				chosen = append(chosen, t)
			}
		}
		if len(chosen) == 0 && strings.Contains(strings.ToLower(a.text), "tool") {
			chosen = a.tools[:1]
		}
	}
	calls := make([]toolCall, len(chosen))
	for i, t := range chosen {
		calls[i] = toolCall{id: x.id("call_"), name: t.name, arguments: exampleOf(t.parameters)}
	}
	return calls
}

// dialect writes one answer as a stream. Its methods are called in the order think, text, call, end; fail may come
// at any time and is the last.
type dialect interface {
	begin() error
	think(text []byte) error
	text(text []byte) error
	callStart(i int, c toolCall) error
	callPart(i int, part string) error
	callEnd(i int, c toolCall) error
	end(p *plan) error
	fail(e apiError) error
}

// speak streams the answer p in the dialect d.
func (x *exchange) speak(p *plan, d dialect, contentType string) error {
	if x.k.headers == "early" {
		x.writeHead(200, contentType, unset)
		if err := x.flush(); err != nil {
			return err
		}
	}
	if err := x.turn(); err != nil {
		return err
	}
	if x.k.fault == faultEmpty {
		return x.empty(contentType)
	}
	if x.k.headers != "early" {
		x.writeHead(200, contentType, unset)
	}
	if x.k.fault == faultErrorFirst {
		return x.strike(d)
	}
	if err := x.prologue(); err != nil {
		return err
	}
	if err := d.begin(); err != nil {
		return err
	}
	if err := x.body(p, d); err != nil {
		return err
	}
	if x.k.fault != "" { // the answer was shorter than `after`
		return x.strike(d)
	}
	if err := d.end(p); err != nil {
		return err
	}
	x.linger()
	return nil
}

// linger keeps a complete answer's body open, for the knob keep_open_after_done.
func (x *exchange) linger() {
	if x.k.keepOpen > 0 {
		_ = x.waitUntil(time.Now().Add(x.k.keepOpen)) // the client may go: it has everything
	}
}

// body streams all tokens, each at its time.
func (x *exchange) body(p *plan, d dialect) error {
	var piece []byte
	for i := range p.reasoning {
		if err := x.step(d); err != nil {
			return err
		}
		if err := d.think(appendReasoning(piece[:0], i)); err != nil {
			return err
		}
	}
	for i := range p.script.total {
		if err := x.step(d); err != nil {
			return err
		}
		piece = p.script.appendPiece(piece[:0], i)
		if i == 0 && x.k.bigEvent > 0 {
			piece = append(piece, strings.Repeat("x", x.k.bigEvent)...)
		}
		if err := d.text(piece); err != nil {
			return err
		}
	}
	for i, c := range p.calls {
		if err := x.speakCall(d, i, c); err != nil {
			return err
		}
	}
	return nil
}

func (x *exchange) speakCall(d dialect, i int, c toolCall) error {
	if err := d.callStart(i, c); err != nil {
		return err
	}
	for _, part := range argumentPieces(c) {
		if err := x.step(d); err != nil {
			return err
		}
		if err := d.callPart(i, part); err != nil {
			return err
		}
	}
	return d.callEnd(i, c)
}

// step waits until the next token is due; the faults of mid-answer strike here.
func (x *exchange) step(d dialect) error {
	if x.k.fault != "" && x.pieces >= x.k.after {
		return x.strike(d)
	}
	if err := x.pace(); err != nil {
		return err
	}
	x.pieces++
	return nil
}

// pace waits for the next token's time. Times are counted from the first one, so that a slow client is caught up
// with and a stream's speed does not drift.
func (x *exchange) pace() error {
	if x.k.hangAfter != unset && x.pieces >= x.k.hangAfter {
		<-x.ctx.Done()
		return x.ctx.Err()
	}
	if x.k.stall > 0 && x.pieces >= x.k.stallAfter && !x.stalled {
		x.stalled = true
		if err := x.waitUntil(time.Now().Add(x.k.stall)); err != nil {
			return err
		}
		x.begun = x.begun.Add(x.k.stall)
	}
	if x.k.gap == 0 {
		return x.ctx.Err()
	}
	return x.waitUntil(x.begun.Add(time.Duration(x.pieces) * x.k.gap))
}

// death is the fault that the flavour's own death is.
func (x *exchange) death(d dialect) (string, error) {
	switch x.s.config.Flavour {
	case VLLM, SGLang:
		return faultErrorMid, nil
	case LlamaCPP:
		return faultMidReset, nil
	case Ollama:
		if _, ok := d.(*ollamaStream); ok {
			return faultErrorMid, nil
		}
		if c, ok := d.(*chunkStream); ok {
			return faultMidClose, c.die()
		}
		return faultMidClose, nil
	}
	return faultMidAbort, nil
}

// strike does the ordered fault inside a stream.
func (x *exchange) strike(d dialect) error {
	fault := x.k.fault
	if fault == faultDie {
		var err error
		if fault, err = x.death(d); err != nil {
			return err
		}
	}
	switch fault {
	case faultMidReset:
		return x.cut(true)
	case faultMidAbort:
		return x.cut(false)
	case faultErrorFirst, faultErrorMid:
		if err := d.fail(engineDied()); err != nil {
			return err
		}
	case faultMalformed:
		if err := x.malformed(d); err != nil {
			return err
		}
	case faultLlamaCPP:
		if err := x.write([]byte("error: {\"code\":400,\"message\":\"the request exceeds the available context size\",\"type\":\"invalid_request_error\"}\n\ndata: [DONE]\n\n")); err != nil {
			return err
		}
	}
	if err := x.flush(); err != nil {
		return err
	}
	return errFault
}

// malformed writes a piece of the stream that is no JSON, with the borders that a piece has.
func (x *exchange) malformed(d dialect) error {
	const half = `{"id":"sim","choices":[{"delta":{"content":`
	switch d.(type) {
	case *ollamaStream:
		return x.line([]byte(half))
	case *messageStream:
		return x.event("content_block_delta", []byte(half))
	}
	return x.event("", []byte(half))
}

// empty is the fault empty200.
func (x *exchange) empty(contentType string) error {
	if err := x.whole(200, contentType, nil); err != nil {
		return err
	}
	return errFault
}

// compute passes the time that a whole answer takes; the client sees nothing meanwhile.
func (x *exchange) compute(p *plan) error {
	if err := x.turn(); err != nil {
		return err
	}
	if x.k.gap == 0 && x.k.stall == 0 && x.k.hangAfter == unset {
		x.pieces = p.tokens()
		return x.ctx.Err()
	}
	for range p.tokens() {
		if err := x.pace(); err != nil {
			return err
		}
		x.pieces++
	}
	return nil
}

// deliver writes a whole answer, or what the ordered fault leaves of it.
func (x *exchange) deliver(contentType string, body []byte) error {
	switch x.k.fault {
	case "":
		return x.whole(200, contentType, body)
	case faultEmpty:
		return x.empty(contentType)
	case faultErrorFirst, faultErrorMid, faultDie:
		return x.refuse(engineDied())
	case faultMalformed:
		if err := x.whole(200, contentType, body[:len(body)/2]); err != nil {
			return err
		}
		return errFault
	case faultLlamaCPP:
		return x.refuse(badRequest("", "the request exceeds the available context size"))
	}
	x.writeHead(200, contentType, unset)
	if err := x.write(body[:len(body)/2]); err != nil {
		return err
	}
	if err := x.flush(); err != nil {
		return err
	}
	switch x.k.fault {
	case faultMidReset:
		return x.cut(true)
	case faultMidAbort:
		return x.cut(false)
	}
	return errFault
}

// fullText is the text of a whole answer.
func (x *exchange) fullText(p *plan) string {
	text := p.script.whole()
	if pad := x.k.bigResponse - len(text); pad > 0 {
		text += strings.Repeat("x", pad)
	}
	return text
}
