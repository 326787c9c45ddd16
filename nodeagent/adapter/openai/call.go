package openai

import (
	"strconv"

	"iop/execution"
	"iop/nodeagent/adapter"
	"iop/openai"
)

// call is a tool call that is being written.
type call struct {
	number int // the index that the provider gave it; -1 for none
	id     string
	told   bool   // its id and its name were given
	at     int    // once told: its index among those that were
	held   string // arguments that came before the name
}

// maxHeld bounds the arguments that wait for a name.
const maxHeld = 64 << 10

// delta is what a chunk says of a tool call.
type delta struct {
	number          int
	id, name, piece string
}

func readCall(data []byte) (d delta) {
	d.number = -1
	for m := openai.Members(data); m.Next(); {
		switch string(m.Key()) {
		case "index":
			if n, err := strconv.Atoi(string(m.Value())); err == nil && n >= 0 {
				d.number = n
			}
		case "id":
			d.id = adapter.Text(m.Value())
		case "function":
			d.function(m.Value())
		}
	}
	return d
}

func (d *delta) function(data []byte) {
	for m := openai.Members(data); m.Next(); {
		v := m.Value()
		switch string(m.Key()) {
		case "name":
			d.name = adapter.Text(v)
		case "arguments":
			if v[0] == '{' { // an object where its text is meant
				d.piece = string(v)
			} else {
				d.piece = adapter.Text(v)
			}
		}
	}
}

// call reads a piece of a tool call.
func (c *chunkChoice) call(data []byte) error {
	d := readCall(data)
	state := &c.r.choices[c.index]
	i := state.find(d)
	if i < 0 {
		if i = len(state.calls); i >= execution.MaxToolCalls {
			return adapter.Malformed("the provider's answer has too many tool calls")
		}
		state.calls = append(state.calls, call{number: d.number, id: d.id})
	}
	return c.tellCall(state, &state.calls[i], d)
}

// find returns the call that a piece belongs to, -1 if it begins another. Most providers number them. Some give each the
// number 0, with an id of its own; some give none, and repeat the id or leave it out while they go on with the last one.
func (s *choice) find(d delta) int {
	last := len(s.calls) - 1
	for i := last; i >= 0; i-- {
		k := &s.calls[i]
		switch {
		case d.number >= 0 && k.number == d.number:
			if d.id == "" || k.id == "" || d.id == k.id {
				return i
			}
		case d.number < 0 && d.id != "" && k.id == d.id:
			return i
		}
	}
	if d.number < 0 && d.id == "" && d.name == "" {
		return last
	}
	return -1
}

func (c *chunkChoice) tellCall(state *choice, k *call, d delta) error {
	if k.id == "" {
		k.id = d.id
	}
	out := execution.ToolCallDelta{Index: k.at, Arguments: d.piece}
	if !k.told {
		if d.name == "" {
			if k.held += d.piece; len(k.held) > maxHeld {
				return adapter.Malformed("the provider's tool call has no name")
			}
			return nil
		}
		if k.id == "" {
			k.id = adapter.NewCallID()
		}
		k.told, k.at = true, state.told
		state.told++
		out.Index = k.at
		out.ID, out.Name, out.Arguments, k.held = k.id, d.name, k.held+d.piece, ""
	} else if d.piece == "" {
		return nil
	}
	c.r.Meter.Produced(len(out.Arguments))
	return c.give(execution.Event{Kind: execution.EventToolCall, Call: out})
}
