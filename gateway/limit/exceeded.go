package limit

import (
	"fmt"
	"time"
)

// Kind is which of a key's limits refused a request: a closed set, fit for a metric's label. The zero value is invalid.
type Kind uint8

// The limits of a key.
const (
	Requests    Kind = iota + 1 // a minute
	Tokens                      // a minute
	Concurrency                 // requests at once
	Budget                      // tokens a month
)

// String returns the kind as it stands in logs and metrics.
func (k Kind) String() string {
	names := [...]string{"", "requests", "tokens", "concurrency", "budget"}
	if int(k) >= len(names) {
		return fmt.Sprintf("unknown_%d", k)
	}
	return names[k]
}

// Exceeded says which limit refused a request. Where several do, it is the one that frees last.
type Exceeded struct {
	Kind  Kind
	Limit int64 // its value

	// RetryAfter is how long to wait: for Requests and Tokens until exactly when it frees if nobody else takes it, which
	// after a long run's debt may be many minutes; for Concurrency a second; for Budget a minute at most.
	RetryAfter time.Duration

	// Frees is when the limit frees: for Budget the end of the month in UTC.
	Frees time.Time

	// Left is what is left of the Budget, and Needed what the request counts as: both in tokens, and 0 for other kinds.
	Left, Needed int64

	// NoRetry says that trying again is of no use for as long as a client may wait: the month's budget is used up.
	NoRetry bool
}

// Message says which limit refused the request and when it frees, in words for the client. It names no key.
func (e *Exceeded) Message() string {
	again := "Try again in " + resetText(e.RetryAfter) + "."
	switch {
	case e.Kind == Requests:
		return fmt.Sprintf("Rate limit reached: this API key is limited to %s per minute. %s", counted(e.Limit, "request"), again)
	case e.Kind == Tokens:
		return fmt.Sprintf("Rate limit reached: this API key is limited to %s per minute. %s", counted(e.Limit, "token"), again)
	case e.Kind == Concurrency:
		return fmt.Sprintf("Rate limit reached: this API key is limited to %s. Try again when one has finished.", counted(e.Limit, "concurrent request"))
	case e.NoRetry:
		return fmt.Sprintf("This API key's budget of %s per month has %d left, and this request may need %d. "+
			"The next month begins at %s.", counted(e.Limit, "token"), e.Left, e.Needed, e.Frees.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("The rest of this API key's budget of %s per month is reserved by requests in progress. %s",
		counted(e.Limit, "token"), again)
}

// counted is a number of things in words.
func counted(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// shortRetry is how long to wait for what frees when another request ends, nobody knows when.
const shortRetry = time.Second

// longestRetry is how long a client is told to wait for the month's end: some take no longer wait as an answer.
const longestRetry = time.Minute

// worse returns the one of two that frees later; either may be nil.
func worse(a, b *Exceeded) *Exceeded {
	if a == nil || b != nil && b.Frees.After(a.Frees) {
		return b
	}
	return a
}
