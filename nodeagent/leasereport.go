package nodeagent

import (
	"context"
	"log/slog"
	"time"

	"iop/lease"
)

// reportEvery is how often the log sums up what became of leases. A Node listens nowhere, so its log is where an operator
// sees that; each refusal has a line of its own beside it.
const reportEvery = 10 * time.Minute

// reportLeases sums up the counters in the log when they have changed, until ctx ends, and then once more.
func (a *Agent) reportLeases(ctx context.Context) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	var told int64
	for ended := false; !ended; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			ended = true
		}
		if sum := a.leases.sum(); sum != told {
			told = sum
			a.log.LogAttrs(ctx, slog.LevelInfo, "leases since the start", a.leases.attributes()...)
		}
	}
}

// sum counts whatever is counted.
func (c *LeaseCounters) sum() int64 {
	sum := c.Opened() + c.Unwanted() + c.Missing()
	for _, reason := range lease.Reasons() {
		sum += c.Rejected(reason)
	}
	return sum
}

// attributes are the counters as a log has them; of the reasons those that were ever given.
func (c *LeaseCounters) attributes() []slog.Attr {
	attributes := []slog.Attr{slog.Int64("opened", c.Opened()), slog.Int64("unwanted", c.Unwanted()), slog.Int64("missing", c.Missing())}
	var refused []any
	for _, reason := range lease.Reasons() {
		if n := c.Rejected(reason); n > 0 {
			refused = append(refused, slog.Int64(reason.String(), n))
		}
	}
	return append(attributes, slog.Group("refused", refused...))
}
