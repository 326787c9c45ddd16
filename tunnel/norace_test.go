//go:build !race

package tunnel

import "testing"

// raceDetector is set where everything takes several times as long.
const raceDetector = false

// What a chunk and a run allocate at both ends together: the numbers may fall, and must not rise unseen.
func TestAllocations(t *testing.T) {
	chunks := testing.Benchmark(func(b *testing.B) { benchChunks(b, 64, 220) })
	if n := chunks.AllocsPerOp(); n > 1 {
		t.Errorf("%d allocations for each chunk", n)
	}
}
