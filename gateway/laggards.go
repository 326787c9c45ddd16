package gateway

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"time"

	"iop/execution"
	"iop/gateway/admission"
	"iop/gateway/registry"
)

// A client that takes its answer slower than the provider makes it holds the provider, once Edge and Node have buffered what
// they may: the provider can't finish, and its place is not free. Nobody minds as long as nobody wants that place. When
// requests wait for it, a client that hardly takes anything is cut.
//
// Progress counts by bytes, and only while the answer waits for the client. So neither a byte now and then (HTTP/2 window
// updates of 1) nor a comment that fills silence keeps a place, and a slow provider never costs its client anything.

const (
	// lagInterval is the time between two looks at all runs.
	lagInterval = 5 * time.Second
	// lagPatience is how long a client may take less than lagStep while others wait for its place.
	lagPatience = 30 * time.Second
	// lagStep in lagPatience is half a kilobyte a second: two tokens of a stream.
	lagStep = 16 << 10
	// writePiece bounds one write of an answer that goes on, so that rec.bytes shows progress before a large batch is out. A
	// client may therefore have taken one piece more than is known.
	writePiece = lagStep
)

// lagDetail is what the record of a client that was cut says.
var lagDetail = fmt.Sprintf("the client read less than %d KiB in %s while others waited for capacity", lagStep>>10, lagPatience)

// lag is since when a client has not taken a lagStep of an answer that waits for it.
type lag struct {
	since time.Time // zero: it keeps up
	bytes int64     // taken by then
}

// laggard is a client that may be cut.
type laggard struct {
	rec    *record
	run    registry.Run
	target admission.Target
	since  time.Time
}

// watchLaggards cuts slow clients until the Edge closes.
func (s *Server) watchLaggards() {
	tick := time.NewTicker(lagInterval)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			s.cutLaggards(now)
		case <-s.ended:
			return
		}
	}
}

// cutLaggards cuts as many laggards of each target as there are requests waiting for it, the longest first.
func (s *Server) cutLaggards(now time.Time) {
	if s.runs.live.Load() == 0 {
		return
	}
	var found []laggard
	for _, rec := range s.runs.list() {
		if l, ok := rec.lags(now); ok {
			found = append(found, l)
		}
	}
	slices.SortFunc(found, func(a, b laggard) int { return cmp.Compare(a.since.UnixNano(), b.since.UnixNano()) })
	wanted := map[admission.Target]int{}
	for _, l := range found {
		n, known := wanted[l.target]
		if !known {
			n = s.adm.Wanted(l.target)
		}
		if n > 0 {
			n--
			l.rec.hangUp(l.run)
			s.metrics.laggards.Inc()
		}
		wanted[l.target] = n
	}
}

// lags looks at a run. ok: its client has lagged for lagPatience, and its place is still taken. Only watchLaggards calls it.
func (rec *record) lags(now time.Time) (l laggard, ok bool) {
	rec.mu.Lock()
	run, target := rec.run, rec.target
	rec.mu.Unlock()
	if run == nil {
		rec.lag = lag{}
		return l, false
	}
	b, taken := run.Backlog(), rec.bytes.Load()
	switch {
	case !b.Place || b.Bytes < b.Window/2: // the provider is not held up
		rec.lag = lag{}
	case rec.lag.since.IsZero(), taken-rec.lag.bytes >= lagStep:
		rec.lag = lag{since: now, bytes: taken}
	case now.Sub(rec.lag.since) >= lagPatience:
		return laggard{rec, run, target, rec.lag.since}, true
	}
	return l, false
}

// hangUp ends a run because of its client: the Node is told at once, and the handler's write to the client fails.
func (rec *record) hangUp(run registry.Run) {
	if rec.stopWriting(run) {
		run.Cancel(execution.CodeClientGone, lagDetail)
	}
}

// stopWriting reports whether it was that run's answer which is written no further.
func (rec *record) stopWriting(run registry.Run) bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.run != run { // it has ended, or gone elsewhere
		return false
	}
	rec.hungUp.Store(true)
	select {
	case rec.kill <- execution.CodeClientGone:
	default: // it is being ended already
	}
	_ = http.NewResponseController(rec.w).SetWriteDeadline(time.Unix(1, 0)) // every writer of net/http's can
	return true
}
