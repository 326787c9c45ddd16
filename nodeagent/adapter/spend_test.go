package adapter_test

import (
	"testing"

	"iop/execution"
	"iop/nodeagent/adapter"
)

// TestMeter: events count as a token, long ones as more, and only since the provider's last word.
func TestMeter(t *testing.T) {
	var m adapter.Meter
	m.Produced(3)
	m.Produced(16)
	m.Produced(200)
	if got, want := m.Usage(), (execution.Usage{Output: 52, Known: true, Estimated: true}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	m.Report(execution.Usage{Input: 5, Output: 9, Known: true})
	if got, want := m.Usage(), (execution.Usage{Input: 5, Output: 9, Known: true}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	m.Produced(0)
	if got, want := m.Usage(), (execution.Usage{Input: 5, Output: 10, Known: true, Estimated: true}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
