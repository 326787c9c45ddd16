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

// lengthNames are the names of the answer's length. Then comes an engine's own, which goes before max_tokens there: left
// alone it would undo a cap. The last is that of Ollama's options.
var lengthNames = [...]string{MaxTokensParameter, "max_completion_tokens", "max_output_tokens", "n_predict", optionLength}

// ParameterIsLength reports whether a parameter is one of the names of the answer's length in tokens.
func ParameterIsLength(name string) bool { return slices.Contains(lengthNames[:], name) }

// MaxParameters is how many defaults and caps a route may have: each costs a comparison per member of a request.
const MaxParameters = 64

// maxParameterName is the longest name of a parameter, in bytes.
const maxParameterName = 64

// CheckParameter says why a name can't be one of a default or a cap; it returns nil for one that can. Only members of
// the request's object itself are parameters, not what lies in them.
func CheckParameter(name string) error {
	switch {
	case name == "" || len(name) > maxParameterName:
		return fmt.Errorf("a parameter's name must have 1 to %d bytes", maxParameterName)
	case name == "model" || name == "stream" || name == "stream_options":
		return fmt.Errorf("%s is the gateway's to set", name)
	case strings.Contains(name, "."):
		return fmt.Errorf("only top-level parameters can be set, not %q", name)
	}
	for _, c := range []byte(name) {
		if c|0x20-'a' > 25 && c-'0' > 9 && c != '_' && c != '-' {
			return fmt.Errorf("a parameter's name has only letters, digits, '_' and '-'")
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
// A default is put in where its parameter is absent or null. A cap lowers what is above it and never raises. Of the
// answer's length (MaxTokensParameter) a cap is put in too, where the operation has such a thing and the client gave
// none; a negative length, which engines take for "no limit", is none. A default above its cap is lowered like a
// client's value.
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
	if operation.Options {
		splices, err = e.planOptions(body, operation, defaults, caps)
	} else {
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
	var room [8]parameter
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
	return p.splices, nil
}

// parameter is one that a default or a cap is for.
type parameter struct {
	name   string
	length bool   // one of lengthNames; the bounds are the planner's
	value  string // the default, or empty
	max    float64
	capped bool
	at     span // the client's value; zero: absent
}

type planner struct {
	e       *Envelope
	op      Operation
	body    []byte
	list    []parameter
	length  parameter // what is said of the answer's length; its name is the default's, or empty
	given   bool      // the client gave a length that the operation knows
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
		at := p.entry(c.Name)
		at.max, at.capped = c.Max, true
	}
	if (p.length.capped || p.length.value != "") && p.op.MaxTokens != "" {
		for _, name := range lengthNames {
			p.list = append(p.list, parameter{name: name, length: true, max: p.length.max, capped: p.length.capped})
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
				return InvalidRequest(at.name, fmt.Sprintf("%s must be spelled exactly so", at.name))
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
			at.at = span{val, i}
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
	case at.at != (span{}) && p.body[at.at.start] != 'n':
		if at.length && p.knows(at.name) {
			p.given = true
		}
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

// lower puts the cap in the place of a client's value that is above it.
func (p *planner) lower(at *parameter) *Error {
	if !at.capped {
		return nil
	}
	v, ok := number(p.body[at.at.start:at.at.end])
	if !ok {
		return InvalidRequest(at.name, fmt.Sprintf("%s must be a number", at.name))
	}
	if v > at.max || at.length && v < 0 {
		p.splices = append(p.splices, splice{span: at.at, with: appendNumber(nil, at.max)})
	}
	return nil
}

// lowered returns the default, or the cap if the default is above it.
func (at *parameter) lowered() ([]byte, *Error) {
	if !at.capped {
		return []byte(at.value), nil
	}
	v, ok := number([]byte(at.value))
	if !ok {
		return nil, Internal()
	}
	if v > at.max || at.length && v < 0 {
		return appendNumber(nil, at.max), nil
	}
	return []byte(at.value), nil
}

// settleLength puts in the answer's length where the client gave none that the operation knows. It goes where the client
// wrote null, if somewhere.
func (p *planner) settleLength() *Error {
	if p.op.MaxTokens == "" || p.given || !p.length.capped && p.length.value == "" {
		return nil
	}
	p.length.length = true
	value := appendNumber(nil, p.length.max)
	if p.length.value != "" {
		var err *Error
		if value, err = p.length.lowered(); err != nil {
			return err
		}
	}
	name, at := p.op.MaxTokens, span{}
	if p.knows(p.length.name) {
		name = p.length.name
	}
	for _, other := range p.list {
		if other.length && other.at != (span{}) && p.knows(other.name) && (at == span{} || other.name == name) {
			at = other.at
		}
	}
	p.put(name, at, value)
	return nil
}

// knows reports whether a name of the answer's length means something to the operation.
func (p *planner) knows(name string) bool {
	return name == p.op.MaxTokens || name == "max_completion_tokens" && p.op.ID == OpChatCompletions
}

// put sets a member in the place of the client's null, or as a new one.
func (p *planner) put(name string, null span, value []byte) {
	if null != (span{}) {
		p.splices = append(p.splices, splice{span: null, with: value})
		return
	}
	member := append(append(make([]byte, 0, len(name)+len(value)+3), '"'), name...)
	p.splices = append(p.splices, p.e.insert(append(append(member, '"', ':'), value...)))
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
