package gateway

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	gometrics "runtime/metrics"
)

// memorySlack is what the process may have beside the body budget and twice what else is live.
const memorySlack = 32 << 20

// BoundMemory keeps the collector from letting garbage grow as large as the bodies that are held: by itself it waits until
// the heap has doubled, bodies among it. It is for a process that is this Edge and nothing else, before Run, and ends with
// Close. It does nothing where GOMEMLIMIT or GOGC are set: then the operator has decided.
func (s *Server) BoundMemory() {
	if os.Getenv("GOMEMLIMIT") != "" || os.Getenv("GOGC") != "" {
		return
	}
	last := int64(0)
	var adjust func(struct{})
	adjust = func(struct{}) { // after each collection
		if s.background.Err() != nil {
			debug.SetMemoryLimit(math.MaxInt64)
			return
		}
		most := s.bodies.limit + 2*max(liveHeap()-s.bodies.used.Load(), 0) + memorySlack
		if change := most - last; change > memorySlack/4 || change < -memorySlack/4 {
			debug.SetMemoryLimit(most)
			last = most
		}
		runtime.AddCleanup(new([64]byte), adjust, struct{}{})
	}
	adjust(struct{}{})
}

// liveHeap is what the last collection has found in use, in bytes.
func liveHeap() int64 {
	sample := []gometrics.Sample{{Name: "/gc/heap/live:bytes"}}
	gometrics.Read(sample)
	if sample[0].Value.Kind() != gometrics.KindUint64 {
		return math.MaxInt64 / 4 // an older or later Go: no bound
	}
	return int64(sample[0].Value.Uint64())
}
