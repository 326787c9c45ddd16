//go:build !race

package state

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// It has no goroutines, and takes half a minute of SQLite under the race detector.
func TestUsageSummaryIsBounded(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	addAll(t, s, used(0, time.Now()))
	// The database makes the rest of the models much faster than they could be written one by one.
	columns := strings.NewReplacer("run_id", "run_id || '-' || n.i", " model,", " model || '-' || n.i,").Replace(usageColumns)
	_, err := s.db.write.Exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1 - 1)
		INSERT INTO usage_runs (`+usageColumns+`) SELECT `+columns+` FROM usage_runs, n`, maxUsageRows)
	if err != nil {
		t.Fatal(err)
	}
	if rows, err := s.UsageSummary(t.Context(), UsageQuery{By: []Dimension{ByModel}}); err != nil || len(rows) != maxUsageRows {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	more := used(1, time.Now())
	more.Model = "one more"
	addAll(t, s, more)
	if rows, err := s.UsageSummary(t.Context(), UsageQuery{By: []Dimension{ByModel}}); !errors.Is(err, ErrUsageTooMany) || rows != nil {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}
