package gateway

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// chunkBounds are the upper bounds of the buckets for the time between two chunks of a stream.
var chunkBounds = [...]time.Duration{
	time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond,
	250 * time.Millisecond, 500 * time.Millisecond, time.Second, 5 * time.Second, 15 * time.Second, time.Minute,
}

// chunkTimes counts the times between the chunks of one stream, for as long as it lasts: a chunk costs an addition, and
// the shared counters are touched once a stream.
type chunkTimes struct {
	last   time.Time // the last chunk; zero before the first
	counts [len(chunkBounds) + 1]uint32
	sum    time.Duration
}

// note takes one chunk of a stream in.
func (c *chunkTimes) note(now time.Time) {
	if !c.last.IsZero() {
		d := now.Sub(c.last)
		i := 0
		for i < len(chunkBounds) && d > chunkBounds[i] {
			i++
		}
		c.counts[i]++
		c.sum += d
	}
	c.last = now
}

// chunkHistogram is the sum of the chunkTimes of a route's streams.
type chunkHistogram struct {
	counts [len(chunkBounds) + 1]atomic.Uint64
	sum    atomic.Int64 // nanoseconds
}

func (h *chunkHistogram) add(c *chunkTimes) {
	for i, n := range c.counts {
		if n > 0 {
			h.counts[i].Add(uint64(n))
		}
	}
	h.sum.Add(int64(c.sum))
}

// chunkCollector shows the chunkHistograms of all routes.
type chunkCollector struct{ routing *routing }

var chunkDesc = prometheus.NewDesc("iop_inter_chunk_seconds",
	"Time between two chunks of a stream as they are passed on. Chunks that arrive together count as one.", []string{"route"}, nil)

// Describe implements prometheus.Collector.
func (c chunkCollector) Describe(ch chan<- *prometheus.Desc) { ch <- chunkDesc }

// Collect implements prometheus.Collector.
func (c chunkCollector) Collect(ch chan<- prometheus.Metric) {
	for _, st := range c.routing.all() {
		buckets := make(map[float64]uint64, len(chunkBounds))
		var total uint64
		for i := range st.chunks.counts {
			total += st.chunks.counts[i].Load()
			if i < len(chunkBounds) {
				buckets[chunkBounds[i].Seconds()] = total
			}
		}
		if total > 0 {
			sum := time.Duration(st.chunks.sum.Load()).Seconds()
			ch <- prometheus.MustNewConstHistogram(chunkDesc, total, sum, buckets, st.name)
		}
	}
}
