package openai

import (
	"bytes"
	"slices"
)

// Ollama's native operations have sampling in an object of its own.
const (
	optionsMember = "options"
	optionLength  = "num_predict"
	optionsLength = optionsMember + "." + optionLength
)

// optionNames are Ollama's options, but for the length, with those of former versions.
var optionNames = [...]string{
	"temperature", "top_p", "top_k", "min_p", "typical_p", "tfs_z", "seed", "stop", "frequency_penalty", "presence_penalty",
	"repeat_penalty", "repeat_last_n", "penalize_newline", "mirostat", "mirostat_eta", "mirostat_tau", "num_ctx", "num_keep",
	"num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "use_mmap", "use_mlock", "low_vram", "f16_kv", "logits_all",
	"vocab_only", "embedding_only",
}

// isOption reports whether a parameter is one of Ollama's options; what else there is stands in the request itself.
func isOption(name string) bool {
	return slices.Contains(optionNames[:], name) || ParameterIsLength(name)
}

// planOptions is planMembers for an operation with options: each parameter is planned where it stands.
func (e *Envelope) planOptions(body []byte, op Operation, defaults []ParameterDefault, caps []ParameterCap) ([]splice, *Error) {
	var inside, outside struct {
		defaults []ParameterDefault
		caps     []ParameterCap
	}
	whole := "" // the route's default for the options themselves
	for _, d := range defaults {
		switch {
		case d.Name == optionsMember:
			whole = d.Value
		case isOption(d.Name):
			inside.defaults = append(inside.defaults, d)
		default:
			outside.defaults = append(outside.defaults, d)
		}
	}
	for _, c := range caps {
		if isOption(c.Name) {
			inside.caps = append(inside.caps, c)
		}
		// llama.cpp has Ollama's path for chat, and reads OpenAI's parameters there. Ollama passes over them.
		if length := ParameterIsLength(c.Name); length || !isOption(c.Name) {
			outside.caps = append(outside.caps, c)
			if length {
				op.MaxTokens = MaxTokensParameter
			}
		}
	}
	if op.MaxTokens != "" {
		for _, d := range inside.defaults {
			if ParameterIsLength(d.Name) {
				outside.defaults = append(outside.defaults, d)
			}
		}
	}
	alone := len(inside.defaults)+len(inside.caps) == 0
	if alone && whole != "" {
		outside.defaults = append(outside.defaults, ParameterDefault{optionsMember, whole})
	}
	splices, err := e.planMembers(body, op, outside.defaults, outside.caps)
	if err != nil || alone {
		return splices, err
	}
	p := planner{e: e, body: body, op: op, list: []parameter{{name: optionsMember}}}
	if err := p.scan(); err != nil {
		return nil, err
	}
	op.MaxTokens = optionLength
	edits, err := e.planInside(body, p.list[0].at, whole, op, inside.defaults, inside.caps)
	return append(splices, edits...), err
}

// planInside plans the members of the options at that place of the body, which may be nowhere: then those of whole, the route's
// default, if it has one.
func (e *Envelope) planInside(body []byte, at span, whole string, op Operation, defaults []ParameterDefault, caps []ParameterCap) ([]splice, *Error) {
	absent := at == span{} || body[at.start] == 'n'
	within, of := Envelope{open: 1, empty: true}, []byte("{}")
	switch {
	case absent && whole != "":
		of = bytes.TrimSpace([]byte(whole))
		if !wellFormed(of) || !is(of, '{') {
			return nil, Internal()
		}
		within.empty = len(bytes.TrimSpace(of[1:len(of)-1])) == 0
	case absent:
	case body[at.start] != '{':
		return nil, InvalidRequest(optionsMember, "options must be an object")
	default:
		empty := len(bytes.TrimSpace(body[at.start+1:at.end-1])) == 0
		within, of = Envelope{open: at.start + 1, empty: empty}, body
	}
	planned, err := within.planMembers(of, op, defaults, caps)
	if err != nil {
		if err.Param != "" {
			err.Param, err.Message = optionsMember+"."+err.Param, optionsMember+"."+err.Message
		}
		return nil, err
	}
	if absent && whole != "" {
		of = within.Rewrite(of, RewriteSpec{Edits: Edits{planned}})
		if at != (span{}) {
			return []splice{{span: at, with: of}}, nil
		}
		return []splice{e.insert(append([]byte(`"options":`), of...))}, nil
	}
	var members []byte
	var splices []splice
	for _, s := range planned {
		switch {
		case !s.member:
			splices = append(splices, s)
		case len(members) > 0:
			members = append(append(members, ','), s.with...)
		default:
			members = s.with
		}
	}
	switch {
	case len(members) == 0:
	case !absent:
		if !within.empty {
			members = append(members, ',')
		}
		splices = append(splices, splice{span: span{within.open, within.open}, with: members})
	case at != span{}:
		splices = append(splices, splice{span: at, with: append(append([]byte{'{'}, members...), '}')})
	default:
		splices = append(splices, e.insert(append(append([]byte(`"options":{`), members...), '}')))
	}
	return splices, nil
}
