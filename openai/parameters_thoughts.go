package openai

import (
	"fmt"
	"slices"
)

// thoughtsMembers are members of a request's root whose objects have a number of tokens for thoughts, by the names of
// thoughtsBudgets: OpenRouter's, Vercel's and Anthropic's.
var (
	thoughtsMembers = []string{"reasoning", "thinking"}
	thoughtsBudgets = []string{"max_tokens", "budget_tokens"}
)

// capsThoughts reports whether budgets of thoughts are bounded: where the answer's length is. Vercel's SDK, and gateways that are made
// with it, ask for as many tokens as both together, so that a budget alone would undo the cap.
func (p *planner) capsThoughts() bool {
	return p.length.capped && writingOps.Has(p.op.ID)
}

// lowerThoughts lowers the budgets of thoughts to less than the cap of the length: Anthropic refuses as much.
func (p *planner) lowerThoughts() *Error {
	if !p.capsThoughts() {
		return nil
	}
	for i := range p.list {
		at := &p.list[i]
		if !slices.Contains(thoughtsMembers, at.name) || !at.given(p.body) || p.body[at.at.start] != '{' {
			continue
		}
		if err := p.lowerThoughtsOf(at); err != nil {
			return err
		}
	}
	return nil
}

func (p *planner) lowerThoughtsOf(at *parameter) *Error {
	s := scanner{b: p.body}
	i := s.space(at.at.start + 1)
	if i < len(p.body) && p.body[i] == '}' {
		return nil
	}
	seen := map[string]bool{}
	for done := false; !done; {
		start := i
		end, val := s.key(i)
		if val < 0 {
			return Internal() // not the body of this envelope
		}
		name, exact := thoughtsBudget(p.body[start+1:end-1], s.escaped)
		if i = s.value(val, 2); i < 0 {
			return Internal()
		}
		if name != "" {
			if err := onlyOnce(at.name+"."+name, exact, seen[name]); err != nil {
				return err
			}
			seen[name] = true
			if err := p.lowerBudget(at.name+"."+name, span{val, i}); err != nil {
				return err
			}
		}
		if i, done = s.next(i, '}'); i < 0 {
			return Internal()
		}
	}
	return nil
}

// thoughtsBudget is which of thoughtsBudgets a member's name is for some reader, empty for none.
func thoughtsBudget(key []byte, escaped bool) (name string, exact bool) {
	for _, name := range thoughtsBudgets {
		if exact, match := matches(key, escaped, name); match {
			return name, exact
		}
	}
	return "", false
}

func (p *planner) lowerBudget(name string, at span) *Error {
	raw := p.body[at.start:at.end]
	if raw[0] == 'n' {
		return nil
	}
	v, ok := number(raw)
	if !ok {
		return InvalidRequest(name, fmt.Sprintf("%s must be a number", name))
	}
	if most := max(p.length.max-1, 1); v > most || v < 0 {
		p.splices = append(p.splices, splice{span: at, with: appendNumber(nil, most)})
	}
	return nil
}
