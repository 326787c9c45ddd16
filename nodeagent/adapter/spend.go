package adapter

import (
	"iop/execution"
	"iop/openai"
)

// Meter keeps a run's usage. The zero value is ready.
type Meter struct {
	reported execution.Usage
	produced int64 // tokens of output since the last report, as far as events tell
}

// Produced counts an event with output of so many bytes: engines send one for each token, clouds gather several.
func (m *Meter) Produced(text int) { m.produced += int64(openai.TokensIn(text)) }

// Report takes what the provider said, all of it so far.
func (m *Meter) Report(u execution.Usage) { m.reported, m.produced = u, 0 }

// Reported is the provider's last word; not known if there was none.
func (m *Meter) Reported() execution.Usage { return m.reported }

// Usage is the provider's word. Events with output that came after it, or without any, count by their text, and the
// usage is marked as estimated.
func (m *Meter) Usage() execution.Usage {
	u := m.reported
	if m.produced > 0 {
		u.Output += m.produced
		u.Known, u.Estimated = true, true
	}
	return u
}
