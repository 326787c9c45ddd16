package bench

import (
	"maps"
	"time"
)

// Report is what a run came to. Times are milliseconds.
type Report struct {
	URL      string `json:"url"`
	Model    string `json:"model"`
	Stream   bool   `json:"stream"`
	Requests int64  `json:"requests"` // begun and ended
	Failed   int64  `json:"failed"`
	// Errors counts the failed requests by kind: see the Kind constants; an HTTP status is "http_429".
	Errors map[string]int64 `json:"errors,omitempty"`
	// FirstError is the message of the first failure.
	FirstError string  `json:"first_error,omitempty"`
	Seconds    float64 `json:"seconds"`
	// Latency is from the request until the answer's end; TTFT until its first token; InterToken between two tokens of
	// one stream. Failed requests are in none of them.
	Latency    Quantiles `json:"latency_ms"`
	TTFT       Quantiles `json:"ttft_ms"`
	InterToken Quantiles `json:"inter_token_ms"`
	// Tokens is what the answers' usage says, or the number of chunks with content where it says nothing.
	Tokens            int64   `json:"tokens"`
	TokensPerSecond   float64 `json:"tokens_per_second"`
	RequestsPerSecond float64 `json:"requests_per_second"`
}

// Quantiles of durations, in milliseconds, each within 2 %.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Kinds of failure.
const (
	KindConnect    = "connect"    // no connection, or it broke before the answer's head
	KindBroken     = "broken"     // the connection broke in the answer's body
	KindTruncated  = "truncated"  // the answer ended without saying that it was complete
	KindInBand     = "in_band"    // an error event within a stream
	KindBadAnswer  = "bad_answer" // the answer is not what the protocol says
	KindUnfinished = "unfinished" // cancelled at the run's end
)

// tally is what a run counts.
type tally struct {
	requests, failed, tokens int64
	errors                   map[string]int64
	firstError               string
	latency, ttft, between   histogram
}

func (t *tally) add(r *result) {
	t.requests++
	if r.kind == "" {
		t.tokens += r.tokens
		t.latency.add(r.latency)
		t.ttft.add(r.ttft)
		t.between.merge(&r.between)
		return
	}
	t.failed++
	if t.errors == nil {
		t.errors = map[string]int64{}
	}
	t.errors[r.kind]++
	if t.firstError == "" {
		t.firstError = r.message
	}
}

// merge adds what another run counted.
func (t *tally) merge(other *tally) {
	t.requests += other.requests
	t.failed += other.failed
	t.tokens += other.tokens
	if t.errors == nil {
		t.errors = map[string]int64{}
	}
	for kind, n := range other.errors {
		t.errors[kind] += n
	}
	if t.firstError == "" {
		t.firstError = other.firstError
	}
	t.latency.merge(&other.latency)
	t.ttft.merge(&other.ttft)
	t.between.merge(&other.between)
}

func (t *tally) report(cfg Config, elapsed time.Duration) Report {
	seconds := elapsed.Seconds()
	r := Report{
		URL: cfg.Target.URL, Model: cfg.Target.Model, Stream: cfg.Stream,
		Requests: t.requests, Failed: t.failed, Errors: maps.Clone(t.errors), FirstError: t.firstError,
		Seconds: seconds, Latency: t.latency.quantiles(), TTFT: t.ttft.quantiles(), InterToken: t.between.quantiles(),
		Tokens: t.tokens,
	}
	if seconds > 0 {
		r.TokensPerSecond = float64(t.tokens) / seconds
		r.RequestsPerSecond = float64(t.requests-t.failed) / seconds
	}
	return r
}

func (h *histogram) quantiles() Quantiles {
	return Quantiles{
		P50: milliseconds(h.quantile(0.50)),
		P90: milliseconds(h.quantile(0.90)),
		P99: milliseconds(h.quantile(0.99)),
		Max: milliseconds(h.max),
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Comparison is two targets under the same load, in turn.
type Comparison struct {
	Target  Report `json:"target"`
	Against Report `json:"against"`
	// Ratios are the target's value over the other's; 0 where that one has none.
	Ratios Ratios `json:"ratios"`
}

// Ratios of two reports. For times, less than 1 means that the target is faster; for rates, more than 1.
type Ratios struct {
	LatencyP50        float64 `json:"latency_p50"`
	LatencyP99        float64 `json:"latency_p99"`
	TTFTP50           float64 `json:"ttft_p50"`
	TTFTP99           float64 `json:"ttft_p99"`
	InterTokenP50     float64 `json:"inter_token_p50"`
	InterTokenP99     float64 `json:"inter_token_p99"`
	TokensPerSecond   float64 `json:"tokens_per_second"`
	RequestsPerSecond float64 `json:"requests_per_second"`
}

func ratios(a, b Report) Ratios {
	return Ratios{
		LatencyP50:        ratio(a.Latency.P50, b.Latency.P50),
		LatencyP99:        ratio(a.Latency.P99, b.Latency.P99),
		TTFTP50:           ratio(a.TTFT.P50, b.TTFT.P50),
		TTFTP99:           ratio(a.TTFT.P99, b.TTFT.P99),
		InterTokenP50:     ratio(a.InterToken.P50, b.InterToken.P50),
		InterTokenP99:     ratio(a.InterToken.P99, b.InterToken.P99),
		TokensPerSecond:   ratio(a.TokensPerSecond, b.TokensPerSecond),
		RequestsPerSecond: ratio(a.RequestsPerSecond, b.RequestsPerSecond),
	}
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
