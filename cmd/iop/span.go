package main

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

const day = 24 * time.Hour

// span is a duration that may be given in days: "90d", "1d12h", "36h". It serves as a setting and as a flag.
type span time.Duration

// UnmarshalText reads a span. Its error does not show the text.
func (s *span) UnmarshalText(text []byte) error {
	d, err := parseSpan(string(text))
	if err == nil {
		*s = span(d)
	}
	return err
}

var errSpan = errors.New("it is not a duration with a unit, such as 36h or 90d")

func parseSpan(text string) (time.Duration, error) {
	var days time.Duration
	if count, rest, ok := strings.Cut(text, "d"); ok {
		n, err := strconv.ParseUint(count, 10, 16)
		if err != nil {
			return 0, errSpan
		}
		days, text = time.Duration(n)*day, rest
		if rest == "" {
			return days, nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || days > 0 && (d < 0 || d >= day) {
		return 0, errSpan
	}
	return days + d, nil
}

// Set reads the text of a flag.
func (s *span) Set(text string) error { return s.UnmarshalText([]byte(text)) }

// Type is what help shows as the flag's argument.
func (s *span) Type() string { return "duration" }

// String writes whole days as such; empty for 0, so that help shows no default.
func (s span) String() string {
	d := time.Duration(s)
	switch {
	case d == 0:
		return ""
	case d%day == 0:
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	return d.String()
}
