package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"iop/state"
)

// TestCalm: failures of the state are logged once a second, from all parts together; anything else is logged each time.
func TestCalm(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	h := newCalm(slog.NewTextHandler(&out, nil))
	failed := fmt.Errorf("verify key: %w", &state.FaultError{Fault: state.FaultDeleted})
	now := time.Now()
	line := func(after time.Duration, message string, level slog.Level, err error) {
		t.Helper()
		r := slog.NewRecord(now.Add(after), level, message, 0)
		r.AddAttrs(slog.String("remote", "x"), slog.Any("error", err))
		var handler slog.Handler = h
		if message == "other" {
			handler = h.WithAttrs([]slog.Attr{slog.String("part", "p")}).WithGroup("g")
		}
		if err := handler.Handle(context.Background(), r); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100 {
		line(time.Duration(i)*time.Millisecond, "state", slog.LevelError, failed)
		line(time.Duration(i)*time.Millisecond, "other", slog.LevelWarn, failed)
		line(time.Duration(i)*time.Millisecond, "unrelated", slog.LevelWarn, errors.New("x"))
		line(time.Duration(i)*time.Millisecond, "information", slog.LevelInfo, failed)
	}
	line(calmEvery+time.Millisecond, "state", slog.LevelError, failed)
	got := out.String()
	for message, want := range map[string]int{"msg=state": 2, "msg=other": 0, "msg=unrelated": 100, "msg=information": 100, "left_out=199": 1} {
		if n := strings.Count(got, message); n != want {
			t.Errorf("%s: %d lines", message, n)
		}
	}
}
