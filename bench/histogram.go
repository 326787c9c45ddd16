package bench

import (
	"math"
	"time"
)

// The histogram's buckets grow by 2 %, from a microsecond: a quantile is that exact, and memory stays fixed.
const (
	bucketGrowth = 1.02
	bucketCount  = 1120 // 1 us * 1.02^1120 is more than an hour
	bucketUnit   = time.Microsecond
)

// histogram counts durations. The zero value is empty.
type histogram struct {
	counts [bucketCount]int64
	n      int64
	max    time.Duration
}

func (h *histogram) add(d time.Duration) {
	h.counts[bucket(d)]++
	h.n++
	h.max = max(h.max, d)
}

func (h *histogram) merge(other *histogram) {
	for i, n := range other.counts {
		h.counts[i] += n
	}
	h.n += other.n
	h.max = max(h.max, other.max)
}

// quantile returns the upper border of the bucket in which the q-th of all durations lies, 0 of none.
func (h *histogram) quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := int64(math.Ceil(q * float64(h.n)))
	var seen int64
	for i, n := range h.counts {
		if seen += n; seen >= rank && n > 0 {
			return min(border(i), h.max)
		}
	}
	return h.max
}

func bucket(d time.Duration) int {
	if d <= bucketUnit {
		return 0
	}
	i := int(math.Ceil(math.Log(float64(d)/float64(bucketUnit)) / math.Log(bucketGrowth)))
	return min(i, bucketCount-1)
}

func border(i int) time.Duration {
	return time.Duration(float64(bucketUnit) * math.Pow(bucketGrowth, float64(i)))
}
