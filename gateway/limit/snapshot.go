package limit

import (
	"net/http"
	"strconv"
	"time"
)

// Window is a limit per minute as it stands. A zero Limit stands for none.
type Window struct {
	Limit     int64
	Remaining int64         // what may be used at once
	Reset     time.Duration // until all of Limit may be used at once, if nothing is used
}

// Snapshot is how a key's limits per minute stand.
type Snapshot struct {
	Requests, Tokens Window
}

// Headers sets x-ratelimit-{limit,remaining,reset}-{requests,tokens}, for the limits that there are.
func (s Snapshot) Headers(h http.Header) {
	s.Requests.headers(h, "X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests")
	s.Tokens.headers(h, "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens")
}

func (w Window) headers(h http.Header, limit, remaining, reset string) {
	if w.Limit == 0 {
		return
	}
	values := [3]string{strconv.FormatInt(w.Limit, 10), strconv.FormatInt(w.Remaining, 10), resetText(w.Reset)}
	h[limit], h[remaining], h[reset] = values[0:1:1], values[1:2:2], values[2:3:3]
}

// resetText is a duration as clients know it from OpenAI: "1s", "6m0s", "120ms". It is rounded up to milliseconds, so
// that it is never too early.
func resetText(d time.Duration) string {
	if up := d.Truncate(time.Millisecond); up < d {
		d = up + time.Millisecond
	}
	return d.String()
}
