package adapter

import "iop/execution"

// Splitter cuts an answer into its pieces, of type P, as its bytes arrive. [EventSplitter] and [LineSplitter] are such.
type Splitter[P any] interface {
	// Push takes the next bytes, and End says that there are no more. They give each piece that is whole to each, and stop
	// where that says so, or fails.
	Push(p []byte, each func(P) (stop bool, err error)) (stop bool, err error)
	End(each func(P) (stop bool, err error)) (stop bool, err error)
	// Progress is as of [Reader].
	Progress() int64
}

// Frame is what the readers of all protocols have in common, for each to embed: a [Reader] of an answer in pieces, which the
// protocol's own function takes one by one. It must be begun with [Frame.Begin].
type Frame[P any] struct {
	// Meter is told what comes, and gives the usage.
	Meter Meter
	// Over is set by who takes the piece that ends the answer: there is nothing more in it.
	Over bool

	pieces Splitter[P]
	take   func(P) (stop bool, err error)
	ended  func() error                 // or nil
	emit   func(*execution.Event) error // of the present call
	event  execution.Event              // the one that emit is given
}

// Begin makes f ready. take reads a piece, and says whether it was the last one. ended is called where the body ends and no
// piece was that: it returns why the answer is not whole, or gives the last events; nil stands for never whole.
func (f *Frame[P]) Begin(pieces Splitter[P], take func(P) (stop bool, err error), ended func() error) {
	f.pieces, f.take, f.ended = pieces, take, ended
}

// Push implements Reader.
func (f *Frame[P]) Push(p []byte, emit func(*execution.Event) error) (done bool, err error) {
	f.emit = emit
	if f.Over {
		return true, nil
	}
	return f.pieces.Push(p, f.take)
}

// End implements Reader.
func (f *Frame[P]) End(emit func(*execution.Event) error) error {
	f.emit = emit
	if f.Over {
		return nil
	}
	if stop, err := f.pieces.End(f.take); stop || err != nil {
		return cutOff(err)
	}
	if f.ended == nil {
		return Truncated()
	}
	return f.ended()
}

// Progress implements Reader.
func (f *Frame[P]) Progress() int64 { return f.pieces.Progress() }

// Usage implements Reader.
func (f *Frame[P]) Usage() execution.Usage { return f.Meter.Usage() }

// Give hands an event out. Like Emit it is for the functions that Begin was given, while they run.
func (f *Frame[P]) Give(e execution.Event) error {
	f.event = e
	return f.emit(&f.event)
}

// Emit hands out an event that the reader keeps.
func (f *Frame[P]) Emit(e *execution.Event) error { return f.emit(e) }
