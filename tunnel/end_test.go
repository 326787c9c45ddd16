package tunnel

import (
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/execution"
	"iop/tunnel/wire"
)

// What a Node says in END is what the Edge reads, and what an older Node leaves out reads as not said.
func TestEndIsReadAsItWasWritten(t *testing.T) {
	timings := execution.Timings{Admission: time.Millisecond, FirstByte: time.Second, Provider: time.Minute}
	usage := execution.Usage{Input: 9, Output: 4, Cached: 2, Reasoning: 1, Known: true, Estimated: true}
	for name, c := range map[string]struct{ said, read execution.Terminal }{
		"a told failure": {
			execution.Terminal{Outcome: execution.Failed, Code: execution.CodeProviderError, Phase: execution.PhaseStreaming, Detail: "d", Usage: usage, Timings: timings, Told: true},
			execution.Terminal{Outcome: execution.Failed, Code: execution.CodeProviderError, Phase: execution.PhaseStreaming, Detail: "d", Usage: usage, Timings: timings, Told: true},
		},
		"told goes with a failure only": {
			execution.Terminal{Outcome: execution.Completed, Told: true},
			execution.Terminal{Outcome: execution.Completed},
		},
		"numbers without knowledge are none": {
			execution.Terminal{Outcome: execution.Cancelled, Usage: execution.Usage{Output: 4, Estimated: true}},
			execution.Terminal{Outcome: execution.Cancelled},
		},
	} {
		payload, err := proto.Marshal(encodeEnd(c.said, c.said.Phase))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parseEnd(payload); err != nil || *got != c.read {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	payload, _ := proto.Marshal(&wire.End{Outcome: uint32(execution.Completed), Told: true})
	if got, err := parseEnd(payload); err != nil || got.Told {
		t.Errorf("a Node that says told of a completed run is believed: %+v, %v", got, err)
	}
}

// TestTimesOfEnd: whatever times a Node says a run took, none is negative or longer than runs are.
func TestTimesOfEnd(t *testing.T) {
	for said, want := range map[int64]time.Duration{
		-1: 0, math.MinInt64: 0, 7: 7 * time.Microsecond, math.MaxInt64: longestRun, math.MaxInt64 / 1000: longestRun,
	} {
		payload, _ := proto.Marshal(&wire.End{Outcome: uint32(execution.Completed), AdmissionUs: said, FirstByteUs: said, ProviderUs: said})
		got, err := parseEnd(payload)
		if all := (execution.Timings{Admission: want, FirstByte: want, Provider: want}); err != nil || got.Timings != all {
			t.Errorf("%d: %+v, %v", said, got, err)
		}
	}
}
