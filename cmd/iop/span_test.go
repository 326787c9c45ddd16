package main

import (
	"testing"
	"time"
)

func TestSpan(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90d": 90 * day, "0d": 0, "1d12h": 36 * time.Hour, "36h": 36 * time.Hour, "30s": 30 * time.Second, "0": 0, "-1h": -time.Hour,
	} {
		var s span
		if err := s.Set(text); err != nil || time.Duration(s) != want {
			t.Errorf("%q is %v, %v; want %v", text, time.Duration(s), err, want)
		}
	}
	for _, text := range []string{"", "d", "90", "1.5d", "-1d", "1d24h", "1d-1h", "1d1d", "99999999d", "9999999999h", "x", "1 d"} {
		var s span
		if err := s.Set(text); err == nil {
			t.Errorf("%q is %v", text, time.Duration(s))
		}
	}
	for want, s := range map[string]span{"": 0, "90d": span(90 * day), "36h0m0s": span(36 * time.Hour)} {
		if got := s.String(); got != want {
			t.Errorf("%v reads %q, want %q", time.Duration(s), got, want)
		}
	}
}
