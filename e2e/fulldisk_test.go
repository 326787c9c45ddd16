package e2e

import (
	"database/sql"
	"fmt"
	"net/http"
	"strings"
	"testing"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// setFull has SQLite answer each write to the state as it does on a full disk, or no longer: a trigger before each write
// inserts into a table that has used the last row number, which fails with the same SQLITE_FULL. A disk that is really full
// takes root, a mount, or a quota.
func (s *stack) setFull(t *testing.T, full bool) {
	t.Helper()
	db, err := sql.Open("sqlite", s.path()+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	run := func(statement string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	run("CREATE TABLE IF NOT EXISTS full (id INTEGER PRIMARY KEY AUTOINCREMENT)")
	run("INSERT OR IGNORE INTO full VALUES (9223372036854775807)")
	for _, table := range s.tables(t, db) {
		for _, write := range []string{"INSERT", "UPDATE", "DELETE"} {
			name := fmt.Sprintf("full_%s_%s", table, write)
			if full {
				run("CREATE TRIGGER " + name + " BEFORE " + write + " ON " + table + " BEGIN INSERT INTO full (id) VALUES (NULL); END")
			} else {
				run("DROP TRIGGER " + name)
			}
		}
	}
}

// tables are those of the state.
func (s *stack) tables(t *testing.T, db *sql.DB) (names []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name <> 'full'")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	if err := rows.Err(); err != nil || len(names) < 10 {
		t.Fatalf("%q, %v", names, err)
	}
	return names
}

// TestFullDisk: while the state's disk is full, commands, the log, the metrics and Nodes that can't be let in say so; clients
// with a known key are served; and what ran is recorded once there is room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{})
	s.served(t, chat("sim-small", "tokens=2", false))
	s.setFull(t, true)
	for _, command := range [][]string{{"key", "create", "--name", "lost"}, {"join-token", "create"}} {
		out, stderr, err := tryIOP(t, s.env, command...)
		if err == nil || out != "" || !strings.Contains(stderr, "the disk is full") {
			t.Errorf("iop %s: %v, %q, %q", strings.Join(command, " "), err, out, stderr)
		}
	}
	s.edge.line("database or disk is full", patience)
	if n := s.metric(`iop_state_failures_total{reason="full"}`); n < 2 {
		t.Errorf("%v failures are counted", n)
	}
	s.served(t, chat("sim-small", "tokens=2", false))
	eventually(t, patience, "a record waits", func() bool { return s.metric("iop_usage_failures_total") > 0 && s.metric("iop_usage_pending") > 0 })
	late := s.launchNode("node-2", "--provider", "sim="+s.sims[0].url)
	late.line(`"code":"unavailable"`, patience)
	s.setFull(t, false)
	iop(t, s.env, "key", "create", "--name", "kept")
	eventually(t, patience, "the records are written, and the Node is let in", func() bool {
		return s.metric("iop_usage_pending") == 0 && s.nodeOnline("node-2")
	})
	if n := s.metric("iop_usage_dropped_total"); n != 0 {
		t.Errorf("%v records were lost", n)
	}
	if res, body := s.post("/v1/chat/completions", chat("sim-small", "tokens=2", false)); res.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %s %s", res.Status, body)
	}
}
