package gateway

import (
	"math"
	"strings"
	"testing"
	"time"

	"iop/state"
)

// A time on the wire never wraps: what is longer than its 49 days stays the longest that can be said.
func TestMillisecondsDoNotWrap(t *testing.T) {
	for d, want := range map[time.Duration]uint32{
		-time.Hour: 0, 0: 0, 1: 1, time.Millisecond: 1, time.Hour: 3_600_000, 49 * 24 * time.Hour: 49 * 24 * 3_600_000,
		50 * 24 * time.Hour: math.MaxUint32, math.MaxInt64: math.MaxUint32, math.MinInt64: 0,
	} {
		if got := milliseconds(d); got != want {
			t.Errorf("%s is %d, want %d", d, got, want)
		}
	}
}

func TestTimeoutsAreBounded(t *testing.T) {
	for name, set := range map[string]func(*Config){
		"total": func(c *Config) { c.TotalTimeout = MaxTimeout + 1 }, "queue": func(c *Config) { c.QueueTimeout = 1200 * time.Hour },
		"drain": func(c *Config) { c.DrainTimeout = math.MaxInt64 },
	} {
		c := Config{Store: new(state.Store), Listen: ":0", AdminListen: ":0"}
		set(&c)
		if _, err := c.checked(); err == nil || !strings.Contains(err.Error(), "at most 24h") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
