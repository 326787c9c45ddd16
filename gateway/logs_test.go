package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"iop/gateway"
)

// The handler's lines mean the same as those of slog's own.
func TestLogHandlerSaysWhatSlogSays(t *testing.T) {
	var ours, theirs bytes.Buffer
	a, b := slog.New(gateway.NewLogHandler(&ours, slog.LevelInfo)), slog.New(slog.NewJSONHandler(&theirs, nil))
	write := func(l *slog.Logger) {
		l.Debug("not written")
		l.Info("plain", "s", "x", "n", 1, "f", 1.5, "d", time.Second, "b", true, "u", uint64(math.MaxUint64))
		l.Warn("quote \" and \n newline", "k\"ey", "日本\u2028\x01", "e", errors.New("broken"), "nil", nil)
		l.Info("any", "v", map[string]int{"a": 1}, "g", slog.GroupValue(slog.Int("x", 1), slog.Group("", slog.Int("y", 2))), "empty", slog.GroupValue())
		l.With("a", 1).WithGroup("g").With("b", 2).WithGroup("h").Info("nested", "c", 3)
		l.WithGroup("g").Info("nothing but groups", "c", slog.StringValue("v"))
	}
	write(a)
	write(b)
	got, want := strings.Split(ours.String(), "\n"), strings.Split(theirs.String(), "\n")
	if len(got) != len(want) {
		t.Fatalf("%d lines, want %d", len(got), len(want))
	}
	for i := range want[:len(want)-1] {
		var g, w map[string]any
		if err := json.Unmarshal([]byte(got[i]), &g); err != nil {
			t.Errorf("line %d: %v in %s", i, err, got[i])
			continue
		}
		if err := json.Unmarshal([]byte(want[i]), &w); err != nil {
			t.Fatal(err)
		}
		delete(g, "time")
		delete(w, "time")
		gj, _ := json.Marshal(g)
		wj, _ := json.Marshal(w)
		if !bytes.Equal(gj, wj) {
			t.Errorf("line %d is\n%s, want\n%s", i, gj, wj)
		}
	}
}

func TestLogWriterCollectsAndLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &countingWriter{}
		l := gateway.NewLogWriter(out)
		for range 100 {
			io.WriteString(l, "line\n")
		}
		synctest.Wait()
		if n, _ := out.counts(); n != 0 {
			t.Errorf("%d writes at once", n)
		}
		time.Sleep(200 * time.Millisecond) // synthetic
		if n, size := out.counts(); n != 1 || size != 500 {
			t.Errorf("after a moment: %d writes, %d bytes", n, size)
		}
		io.WriteString(l, "last\n")
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if _, size := out.counts(); size != 505 {
			t.Errorf("Close lost lines: %d bytes", size)
		}
		io.WriteString(l, "after\n")
		if _, size := out.counts(); size != 511 {
			t.Error("a line after Close is lost")
		}
	})
}

func TestLogWriterNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		l := gateway.NewLogWriter(w)
		line := strings.Repeat("x", 1023) + "\n"
		for range 20_000 {
			io.WriteString(l, line) // nobody reads
		}
		var all bytes.Buffer
		go func() { _, _ = io.Copy(&all, r) }()
		l.Close()
		w.Close()
		synctest.Wait()
		if !strings.Contains(all.String(), `"dropped":`) {
			t.Error("nothing is said of the lost lines")
		}
	})
}

type countingWriter struct {
	mu  sync.Mutex
	buf bytes.Buffer
	n   int
}

func (c *countingWriter) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return c.buf.Write(p)
}

func (c *countingWriter) counts() (writes, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n, c.buf.Len()
}

func BenchmarkLogLine(b *testing.B) {
	for name, h := range map[string]slog.Handler{
		"ours": gateway.NewLogHandler(io.Discard, slog.LevelInfo),
		"slog": slog.NewJSONHandler(io.Discard, nil),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r := slog.NewRecord(time.Now(), slog.LevelInfo, "request", 0)
				r.AddAttrs(slog.String("op", "chat.completions"), slog.String("model", "llama3"), slog.String("run_id", "run_abcdefghijklmnopqrstuv"),
					slog.Int("status", 200), slog.String("outcome", "completed"), slog.Float64("ttfb_ms", 12.345), slog.Int64("bytes", 1234),
					slog.String("node", "n1"), slog.String("provider", "p"), slog.String("reason", "least_busy 1/4 of 2"), slog.Int("attempts", 1))
				_ = h.Handle(context.Background(), r)
			}
		})
	}
}
