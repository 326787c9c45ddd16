package nodeagent

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLeaseReport: the log sums up leases when there is something new, and when the Node ends.
func TestLeaseReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		a := &Agent{log: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); a.reportLeases(ctx) }()
		lines := func(after time.Duration) (text string) {
			time.Sleep(after)
			synctest.Wait()
			text = log.String()
			log.Reset()
			return text
		}
		if text := lines(reportEvery); text != "" {
			t.Errorf("without leases: %s", text)
		}
		a.leases.unwanted.Add(2)
		if text := lines(reportEvery); strings.Count(text, "\n") != 1 || !strings.Contains(text, "opened=0 unwanted=2 missing=0\n") {
			t.Errorf("two were unwanted: %s", text)
		}
		if text := lines(3 * reportEvery); text != "" {
			t.Errorf("nothing new: %s", text)
		}
		a.leases.missing.Add(1)
		cancel()
		<-done
		if text := lines(0); !strings.Contains(text, "unwanted=2 missing=1\n") {
			t.Errorf("at the end: %s", text)
		}
	})
}
