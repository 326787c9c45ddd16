package openai

import "slices"

// RewriteSpec says what a request must hold when it leaves the Edge.
type RewriteSpec struct {
	// Model is the name that the provider knows, already checked; empty keeps what the client wrote.
	Model string
	// IncludeUsage asks the provider for usage in its stream. It has no effect on a request that does not stream:
	// there the field would be an error.
	IncludeUsage bool
	// Edits are what a route does to the parameters, from [Envelope.Plan] with the same body; the zero value is nothing.
	Edits Edits
	// Normalized leaves out what is of use to other readers than the operation's own.
	Normalized bool
}

// splice is one replacement in the body.
type splice struct {
	span
	with    []byte
	member  bool // with is a new member of the root, without a comma
	relayed bool // not for a normalized run
}

const (
	usageMember  = `"include_usage":true`
	usageOptions = `{` + usageMember + `}`
)

// Rewrite returns the body with the spec applied: a few bytes are put in place, all others stay as the client wrote
// them. It returns body itself when nothing changes, else a new slice. The body must be the one that e was parsed
// from; an envelope that was not parsed (a form's) changes nothing.
func (e Envelope) Rewrite(body []byte, spec RewriteSpec) []byte {
	var room [4]splice
	edits := e.edits(room[:0], body, spec)
	if len(edits) == 0 {
		return body
	}
	return e.splice(body, edits)
}

// RewriteParts is Rewrite for a body that is too large to be copied: the parts that it returns, one behind the other, are
// what Rewrite returns. Most of them are parts of body itself.
func (e Envelope) RewriteParts(body []byte, spec RewriteSpec) [][]byte {
	var room [4]splice
	edits := e.edits(room[:0], body, spec)
	parts := make([][]byte, 0, 2*len(edits)+1)
	from := 0
	for i := range edits {
		s := &edits[i]
		if s.start > from {
			parts = append(parts, body[from:s.start:s.start])
		}
		with := s.with
		if e.followed(edits, i) {
			with = append(slices.Clip(with), ',')
		}
		if len(with) > 0 {
			parts = append(parts, with)
		}
		from = s.end
	}
	if from < len(body) {
		parts = append(parts, body[from:])
	}
	return parts
}

// edits appends what the spec changes, in order.
func (e *Envelope) edits(edits []splice, body []byte, spec RewriteSpec) []splice {
	if e.open == 0 {
		return edits
	}
	if spec.Model != "" {
		edits = e.spliceModel(edits, body, spec.Model)
	}
	if spec.IncludeUsage && e.Stream {
		edits = e.spliceUsage(edits)
	}
	for _, s := range spec.Edits.splices {
		if !s.relayed || !spec.Normalized {
			edits = append(edits, s)
		}
	}
	slices.SortStableFunc(edits, func(a, b splice) int { return a.start - b.start })
	return edits
}

// followed reports whether the i-th edit is a member that another one follows.
func (e *Envelope) followed(edits []splice, i int) bool {
	return edits[i].member && (!e.empty || i+1 < len(edits))
}

// splice applies edits that are in order and do not overlap. New members come first among them: they stand right
// behind the opening brace.
func (e *Envelope) splice(body []byte, edits []splice) []byte {
	size := len(body)
	for i := range edits {
		size += len(edits[i].with) + 1 - (edits[i].end - edits[i].start)
	}
	out := make([]byte, 0, size)
	from := 0
	for i := range edits {
		s := &edits[i]
		out = append(append(out, body[from:s.start]...), s.with...)
		from = s.end
		if e.followed(edits, i) {
			out = append(out, ',')
		}
	}
	return append(out, body[from:]...)
}

func (e *Envelope) spliceModel(edits []splice, body []byte, model string) []splice {
	with := appendString(make([]byte, 0, len(model)+16), model)
	if e.model == (span{}) {
		return append(edits, e.insert(append([]byte(`"model":`), with...)))
	}
	if string(body[e.model.start:e.model.end]) == string(with) {
		return edits
	}
	return append(edits, splice{span: e.model, with: with})
}

func (e *Envelope) spliceUsage(edits []splice) []splice {
	inside := span{e.optionsOpen, e.optionsOpen}
	switch {
	case e.IncludeUsage:
		return edits
	case e.includeUsage != span{}:
		return append(edits, splice{span: e.includeUsage, with: []byte("true")})
	case e.optionsOpen > 0 && e.optionsEmpty:
		return append(edits, splice{span: inside, with: []byte(usageMember)})
	case e.optionsOpen > 0:
		return append(edits, splice{span: inside, with: []byte(usageMember + ",")})
	case e.options != span{}: // null
		return append(edits, splice{span: e.options, with: []byte(usageOptions)})
	}
	return append(edits, e.insert([]byte(`"stream_options":`+usageOptions)))
}

// insert makes a member the root's first.
func (e *Envelope) insert(member []byte) splice {
	return splice{span: span{e.open, e.open}, with: member, member: true}
}
