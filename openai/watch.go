package openai

import (
	"bytes"
	"slices"
	"strings"
)

// A model is named not only by the root's member: OpenAI's moderation, tools that draw and tools that advise have one of their
// own, at some depth, and tools may stand among the messages. Such members are found by their names' ending, outside of what
// is the client's content: messages, documents, the data in JSON schemas. There a name means nothing to a provider.

// anyModel stands for each member whose name ends in model, models, model_id and the like, other than the root's model and
// those of tools.
const anyModel = "*model"

// modelTails may follow "model" in the name of a member that names models, without delimiters.
var modelTails = [...]string{"", "s", "id", "ids", "name", "names", "list", "slug", "group"}

// maxModelMember is the longest name that is examined, in bytes: no known one is near it.
const maxModelMember = 64

// namesModel reports whether a member's name, as it is written, says that its value is a model's name.
func namesModel(raw []byte, escaped bool) bool {
	if len(raw) < len("model") || len(raw) > 6*maxModelMember || !escaped && len(raw) > maxModelMember {
		return false
	}
	var decoded [6 * maxModelMember]byte
	var folded, loose [maxModelMember]byte
	if escaped {
		raw = appendUnescaped(decoded[:0], raw)
	}
	name, whole := appendFolded(folded[:0], raw)
	if !whole {
		return false
	}
	name = withoutDelimiters(loose[:0], name)
	i := bytes.LastIndex(name, []byte("model"))
	if i < 0 {
		return false
	}
	for _, tail := range modelTails {
		if string(name[i+len("model"):]) == tail {
			return true
		}
	}
	return false
}

// watched is what the watch of a value knows of it.
type watched struct {
	bit   int    // of steeringNames, for a model that is named
	named []byte // the name of the member that the value is of, where it names models: a string in it is one
	free  bool   // the members' names are the client's own, as those of a schema's properties
}

// watch is scanner.value for what is no content. It notes the models that are named in it.
func (p *envelopeParser) watch(i, depth int, w watched) int {
	switch {
	case i >= len(p.b):
	case p.b[i] == '{':
		return p.watchObject(i, depth+1, w)
	case p.b[i] == '[':
		return p.watchArray(i, depth+1, w)
	case p.b[i] == '"' && w.named != nil:
		end := p.str(i)
		if end > i+len(`""`) {
			p.e.steering.add(w.bit)
			p.noteModel(w)
		}
		return end
	}
	return p.value(i, depth)
}

// noteModel keeps the first name of what is refused as anyModel, for the error.
func (p *envelopeParser) noteModel(w watched) {
	if w.bit == anyModelBit && p.e.otherModel == "" {
		p.e.otherModel = string(w.named[:min(len(w.named), maxModelMember)])
	}
}

func (p *envelopeParser) watchObject(i, depth int, w watched) int {
	return p.eachMember(i, depth, func(key []byte, escaped bool, val int) int { return p.watchMember(key, escaped, val, depth, w) })
}

func (p *envelopeParser) watchMember(key []byte, escaped bool, val, depth int, w watched) int {
	inside := watched{bit: w.bit}
	if !w.free {
		if namesModel(key, escaped) {
			inside.named = key
		}
		switch string(key) {
		case "default", "const", "enum", "example", "examples", "input_examples": // data of a schema or a tool
			return p.value(val, depth)
		case "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependentRequired", "dependencies", "mapping":
			inside.free = true
		}
	}
	return p.watch(val, depth, inside)
}

func (p *envelopeParser) watchArray(i, depth int, w watched) int {
	return p.eachElement(i, depth, func(i int) int { return p.watch(i, depth, w) })
}

// eachMember is scanner.object with a function that scans the values: it gets their depth around them as scanner.value does,
// and returns the offset behind.
func (p *envelopeParser) eachMember(i, depth int, value func(key []byte, escaped bool, val int) int) int {
	if depth > maxDepth {
		return p.fail(faultDepth, i)
	}
	i = p.space(i + 1)
	if i < len(p.b) && p.b[i] == '}' {
		return i + 1
	}
	for done := false; !done; {
		start := i
		end, val := p.memberName(i)
		if val < 0 {
			return -1
		}
		if i = value(p.b[start+1:end-1], p.escaped, val); i < 0 {
			return -1
		}
		if i, done = p.next(i, '}'); i < 0 {
			return -1
		}
	}
	return i
}

// eachElement is eachMember for an array.
func (p *envelopeParser) eachElement(i, depth int, value func(i int) int) int {
	if depth > maxDepth {
		return p.fail(faultDepth, i)
	}
	i = p.space(i + 1)
	if i < len(p.b) && p.b[i] == ']' {
		return i + 1
	}
	for done := false; !done; {
		if i = value(i); i < 0 {
			return -1
		}
		if i, done = p.next(i, ']'); i < 0 {
			return -1
		}
	}
	return i
}

// contentLevels is how deep content blocks hold others: those of a message, and those of a tool's result in it.
const contentLevels = 2

// content is scanner.value for messages and input, which are the client's own but for the tools that stand among them: in
// items of Responses (additional_tools, tool_search_output) and in blocks of Messages (tool_addition).
func (p *envelopeParser) content(i, depth, level int) int {
	if i >= len(p.b) || p.b[i] != '[' {
		return p.value(i, depth)
	}
	depth++
	return p.eachElement(i, depth, func(i int) int {
		if i >= len(p.b) || p.b[i] != '{' {
			return p.value(i, depth)
		}
		return p.eachMember(i, depth+1, func(key []byte, escaped bool, val int) int {
			switch {
			case isNamed(key, escaped, "tools"), isNamed(key, escaped, "tool"):
				return p.tools(val, depth+1)
			case level < contentLevels && isNamed(key, escaped, "content"):
				return p.content(val, depth+1, level+1)
			}
			return p.value(val, depth+1)
		})
	})
}

// tools is watch for tools: a list of them, or a single one.
func (p *envelopeParser) tools(i, depth int) int {
	w := watched{bit: toolsModelBit}
	switch {
	case i >= len(p.b):
	case p.b[i] == '{':
		return p.tool(i, depth, w)
	case p.b[i] == '[':
		return p.eachElement(i, depth+1, func(i int) int { return p.tool(i, depth+1, w) })
	}
	return p.watch(i, depth, w)
}

// plainRouterTools are OpenRouter's tools that run no model, without their prefix.
var plainRouterTools = []string{"web_search", "web_fetch", "datetime", "apply_patch"}

// runsModels reports whether a tool of this type runs models also where it names none: an adviser or subagent of OpenRouter's
// is the model that the prompt says, its fusion a panel of models.
func runsModels(kind string) bool {
	kind = strings.ToLower(kind)
	name, is := strings.CutPrefix(kind, "openrouter:")
	return is && !slices.Contains(plainRouterTools, name) || strings.HasPrefix(kind, "advisor")
}

// tool notes whether the provider runs the tool itself. What such a tool finds is input that the request does not show. A
// tool that the client runs is a function or a custom one, in Messages without a type.
func (p *envelopeParser) tool(i, depth int, w watched) int {
	if i >= len(p.b) || p.b[i] != '{' {
		return p.watch(i, depth, w)
	}
	clients, typed := false, false
	end := p.eachMember(i, depth+1, func(key []byte, escaped bool, val int) int {
		end := p.watchMember(key, escaped, val, depth+1, w)
		switch {
		case end < 0:
		case isNamed(key, escaped, "type") && p.b[val] == '"':
			kind := unquote(p.b[val:end])
			typed = typed || kind != "function" && kind != "custom"
			clients = true
			if runsModels(kind) {
				p.e.steering.add(w.bit)
			}
		case isNamed(key, escaped, "name"), isNamed(key, escaped, "function"):
			clients = true
		}
		return end
	})
	p.e.hosted = p.e.hosted || typed || !clients
	return end
}
