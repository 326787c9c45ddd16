package openai

import (
	"encoding/json"
	"fmt"

	"iop/execution"
)

// toolShape says how a protocol writes tools: Chat Completions puts a function's members into an object of their own,
// Responses does not.
type toolShape struct {
	// tool reads a tool whose type is "function".
	tool func(raw []byte) (execution.Tool, *Error)
	// name reads which function is named by a choice or by an element of a list of allowed tools.
	name func(raw []byte) (string, *Error)
	// allowed reads a choice of the type "allowed_tools".
	allowed func(raw []byte) (allowedTools, *Error)
}

type allowedTools struct {
	Mode  string            `json:"mode"`
	Tools []json.RawMessage `json:"tools"`
}

// typeOf returns the member `type` of a scanned object.
func typeOf(raw []byte) (string, *Error) {
	if !is(raw, '{') {
		return "", InvalidRequest("", "must be an object")
	}
	value := member(raw, "type")
	if value == nil || is(value, 'n') {
		return "", nil
	}
	if !is(value, '"') {
		return "", InvalidRequest("type", "must be a string")
	}
	return unquote(value), nil
}

// applyTools puts the tools and the choice among them into the input.
func (c *commonParams) applyTools(in *execution.Input, shape toolShape) *Error {
	if len(c.Tools) > maxTools {
		return InvalidRequest("tools", fmt.Sprintf("has more than %d elements", maxTools))
	}
	known := make(map[string]int, len(c.Tools))
	for i, raw := range c.Tools {
		tool, err := parseTool(raw, shape)
		if err != nil {
			return within("tools", withinIndex(i, err))
		}
		known[tool.Name] = i
		in.Tools = append(in.Tools, tool)
	}
	if err := c.applyChoice(in, shape, known); err != nil {
		return within("tool_choice", err)
	}
	if len(in.Tools) > 0 {
		in.ParallelToolCalls = c.ParallelToolCalls // without tools it says nothing
	}
	return nil
}

func parseTool(raw []byte, shape toolShape) (execution.Tool, *Error) {
	kind, err := typeOf(raw)
	switch {
	case err != nil:
		return execution.Tool{}, err
	case kind == "":
		return execution.Tool{}, missing("type")
	case kind != "function":
		return execution.Tool{}, unsupported("type", fmt.Sprintf("tools of type %q are not supported, only functions", excerpt(kind)))
	}
	return shape.tool(raw)
}

// checkTool checks what both shapes hold of a function.
func checkTool(t execution.Tool) (execution.Tool, *Error) {
	if t.Name == "" {
		return t, missing("name")
	}
	if len(t.Parameters) > 0 && !is(t.Parameters, '{') {
		return t, InvalidRequest("parameters", "must be an object")
	}
	return t, nil
}

func (c *commonParams) applyChoice(in *execution.Input, shape toolShape, known map[string]int) *Error {
	if len(c.ToolChoice) == 0 {
		return nil
	}
	choice, err := parseChoice(c.ToolChoice, in, shape, known)
	if err != nil {
		return err
	}
	if len(in.Tools) == 0 {
		if choice.Mode == execution.ToolsAuto || choice.Mode == execution.ToolsNone {
			return nil // nothing to choose from: nothing is said
		}
		return InvalidRequest("", "requires a tool, but there are no tools")
	}
	in.ToolChoice = choice
	return nil
}

func parseChoice(raw []byte, in *execution.Input, shape toolShape, known map[string]int) (*execution.ToolChoice, *Error) {
	if is(raw, '"') {
		return choiceOfMode("", unquote(raw))
	}
	kind, err := typeOf(raw)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "":
		return nil, missing("type")
	case "function":
		name, err := shape.name(raw)
		if err != nil {
			return nil, err
		}
		if _, ok := known[name]; !ok {
			return nil, InvalidRequest("", "names a function that is not in tools")
		}
		return &execution.ToolChoice{Mode: execution.ToolsNamed, Name: name}, nil
	case "allowed_tools":
		return allow(raw, in, shape, known)
	}
	return nil, unsupported("type", fmt.Sprintf("a choice of type %q is not supported", excerpt(kind)))
}

func choiceOfMode(name, mode string) (*execution.ToolChoice, *Error) {
	if err := oneOf(name, mode, "none", "auto", "required"); err != nil || mode == "" {
		return nil, InvalidRequest(name, "must be one of none, auto, required")
	}
	return &execution.ToolChoice{Mode: execution.ToolChoiceMode(mode)}, nil
}

// allow leaves only the tools that may be called: a model calls no tool that it was not told of. (The list exists so that
// a provider's cache of the prompt stays good; that is a matter of cost.)
func allow(raw []byte, in *execution.Input, shape toolShape, known map[string]int) (*execution.ToolChoice, *Error) {
	list, err := shape.allowed(raw)
	if err != nil {
		return nil, err
	}
	choice, err := choiceOfMode("mode", list.Mode)
	if err != nil {
		return nil, err
	}
	keep := make([]bool, len(in.Tools))
	for i, raw := range list.Tools {
		at, err := allowedTool(raw, shape, known)
		if err != nil {
			return nil, within("tools", withinIndex(i, err))
		}
		keep[at] = true
	}
	var kept []execution.Tool
	for i, tool := range in.Tools {
		if keep[i] {
			kept = append(kept, tool)
		}
	}
	in.Tools = kept
	return choice, nil
}

func allowedTool(raw []byte, shape toolShape, known map[string]int) (int, *Error) {
	kind, err := typeOf(raw)
	if err != nil {
		return 0, err
	}
	if kind != "function" {
		return 0, unsupported("type", "only functions can be allowed")
	}
	name, err := shape.name(raw)
	if err != nil {
		return 0, err
	}
	at, ok := known[name]
	if !ok {
		return 0, InvalidRequest("", "names a function that is not in tools")
	}
	return at, nil
}
