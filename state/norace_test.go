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
	sources := strings.Replace(sourceColumns, " model", " model || '-' || n.i", 1)
	runs := strings.NewReplacer("run_id", "run_id || '-' || n.i", "source", "n.i + 1").Replace(runColumns)
	const numbers = `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1 - 1) `
	for _, insert := range []string{
		`INSERT INTO usage_sources (id, ` + sourceColumns + `, last_day) SELECT n.i + 1, ` + sources + `, last_day FROM usage_sources, n`,
		`INSERT INTO usage_runs (` + runColumns + `) SELECT ` + runs + ` FROM usage_runs, n`,
	} {
		if _, err := s.db.write.Exec(numbers+insert, maxUsageRows); err != nil {
			t.Fatal(err)
		}
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
