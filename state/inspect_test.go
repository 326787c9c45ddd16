package state

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestInspect: a state is described without a change, whether it is missing, open elsewhere, newer or no database.
func TestInspect(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	url := "sqlite://" + filepath.Join(dir, "iop.db")
	i, err := Inspect(t.Context(), url)
	if err != nil || !i.Missing || i.Directory() != dir || i.Known < 5 {
		t.Errorf("missing: %+v, %v", i, err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a look made the directory")
	}

	store, err := Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if i, err = Inspect(t.Context(), url); err != nil || i.Missing || i.Schema != i.Known {
		t.Errorf("open elsewhere: %+v, %v", i, err)
	}
	_, err = store.db.write.ExecContext(context.Background(), "INSERT INTO "+schemaTable+" (version_id, is_applied) VALUES (9999, 1)")
	if err := errors.Join(err, store.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err = Inspect(t.Context(), url); !errors.Is(err, ErrNewer) {
		t.Errorf("newer: %v", err)
	}

	broken := filepath.Join(t.TempDir(), "iop.db")
	if err := os.WriteFile(broken, []byte("this is no database, and longer than a header of one, which has a hundred bytes .........................."), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err = Inspect(t.Context(), "sqlite://"+broken); err == nil {
		t.Error("no database: no error")
	}
	for _, url := range []string{"sqlite::memory:", "postgres://h/d", "x"} {
		if _, err = Inspect(t.Context(), url); err == nil {
			t.Errorf("%s: no error", url)
		}
	}
}
