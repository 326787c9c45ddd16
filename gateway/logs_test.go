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
	"sync/atomic"
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

// stuckWriter takes nothing until it is freed.
type stuckWriter struct {
	countingWriter
	free chan struct{}
}

func (w *stuckWriter) Write(p []byte) (int, error) {
	<-w.free
	return w.countingWriter.Write(p)
}

// A process ends while nobody reads its log: neither Close nor a line after it waits for long.
func TestLogWriterClosesWithoutReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &stuckWriter{free: make(chan struct{})}
		defer close(out.free)
		l := gateway.NewLogWriter(out)
		io.WriteString(l, "line\n")
		began := time.Now()
		l.Close()
		io.WriteString(l, "after\n")
		l.Close()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// A reader that stops between Close and a late line holds up one line, not each.
func TestLogWriterLateLinesWithoutReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &stuckWriter{free: make(chan struct{})}
		defer close(out.free)
		l := gateway.NewLogWriter(out)
		l.Close()
		began := time.Now()
		for range 100 {
			io.WriteString(l, "late\n")
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// slowWriter takes its time for each write.
type slowWriter struct {
	countingWriter
	each time.Duration
}

func (w *slowWriter) Write(p []byte) (int, error) {
	time.Sleep(w.each) // synthetic
	return w.countingWriter.Write(p)
}

// A reader that is slow but reads gets all of it at the end.
func TestLogWriterWaitsForSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &slowWriter{each: 700 * time.Millisecond}
		l := gateway.NewLogWriter(out)
		line := strings.Repeat("x", 1023) + "\n"
		for range 300 { // five pieces
			io.WriteString(l, line)
		}
		l.Close()
		if _, size := out.counts(); size != 300<<10 {
			t.Errorf("%d bytes were written", size)
		}
	})
}

// failingWriter refuses everything while broken is set.
type failingWriter struct {
	countingWriter
	broken atomic.Bool
}

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.broken.Load() {
		return 0, errors.New("no space left on device")
	}
	return w.countingWriter.Write(p)
}

// Lines that could not be written are counted, and told when it is possible again.
func TestLogWriterCountsRefusedLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &failingWriter{}
		l := gateway.NewLogWriter(out)
		defer l.Close()
		out.broken.Store(true)
		for range 3 {
			io.WriteString(l, "lost\nlost too\n")
			time.Sleep(time.Second) // synthetic
		}
		out.broken.Store(false)
		io.WriteString(l, "kept\n")
		time.Sleep(time.Second)
		io.WriteString(l, "later\n")
		time.Sleep(time.Second)
		out.mu.Lock()
		defer out.mu.Unlock()
		lines := strings.Split(out.buf.String(), "\n")
		var told struct {
			Time    time.Time
			Dropped int
		}
		if err := json.Unmarshal([]byte(lines[0]), &told); err != nil || told.Dropped != 6 || told.Time.IsZero() {
			t.Errorf("%v, %+v", err, told)
		}
		if len(lines) != 4 || lines[1] != "kept" || lines[2] != "later" {
			t.Errorf("%q", lines)
		}
	})
}
