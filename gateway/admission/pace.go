package admission

import (
	"math"
	"math/bits"
	"time"
)

const (
	// paceLevels are how many loads a pace tells apart: 1, 2, 3-4, 5-8, 9-16 and more runs at once.
	paceLevels = 6
	// A run takes some time whatever its prompt: as long as prefilling this many tokens, on engines of all kinds
	// about 50 ms.
	fixedTokens = 128
	// Stand-ins for what is not known of a run.
	typicalInput  = 512
	typicalOutput = 256
	// A sample counts for 1/maxSamples, or more as long as there were fewer, and at most outlier times (and at least
	// a part of outlier) of what was expected: one run behind a cold load says little.
	maxSamples = 8
	outlier    = 4
	// What a place took counts in full for paceFresh and then half as much after each paceHalf: a place that was
	// slow, and for that reason got no more runs, is tried again after about a minute.
	paceFresh = 30 * time.Second
	paceHalf  = 10 * time.Second
)

// pace is what runs of a model took lately: at a place, or at all places of a route (a fleet). The zero value knows
// nothing. Guarded by Controller.mu.
type pace struct {
	touched time.Time // when the place last got a run or ended one
	levels  [paceLevels]levelPace
	runs    mean // of a fleet: how long runs took
}

// levelPace is the pace at one level of load. Both figures are moving means, in nanoseconds; 0: unknown.
type levelPace struct {
	input   float64 // to the first token, for each token of the prompt that was not cached and the fixed ones
	output  float64 // for each token of the answer after the first
	samples uint8   // up to maxSamples
	at      time.Time
}

// paceLoad is a run to come and the load of the place that it would meet.
type paceLoad struct {
	inFlight      int   // without the run
	input, output int64 // estimated tokens; below 1: unknown
}

// level returns the index of the level of so many runs at once.
func level(inFlight int) int {
	return min(bits.Len(uint(max(inFlight, 1)-1)), paceLevels-1)
}

// picked says that the place gets a run. Until that has told what it took, or for a minute, nothing more is tried.
func (p *pace) picked(now time.Time) { p.touched = now }

// observe takes in what a run took that began as the inFlight-th at its place.
func (p *pace) observe(now time.Time, s Sample, inFlight int) {
	l := &p.levels[level(inFlight)]
	if now.Sub(l.at) > paceFresh+2*paceHalf {
		*l = levelPace{} // too old to be mixed with
	}
	p.touched, l.at = now, now
	l.samples = min(l.samples+1, maxSamples)
	work := float64(fixedTokens + max(known(s.Input, typicalInput)-max(s.Cached, 0), 0))
	answer := s.Duration - s.FirstToken
	if s.FirstToken > 0 {
		l.input = l.mix(l.input, float64(s.FirstToken)/work)
	} else {
		answer -= time.Duration(l.input * work) // not streamed: the first token came some time before the end
	}
	if s.Output > 1 && answer > 0 {
		l.output = l.mix(l.output, float64(answer)/float64(s.Output-1))
	}
}

// mix returns the moving mean with one more sample.
func (l *levelPace) mix(mean, sample float64) float64 {
	if mean == 0 {
		return sample
	}
	sample = min(max(sample, mean/outlier), mean*outlier)
	return mean + (sample-mean)/float64(l.samples)
}

func (l *levelPace) expect(load paceLoad) float64 {
	input, output := known(load.input, typicalInput), known(load.output, typicalOutput)
	return l.input*float64(fixedTokens+input) + l.output*float64(output)
}

func known(tokens, typical int64) int64 {
	if tokens < 1 {
		return typical
	}
	return tokens
}

// expect returns how long a run would take at the place from now to its end. It is 0, which is to say try it, for a
// place that is idle and of which nothing is known; with a run at such a place, it is what the fleet (or nil) takes.
func (p *pace) expect(now time.Time, load paceLoad, fleet *pace) time.Duration {
	age := now.Sub(p.touched)
	l := p.nearest(now, level(load.inFlight+1))
	if l == nil {
		if fleet == nil || load.inFlight == 0 && age > paceFresh {
			return 0
		}
		if l = fleet.nearest(now, level(load.inFlight+1)); l == nil {
			return 0
		}
		return time.Duration(l.expect(load))
	}
	expected := l.expect(load)
	if age > paceFresh {
		expected *= math.Exp2(-float64(age-paceFresh) / float64(paceHalf))
	}
	return time.Duration(expected)
}

// nearest returns what is known of the level nearest to want, the lower of two, and first what is known from lately.
// It is nil if nothing is known at all.
func (p *pace) nearest(now time.Time, want int) *levelPace {
	var old *levelPace
	for d := range paceLevels {
		for _, i := range [2]int{want - d, want + d} {
			if i < 0 || i >= paceLevels || p.levels[i].samples == 0 {
				continue
			}
			l := &p.levels[i]
			if now.Sub(l.at) <= paceFresh+2*paceHalf {
				return l
			}
			if old == nil {
				old = l
			}
		}
	}
	return old
}

// Sample is what a run took that went well.
type Sample struct {
	FirstToken time.Duration // from the ticket to the first token; 0: not known, the answer was no stream
	Duration   time.Duration // from the ticket to the end
	// Tokens by the provider's count. Where it gave none: Input as estimated, the others 0.
	Input, Output, Cached int64
}
