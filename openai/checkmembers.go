package openai

import (
	"fmt"
	"slices"
	"strings"

	"iop/execution/safetext"
)

// Parameters are what a route does to the parameters of a request.
type Parameters struct {
	// Defaults are put in where the client gave none.
	Defaults []ParameterDefault
	// Caps bound what the client gave. A cap of max_tokens holds for each name that operations have for it, and is put in
	// where the client gave none.
	Caps []ParameterCap
	// Allow are members that are refused otherwise: those of SteeringMembers, and of a request with limits those that are not
	// in KnownMembers.
	Allow []string
	// Refuse are members of the request, or of Ollama's options, that it may not have although they are known.
	Refuse []string
}

// permits reports whether the operator named a member in the route: to allow it, or as a parameter of the request or of Ollama's
// options.
func (p *Parameters) permits(name, within string) bool {
	if within != "" && within != optionsMember+"." {
		return slices.Contains(p.Allow, name)
	}
	return slices.Contains(p.Allow, name) ||
		slices.ContainsFunc(p.Defaults, func(d ParameterDefault) bool { return d.Name == name }) ||
		slices.ContainsFunc(p.Caps, func(c ParameterCap) bool { return c.Name == name })
}

// CheckMembers refuses a member that the route refuses, and with limited also each one that neither the operation is known to
// define nor the route allows: who is limited could get round the limits with it. A known member is meant by its exact name
// alone, as some providers take others for it, and whatever its value: null can be an engine's word for "no limit". Members of
// Ollama's options, of stream_options, chat_template_kwargs and metadata are checked alike, and these may be objects or null
// alone: LiteLLM reads a string of JSON as metadata. body must be the one that e was parsed from, and CheckSteering must have
// passed. The error is an *Error with status 400 whose Param is the member.
func (e *Envelope) CheckMembers(body []byte, op OpID, p *Parameters, limited bool) error {
	if len(p.Refuse) == 0 && (!limited || e.known.Has(op) && !e.oddNested) || e.empty {
		return nil
	}
	operation, _ := op.Operation()
	c := memberCheck{scanner: scanner{b: body}, op: &operation, p: p}
	if err := c.object(e.open, c.root); err != nil {
		return err
	}
	return nil
}

// memberCheck walks the members of a request that was scanned before.
type memberCheck struct {
	scanner
	op *Operation
	p  *Parameters
}

// object checks the members of the object whose opening brace stands before i.
func (c *memberCheck) object(i int, check func(name []byte, val int) *Error) *Error {
	if i = c.space(i); i < len(c.b) && c.b[i] == '}' {
		return nil
	}
	for done := false; !done; {
		start := i
		end, val := c.key(i)
		if val < 0 {
			return Internal() // not the body of this envelope
		}
		if err := check(c.b[start+1:end-1], val); err != nil {
			return err
		}
		if i = c.value(val, 1); i < 0 {
			return Internal()
		}
		if i, done = c.next(i, '}'); i < 0 {
			return Internal()
		}
	}
	return nil
}

// root checks a member of the request.
func (c *memberCheck) root(name []byte, val int) *Error {
	if err := c.p.checkMember(string(name), "", knownMembers[string(name)].ops.Has(c.op.ID), c.op); err != nil {
		return err
	}
	known := nestedMembers[string(name)]
	switch {
	case known == nil || c.b[val] == 'n':
	case c.b[val] != '{':
		return memberError(string(name), "must be an object: this API key or model has limits, and a provider could read members in another value.")
	default:
		within := string(name) + "."
		return c.object(val+1, func(name []byte, _ int) *Error {
			return c.p.checkMember(string(name), within, known.knows(name), c.op)
		})
	}
	return nil
}

// checkMember checks a member by its name as it is written; within stands before it in errors.
func (p *Parameters) checkMember(name, within string, known bool, op *Operation) *Error {
	switch {
	case slices.Contains(p.Refuse, name):
		return memberError(within+name, "is not forwarded: the operator refuses it for this model.")
	case known, p.permits(name, within), within == "" && isSteering(name): // CheckSteering has decided about it
		return nil
	}
	return memberError(within+name, fmt.Sprintf("is not forwarded: this API key or model has limits, and the gateway does not know this "+
		"member for %s (names must be exact). The operator can allow it with parameters.allow of the route.", op.Path))
}

// isSteering reports whether a name is one of steeringNames in its exact spelling, or begins as one that ends with '*' does.
func isSteering(name string) bool {
	f, exact := fieldOf([]byte(name), false)
	if f < fieldSteering {
		return false
	}
	prefix, isPrefix := strings.CutSuffix(f.String(), "*")
	return exact || isPrefix && strings.HasPrefix(name, prefix)
}

func memberError(name, fault string) *Error {
	name = safetext.Escape(safetext.MaskKeys(name[:min(len(name), maxModelMember)]))
	e := InvalidRequest(name, name+" "+fault)
	e.Code = "unsupported_parameter"
	return e
}

// CheckMembers is [Envelope.CheckMembers] for a form, whose fields it knows by their names before the brackets.
func (f *Form) CheckMembers(op OpID, p *Parameters, limited bool) error {
	if !limited && len(p.Refuse) == 0 {
		return nil
	}
	operation, _ := op.Operation()
	for i := range f.parts {
		base, _ := cutIndices(f.parts[i].name)
		if err := p.checkMember(base, "", knownMembers[base].ops.Has(op), &operation); err != nil {
			return err
		}
	}
	return nil
}
