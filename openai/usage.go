package openai

import (
	"math"
	"slices"
	"strconv"

	"iop/execution"
)

// counts are the numbers of a usage object under all names that engines give them; -1 is "not there".
type counts struct {
	input, output, total             int64
	cached, reasoning                int64
	cacheRead, cacheCreation         int64           // Anthropic: beside input, not in it
	promptEvalCount, outputEvalCount int64           // Ollama
	iterations                       execution.Usage // Anthropic: the sum of them, of which compaction is not in the rest
}

// parseUsage reads a usage object of any family.
func parseUsage(obj []byte) execution.Usage { return mergeUsage(execution.Usage{}, obj) }

// mergeUsage updates u with what obj says. Messages report the input at the start and the output at the end.
func mergeUsage(u execution.Usage, obj []byte) execution.Usage {
	c := counts{-1, -1, -1, -1, -1, -1, -1, -1, -1, execution.Usage{}}
	for m := objectMembers(obj); m.next(); {
		c.take(string(m.key), m.val)
	}
	input, output := max(c.input, c.promptEvalCount), max(c.output, c.outputEvalCount)
	if input < 0 && output < 0 && c.total >= 0 { // embeddings and reranking of some engines
		input = c.total
	}
	if c.cacheRead >= 0 || c.cacheCreation >= 0 {
		c.cached = max(c.cached, c.cacheRead)
		if input >= 0 {
			input = addCounts(addCounts(input, max(0, c.cacheRead)), max(0, c.cacheCreation))
		}
	}
	if c.iterations.Known {
		input, output = max(input, c.iterations.Input), max(output, c.iterations.Output)
	}
	if input >= 0 && c.total > addCounts(input, max(0, output)) {
		output = c.total - input // Gemini and xAI have the reasoning in the total alone
	}
	set(&u.Input, input, &u.Known)
	set(&u.Output, output, &u.Known)
	known := u.Known
	set(&u.Cached, c.cached, &known)
	set(&u.Reasoning, c.reasoning, &known)
	return u
}

// mergeCount is mergeUsage for a single member.
func mergeCount(u execution.Usage, name, value []byte) execution.Usage {
	return mergeUsage(u, slices.Concat([]byte(`{"`), name, []byte(`":`), value, []byte(`}`)))
}

func set(dst *int64, n int64, known *bool) {
	if n >= 0 {
		*dst, *known = n, true
	}
}

func addCounts(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func (c *counts) take(key string, val []byte) {
	switch key {
	case "prompt_tokens", "input_tokens":
		count(&c.input, val)
	case "completion_tokens", "output_tokens":
		count(&c.output, val)
	case "total_tokens":
		count(&c.total, val)
	case "prompt_tokens_details", "input_tokens_details":
		count(&c.cached, member(val, "cached_tokens"))
	case "completion_tokens_details", "output_tokens_details":
		count(&c.reasoning, member(val, "reasoning_tokens"))
	case "cached_tokens", "prompt_cache_hit_tokens":
		count(&c.cached, val)
	case "reasoning_tokens":
		count(&c.reasoning, val)
	case "cache_read_input_tokens":
		count(&c.cacheRead, val)
	case "cache_creation_input_tokens":
		count(&c.cacheCreation, val)
	case "iterations":
		c.iterate(val)
	case "prompt_eval_count":
		count(&c.promptEvalCount, val)
	case "eval_count":
		count(&c.outputEvalCount, val)
	}
}

// iterate adds up what each call of the model used that one answer took.
func (c *counts) iterate(list []byte) {
	for el := arrayElements(list); el.next(); {
		u := parseUsage(el.val)
		c.iterations.Known = c.iterations.Known || u.Known
		c.iterations.Input, c.iterations.Output = addCounts(c.iterations.Input, u.Input), addCounts(c.iterations.Output, u.Output)
	}
}

// count reads a token count. Some engines write floats; what is no count is left out.
func count(dst *int64, val []byte) {
	if len(val) == 0 || len(val) > 32 || val[0]-'0' > 9 {
		return
	}
	var n int64
	for _, d := range val {
		if d-'0' > 9 || n > (math.MaxInt64-9)/10 {
			if x, err := strconv.ParseFloat(string(val), 64); err == nil && x < 1<<62 {
				*dst = int64(x)
			}
			return
		}
		n = n*10 + int64(d-'0')
	}
	*dst = n
}
