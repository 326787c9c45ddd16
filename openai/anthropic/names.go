package anthropic

import (
	"fmt"

	"iop/execution"
	"iop/openai"
)

// names says in the client's words what an error of a run is about.
type names struct {
	format  string
	sources []source
}

// param returns the client's name of a parameter of the run.
func (n names) param(param execution.Param) string {
	switch param {
	case execution.ParamStop:
		return "stop_sequences"
	case execution.ParamParallelToolCalls:
		return "tool_choice.disable_parallel_tool_use"
	case execution.ParamResponseFormat:
		if n.format != "" {
			return n.format
		}
		return "output_config.format"
	case execution.ParamReasoningEffort:
		return "output_config.effort"
	case execution.ParamReasoningBudget:
		return "thinking.budget_tokens"
	}
	if at := n.part(param); at != nil {
		return (&openai.RequestReader{Dots: true}).Write(at)
	}
	return string(param)
}

// part returns where the client wrote a part of the input's messages, nil for any other parameter.
func (n names) part(param execution.Param) *openai.Path {
	message, part := 0, 0
	read, _ := fmt.Sscanf(string(param), "messages[%d].content[%d]", &message, &part) // what was not read is counted
	if read == 0 || message < 0 || message >= len(n.sources) {
		return nil
	}
	s := n.sources[message]
	if read == 2 && part >= 0 && part < len(s.blocks) {
		return s.content.Element(s.blocks[part])
	}
	return s.content
}
