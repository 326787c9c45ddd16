package web

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	dto "github.com/prometheus/client_model/go"
)

const (
	sampleEvery = 10 * time.Second
	sampleCount = 360 // an hour
)

// history is the last hour of the Edge's own metrics, for the charts of the overview.
type history struct {
	mu     sync.Mutex
	points []point
	last   reading // of which the next point is the difference
}

// point is what happened in one interval, and how things stood at its end. NaN: nothing to go by.
type point struct {
	at                     time.Time
	requests, in, out      float64 // per second
	firstP50, firstP95     float64 // milliseconds
	queued, running, place float64
}

// reading is the state of the counters at one time.
type reading struct {
	at                time.Time
	requests, in, out float64
	first             map[float64]float64 // cumulative counts by upper bound
	queued, running   float64
	capacity          float64
}

// sample reads the metrics until the Edge closes.
func (c *console) sample() {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		if got, err := c.read(); err != nil {
			c.log.Warn("console: the metrics could not be read", "error", err)
		} else {
			c.history.add(got)
		}
		select {
		case <-ticker.C:
		case <-c.parts.Done:
			return
		}
	}
}

// read takes the metrics as a scraper does.
func (c *console) read() (reading, error) {
	req, err := http.NewRequest(http.MethodGet, "/metrics", nil)
	if err != nil {
		return reading{}, err
	}
	got := &answer{header: http.Header{}}
	c.parts.Metrics.ServeHTTP(got, req)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(&got.body)
	if err != nil {
		return reading{}, err
	}
	r := reading{
		at: time.Now(), requests: sum(families["iop_requests_total"], "", ""),
		in:     sum(families["iop_tokens_total"], "gen_ai_token_type", "input"),
		out:    sum(families["iop_tokens_total"], "gen_ai_token_type", "output"),
		queued: sum(families["iop_queued"], "", ""), running: sum(families["iop_runs_in_flight"], "", ""),
		capacity: sum(families["iop_capacity"], "", ""), first: map[float64]float64{},
	}
	if f := families["iop_time_to_first_token_seconds"]; f != nil {
		for _, m := range f.Metric {
			for _, b := range m.GetHistogram().GetBucket() {
				r.first[b.GetUpperBound()] += float64(b.GetCumulativeCount())
			}
		}
	}
	return r, nil
}

// sum adds up a family's counters and gauges, those with the label's value alone where one is named.
func sum(f *dto.MetricFamily, label, value string) (total float64) {
	if f == nil {
		return 0
	}
	for _, m := range f.Metric {
		if label != "" && labelOf(m, label) != value {
			continue
		}
		total += m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return total
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.Label {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// add makes a point of the difference to the reading of before.
func (h *history) add(now reading) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.last
	h.last = now
	if before.at.IsZero() {
		return
	}
	seconds := max(now.at.Sub(before.at).Seconds(), 0.001)
	delta := map[float64]float64{}
	for bound, n := range now.first {
		delta[bound] = n - before.first[bound]
	}
	p := point{
		at: now.at, requests: (now.requests - before.requests) / seconds, in: (now.in - before.in) / seconds, out: (now.out - before.out) / seconds,
		firstP50: 1000 * quantile(delta, 0.5), firstP95: 1000 * quantile(delta, 0.95),
		queued: now.queued, running: now.running, place: now.capacity,
	}
	if len(h.points) == sampleCount {
		h.points = append(h.points[:0], h.points[1:]...)
	}
	h.points = append(h.points, p)
}

// quantile is the upper bound of the bucket in which the quantile lies, interpolated as Prometheus does; NaN of none.
func quantile(cumulative map[float64]float64, q float64) float64 {
	bounds := make([]float64, 0, len(cumulative))
	for b := range cumulative {
		bounds = append(bounds, b)
	}
	slices.Sort(bounds)
	if len(bounds) == 0 || cumulative[bounds[len(bounds)-1]] <= 0 {
		return math.NaN()
	}
	rank := q * cumulative[bounds[len(bounds)-1]]
	lower, below := 0.0, 0.0
	for _, b := range bounds {
		if n := cumulative[b]; n >= rank {
			if math.IsInf(b, 1) {
				return lower
			}
			return lower + (b-lower)*(rank-below)/max(n-below, 1)
		}
		lower, below = b, cumulative[b]
	}
	return lower
}

// number is a value in JSON, null where there is none.
type number float64

// MarshalJSON implements json.Marshaler.
func (n number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(math.Round(float64(n)*1000) / 1000)
}

// series answers with the history, a list for each thing.
func (c *console) series(w http.ResponseWriter, _ *http.Request) error {
	c.history.mu.Lock()
	lists := map[string][]number{}
	for _, name := range []string{"time", "requests", "in", "out", "p50", "p95", "queued", "running", "capacity"} {
		lists[name] = []number{} // a chart of nothing is empty, not broken
	}
	for _, p := range c.history.points {
		for name, v := range map[string]float64{
			"time": float64(p.at.UnixMilli()) / 1000, "requests": p.requests, "in": p.in, "out": p.out, "p50": p.firstP50,
			"p95": p.firstP95, "queued": p.queued, "running": p.running, "capacity": p.place,
		} {
			lists[name] = append(lists[name], number(v))
		}
	}
	c.history.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(lists)
}
