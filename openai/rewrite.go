package openai

// RewriteSpec says what a request must hold when it leaves the Edge.
type RewriteSpec struct {
	// Model is the name that the provider knows, already checked; empty keeps what the client wrote.
	Model string
	// IncludeUsage asks the provider for usage in its stream. It has no effect on a request that does not stream:
	// there the field would be an error.
	IncludeUsage bool
}

// splice is one replacement in the body.
type splice struct {
	span
	with []byte
}

const (
	usageMember  = `"include_usage":true`
	usageOptions = `{` + usageMember + `}`
)

// Rewrite returns the body with the spec applied: a few bytes are put in place, all others stay as the client wrote
// them. It returns body itself when nothing changes, else a new slice. The body must be the one that e was parsed
// from; an envelope that was not parsed (a form's) changes nothing.
func (e Envelope) Rewrite(body []byte, spec RewriteSpec) []byte {
	if e.open == 0 {
		return body
	}
	var room [2]splice
	edits := room[:0]
	if spec.Model != "" {
		edits = e.spliceModel(edits, body, spec.Model)
	}
	if spec.IncludeUsage && e.Stream {
		edits = e.spliceUsage(edits)
	}
	switch {
	case len(edits) == 0:
		return body
	case len(edits) == 2 && edits[1].start < edits[0].start:
		edits[0], edits[1] = edits[1], edits[0]
	}
	size := len(body)
	for _, s := range edits {
		size += len(s.with) - (s.end - s.start)
	}
	out := make([]byte, 0, size)
	from := 0
	for _, s := range edits {
		out = append(append(out, body[from:s.start]...), s.with...)
		from = s.end
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
	return append(edits, splice{e.model, with})
}

func (e *Envelope) spliceUsage(edits []splice) []splice {
	switch {
	case e.IncludeUsage:
		return edits
	case e.includeUsage != span{}:
		return append(edits, splice{e.includeUsage, []byte("true")})
	case e.optionsOpen > 0 && e.optionsEmpty:
		return append(edits, splice{span{e.optionsOpen, e.optionsOpen}, []byte(usageMember)})
	case e.optionsOpen > 0:
		return append(edits, splice{span{e.optionsOpen, e.optionsOpen}, []byte(usageMember + ",")})
	case e.options != span{}: // null
		return append(edits, splice{e.options, []byte(usageOptions)})
	}
	return append(edits, e.insert([]byte(`"stream_options":`+usageOptions)))
}

// insert makes a member the root's first.
func (e *Envelope) insert(member []byte) splice {
	if !e.empty {
		member = append(member, ',')
	}
	return splice{span{e.open, e.open}, member}
}
