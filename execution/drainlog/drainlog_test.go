package drainlog_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution/drainlog"
)

func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		var open atomic.Int64
		open.Store(3)
		stop := drainlog.Start(log, 30*time.Second, open.Load, "queued", 2)
		time.Sleep(9 * time.Second) // nothing changes: nothing is logged
		open.Store(1)
		time.Sleep(4 * time.Second)
		stop()
		open.Store(0)
		time.Sleep(time.Minute)
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "msg=draining runs=3 timeout=30s") || !strings.Contains(lines[0], "queued=2") ||
			!strings.Contains(lines[1], `msg="still draining" runs=1 left=20s`) {
			t.Errorf("it logged\n%s", out.String())
		}
	})
}
