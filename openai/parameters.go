package openai

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ParameterDefault is a member of a request's object that is put in where the client gave none, or null.
type ParameterDefault struct {
	Name  string // see CheckParameter
	Value string // JSON
}

// ParameterCap is the greatest value of a numeric member.
type ParameterCap struct {
	Name string // see CheckParameter
	Max  float64
}

// MaxTokensParameter is the one name under which defaults and caps speak of the answer's length in tokens. It stands
// for each name that operations and engines have for it.
const MaxTokensParameter = "max_tokens"

// ParameterIsLength reports whether a parameter is one of the names of the answer's length in tokens.
func ParameterIsLength(name string) bool { return slices.Contains(lengthNames[:], name) }

// ChoicesParameter is the one name under which caps speak of the number of answers. It stands for each name that
// engines have for it, and bounds best_of as well.
const ChoicesParameter = "n"

// ParameterIsChoices reports whether a parameter is another name of the number of answers.
func ParameterIsChoices(name string) bool {
	return name == ChoicesParameter || name == fieldEngineChoices.String() || name == fieldSequences.String()
}

// unlimited are the parameters of which a negative number means "all" or "no limit" to engines; top_k has 0 for that too.
var unlimited = [...]string{
	"top_k", "keep_alive", "repeat_last_n", "num_keep", "num_ctx", "logprobs", "top_logprobs", "prompt_logprobs",
	"thinking_token_budget", "thinking_budget_tokens", "reasoning_budget_tokens", "t_max_predict_ms",
}

// MaxParameters is how many defaults and caps a route may have: each costs a comparison per member of a request.
const MaxParameters = 64

// maxParameterName is the longest name of a parameter, in bytes.
const maxParameterName = 64

// CheckParameter says why a name can't be one of a default or a cap; it returns nil for one that can. Only members of
// the request's object itself are parameters, not what lies in them.
func CheckParameter(name string) error {
	switch {
	case name == "" || len(name) > maxParameterName:
		return fmt.Errorf("a parameter's name must be 1 to %d bytes long", maxParameterName)
	case name == "model" || name == "stream" || name == "stream_options":
		return fmt.Errorf("%s is set by the gateway", name)
	case strings.Contains(name, "."):
		return fmt.Errorf("only top-level parameters can be set, not %q", name)
	}
	for _, c := range []byte(name) {
		if c|0x20-'a' > 25 && c-'0' > 9 && c != '_' && c != '-' {
			return fmt.Errorf("a parameter's name must consist of letters, digits, '_' and '-'")
		}
	}
	return nil
}

// Edits are what has to be changed in one request's parameters. The zero value is nothing. They are immutable, belong
// to the body that they were made for and keep parts of neither.
type Edits struct{ splices []splice }

// Grows returns by how many bytes at most a body becomes longer.
func (e Edits) Grows() (n int) {
	for i := range e.splices {
		n += len(e.splices[i].with) + 1
	}
	return n
}

// Plan finds what defaults and caps change in the request, for [RewriteSpec]. It scans the body's members once, and
// does nothing for a route that has neither or an envelope that was not parsed (a form's).
//
// A default is put in where its parameter is absent or null. A cap lowers what is above it, and what means "no limit" to
// engines. A default above its cap is lowered like a client's value.
//
// A cap of the answer's length (MaxTokensParameter) holds by whatever name, where the operation has such a thing. What is
// no whole number of at least 1 is no length, and becomes the cap. The request leaves with the length under one name for
// certain: the default's, or else the operation's. Where the client gave it under another that the operation knows, it is
// renamed, as there are engines that know but one; where the client gave none, the default or the cap is put in.
//
// A member that a default or a cap is for must stand there once, in its exact spelling and without escapes, and be a
// number where there is a cap: decoders differ in what they make of anything else. The error for that is an *Error with
// status 400 whose Param is the parameter. Names that CheckParameter refuses, a default that is no JSON, and one that is
// no number although there is a cap, are the caller's fault: status 500.
func (e *Envelope) Plan(body []byte, op OpID, defaults []ParameterDefault, caps []ParameterCap) (Edits, error) {
	if len(defaults)+len(caps) == 0 || e.open == 0 {
		return Edits{}, nil
	}
	operation, _ := op.Operation()
	var splices []splice
	var err *Error
	switch {
	case operation.Options:
		splices, err = e.planOptions(body, operation, defaults, caps)
	case ollamaOps.Has(op): // embeddings have options too, and no length
		splices, err = e.planOptions(body, operation,
			slices.DeleteFunc(slices.Clone(defaults), func(d ParameterDefault) bool { return ParameterIsLength(d.Name) }),
			slices.DeleteFunc(slices.Clone(caps), func(c ParameterCap) bool { return ParameterIsLength(c.Name) }))
	default:
		splices, err = e.planMembers(body, operation, defaults, caps)
	}
	if err != nil {
		return Edits{}, err
	}
	return Edits{splices}, nil
}

// planMembers plans the members of one object, of which e knows where it begins.
func (e *Envelope) planMembers(body []byte, op Operation, defaults []ParameterDefault, caps []ParameterCap) ([]splice, *Error) {
	p := planner{e: e, body: body, op: op}
	var room [12]parameter
	p.list = room[:0]
	if err := p.collect(defaults, caps); err != nil {
		return nil, err
	}
	if err := p.scan(); err != nil {
		return nil, err
	}
	for i := range p.list {
		if err := p.settle(&p.list[i]); err != nil {
			return nil, err
		}
	}
	if err := p.settleLength(); err != nil {
		return nil, err
	}
	if err := p.lowerThoughts(); err != nil {
		return nil, err
	}
	if p.length.capped && !op.Options && op.MaxTokens != "" { // there are servers that read options on all paths
		if err := p.lower(&parameter{name: optionsLength, length: true, whole: true, max: p.length.max, capped: true, at: e.optionAt}); err != nil {
			return nil, err
		}
	}
	return p.splices, nil
}

// parameter is one that a default or a cap is for.
type parameter struct {
	name   string
	length bool   // one of lengthNames; the bounds are the planner's
	whole  bool   // a whole number, by its nature
	value  string // the default, or empty
	max    float64
	capped bool
	key    span // the inside of the client's name
	at     span // the client's value; zero: absent
}

// given reports whether the client gave the parameter, other than null.
func (at *parameter) given(body []byte) bool { return at.at != (span{}) && body[at.at.start] != 'n' }

// bound gives the parameter a cap, the lower one if it has one.
func (at *parameter) bound(most float64) {
	if !at.capped || most < at.max {
		at.max = most
	}
	at.capped = true
}

type planner struct {
	e       *Envelope
	op      Operation
	body    []byte
	list    []parameter
	length  parameter // what is said of the answer's length; its name is the default's, or empty
	splices []splice
}

// collect makes the list of what to look for.
func (p *planner) collect(defaults []ParameterDefault, caps []ParameterCap) *Error {
	for _, d := range defaults {
		if CheckParameter(d.Name) != nil || !wellFormed([]byte(d.Value)) {
			return Internal()
		}
		at := p.entry(d.Name)
		at.name, at.value = d.Name, d.Value
	}
	for _, c := range caps {
		if CheckParameter(c.Name) != nil || math.IsNaN(c.Max) || math.IsInf(c.Max, 0) {
			return Internal()
		}
		p.entry(c.Name).bound(c.Max)
		if c.Name == ChoicesParameter {
			for f := fieldChoices; f <= fieldSequences; f++ {
				at := p.entry(f.String())
				at.whole = true
				at.bound(c.Max)
			}
		}
	}
	if (p.length.capped || p.length.value != "") && p.op.MaxTokens != "" {
		for _, name := range lengthNames {
			p.list = append(p.list, parameter{name: name, length: true, whole: true, max: p.length.max, capped: p.length.capped})
		}
	}
	if p.capsThoughts() {
		for _, name := range thoughtsMembers {
			p.entry(name)
		}
	}
	return nil
}

// entry returns the parameter of a name, and makes it where there is none.
func (p *planner) entry(name string) *parameter {
	if ParameterIsLength(name) {
		return &p.length
	}
	for i := range p.list {
		if p.list[i].name == name {
			return &p.list[i]
		}
	}
	p.list = append(p.list, parameter{name: name})
	return &p.list[len(p.list)-1]
}

// scan notes where the client's values stand.
func (p *planner) scan() *Error {
	if p.e.empty {
		return nil
	}
	s := scanner{b: p.body}
	i := s.space(p.e.open)
	for done := false; !done; {
		start := i
		end, val := s.key(i)
		if val < 0 {
			return Internal() // not the body of this envelope
		}
		at := (*parameter)(nil)
		for k := range p.list {
			exact, match := matches(p.body[start+1:end-1], s.escaped, p.list[k].name)
			if !match {
				continue
			}
			if at = &p.list[k]; !exact {
				return InvalidRequest(at.name, fmt.Sprintf("%s must be spelled exactly like this", at.name))
			}
			if at.at != (span{}) {
				return InvalidRequest(at.name, fmt.Sprintf("%s appears more than once", at.name))
			}
			break
		}
		if i = s.value(val, 1); i < 0 {
			return Internal()
		}
		if at != nil {
			at.key, at.at = span{start + 1, end - 1}, span{val, i}
		}
		if i, done = s.next(i, '}'); i < 0 {
			return Internal()
		}
	}
	return nil
}

// settle decides about one parameter, and for a length about what the client gave.
func (p *planner) settle(at *parameter) *Error {
	switch {
	case at.given(p.body):
		return p.lower(at)
	case at.length || at.value == "":
		return nil
	}
	value, err := at.lowered()
	if err != nil {
		return err
	}
	p.put(at.name, at.at, value)
	return nil
}

// lower puts the cap in the place of a client's value that is above it. A whole number that is written as 1e2 or 100.0 is
// written anew: some readers take it, some don't.
func (p *planner) lower(at *parameter) *Error {
	if !at.capped || !at.given(p.body) {
		return nil
	}
	raw := p.body[at.at.start:at.at.end]
	v, ok := number(raw)
	if !ok {
		return InvalidRequest(at.name, fmt.Sprintf("%s must be a number", at.name))
	}
	if most := at.most(v); most != v || at.whole && !plainDigits(raw) {
		p.splices = append(p.splices, splice{span: at.at, with: appendNumber(nil, most)})
	}
	return nil
}

// most returns what becomes of a value under the cap.
func (at *parameter) most(v float64) float64 {
	switch {
	case v > at.max, at.length && !isLength(v):
		return at.max
	case v < 0 && slices.Contains(unlimited[:], at.name), v == 0 && at.name == "top_k":
		return at.max
	}
	return v
}

func plainDigits(raw []byte) bool { return digits(raw, 0) == len(raw) }

// lowered returns the default, or the cap if the default is above it.
func (at *parameter) lowered() ([]byte, *Error) {
	if !at.capped {
		return []byte(at.value), nil
	}
	v, ok := number([]byte(at.value))
	if !ok {
		return nil, Internal()
	}
	if most := at.most(v); most != v {
		return appendNumber(nil, most), nil
	}
	return []byte(at.value), nil
}

// settleLength sees to it that a capped length is there under the name that counts, and puts a default in where the client
// gave no length that the operation knows. null of the client's own is replaced.
func (p *planner) settleLength() *Error {
	if p.op.MaxTokens == "" || !p.length.capped && p.length.value == "" {
		return nil
	}
	name := p.op.MaxTokens
	if p.op.knowsLength(p.length.name) {
		name = p.length.name
	}
	var own, other *parameter
	for i := range p.list {
		switch at := &p.list[i]; {
		case !at.length:
		case at.name == name:
			own = at
		case p.op.knowsLength(at.name) && at.given(p.body):
			other = at
		}
	}
	switch {
	case own.given(p.body):
		return nil
	case other != nil && p.length.capped:
		p.rename(other, own)
		return nil
	case other != nil:
		return nil
	}
	value, err := p.lengthValue()
	if err != nil {
		return err
	}
	p.put(name, own.at, value)
	return nil
}

// lengthValue is the length where the client gave none: the default, or else the cap.
func (p *planner) lengthValue() ([]byte, *Error) {
	if n := p.e.optionLength; p.op.Options && n > 0 { // the client's, in the other place
		return appendNumber(nil, min(float64(n), p.length.max)), nil
	}
	if p.length.value == "" {
		return appendNumber(nil, p.length.max), nil
	}
	p.length.length = true
	return p.length.lowered()
}

// rename gives the value of one name of the length to another, of which the client gave nothing.
func (p *planner) rename(from, to *parameter) {
	if to.at == (span{}) {
		p.splices = append(p.splices, splice{span: from.key, with: []byte(to.name)})
		return
	}
	value := p.body[from.at.start:from.at.end]
	for i := range p.splices {
		if s := &p.splices[i]; s.span == from.at { // it was lowered
			value, s.with = s.with, []byte("null")
			p.put(to.name, to.at, value)
			return
		}
	}
	p.splices = append(p.splices, splice{span: from.at, with: []byte("null")})
	p.put(to.name, to.at, value)
}

// put sets a member in the place of the client's null, or as a new one.
func (p *planner) put(name string, null span, value []byte) {
	relayed := p.op.Options && name == MaxTokensParameter
	if null != (span{}) {
		p.splices = append(p.splices, splice{span: null, with: value, relayed: relayed})
		return
	}
	member := append(append(make([]byte, 0, len(name)+len(value)+3), '"'), name...)
	s := p.e.insert(append(append(member, '"', ':'), value...))
	s.relayed = relayed
	p.splices = append(p.splices, s)
}

// maxNumber is the longest number that is compared, in bytes: no honest one is near it.
const maxNumber = 64

// number returns what a scanned value is as encoding/json reads it, infinite where it is beyond a float64; ok is false
// for what is no number.
func number(raw []byte) (v float64, ok bool) {
	if len(raw) > maxNumber || raw[0] != '-' && raw[0]-'0' > 9 {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	return v, err == nil || math.IsInf(v, 0)
}

// appendNumber appends a finite number as JSON, a whole one without an exponent.
func appendNumber(dst []byte, v float64) []byte {
	if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		return strconv.AppendInt(dst, int64(v), 10)
	}
	return strconv.AppendFloat(dst, v, 'g', -1, 64)
}
