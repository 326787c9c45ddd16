package state

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"modernc.org/sqlite"
)

// cacheUsed is how many bytes the page caches of all connections of a pool take.
func cacheUsed(t *testing.T, db *sql.DB, connections int) (total int) {
	t.Helper()
	for range connections {
		c, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() // at the end: the next one is another
		err = c.Raw(func(driver any) error {
			used, _, err := driver.(sqlite.DBStatus).Status(sqlite.DBStatusCacheUsed, false)
			total += used
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return total
}

// TestMemoryOfManyRecords: what was written and gone through once does not stay in memory. A page cache lies outside Go's heap,
// where no profile shows it.
func TestMemoryOfManyRecords(t *testing.T) {
	// Not in parallel: SQLite lets a connection's cache use what those of other Stores in the process leave over.
	s := openURL(t, fileURL(t))
	began := time.Now().Add(-time.Hour)
	var records []UsageRecord
	for i := range 16_000 {
		records = append(records, used(i, began.Add(time.Duration(i)*time.Millisecond)))
	}
	addAll(t, s, records...)
	conns := make([]*sql.Conn, readers)
	for i := range conns {
		var err error
		if conns[i], err = s.db.read.Conn(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range conns {
		var n, tokens int
		if err := c.QueryRowContext(t.Context(), `SELECT COUNT(*), SUM(input) FROM usage_runs`).Scan(&n, &tokens); err != nil || n != len(records) {
			t.Errorf("%d records, %v", n, err)
		}
		c.Close()
	}
	var pages int
	if err := s.db.read.QueryRowContext(t.Context(), `PRAGMA page_count`).Scan(&pages); err != nil || pages*4 < 3*pageCache {
		t.Fatalf("the file has %d pages, which hardly fill a cache, %v", pages, err)
	}
	for name, pool := range map[string]struct {
		*sql.DB
		connections int
	}{"readers": {s.db.read.DB, readers}, "the writer": {s.db.write.DB, 1}} {
		// SQLite counts its own book-keeping for each page as well.
		bound := pool.connections * pageCache << 10 * 3 / 2
		if n := cacheUsed(t, pool.DB, pool.connections); n > bound {
			t.Errorf("the caches of %s take %s, want at most %s", name, kib(n), kib(bound))
		}
	}
}

func kib(n int) string { return fmt.Sprintf("%d KiB", n>>10) }
