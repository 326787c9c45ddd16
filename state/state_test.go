package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestOpenRefusesURLs(t *testing.T) {
	for url, want := range map[string]string{
		"":                                "unknown form",
		"iop.db":                          "unknown form",
		"sqlite:iop.db":                   "unknown form",
		"sqlite://":                       "file's name is missing",
		"sqlite:///":                      "file's name is missing",
		"sqlite:///var/lib/":              "file's name is missing",
		"sqlite://:memory:":               "sqlite::memory:",
		"sqlite:///x.db?_pragma=foo":      "no options",
		"postgres://iop:hunter2@db/iop":   "not built in yet",
		"postgresql://iop:hunter2@db/iop": "not built in yet",
		"mysql://iop:hunter2@db/iop":      `unknown scheme "mysql"`,
		"hunter2":                         "unknown form",
		"sqlite:///x.db#hunter2":          "no options",
		"sqlite:///x\x00.db":              "no options",
	} {
		s, err := Open(t.Context(), url)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v; want %q and no password", url, err, want)
		}
	}
}

func TestFilesAreOurs(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no modes")
	}
	directory := filepath.Join(t.TempDir(), "a", "b")
	s := openURL(t, "sqlite://"+directory+"/iop.db")
	if _, _, err := s.AdminToken(t.Context()); err != nil {
		t.Fatal(err)
	}
	createKey(t, s, KeySpec{Name: "k"})
	mode := func(path string) fs.FileMode {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	if got := mode(directory); got != 0o700 {
		t.Errorf("directory: %o", got)
	}
	files, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
		if got := mode(filepath.Join(directory, f.Name())); got != 0o600 {
			t.Errorf("%s: %o", f.Name(), got)
		}
	}
	if got := strings.Join(names, " "); got != "admin-token iop.db iop.db-shm iop.db-wal pepper" {
		t.Errorf("files: %s", got)
	}
}

func TestRelativePathAndOddNames(t *testing.T) {
	for _, name := range []string{"iop.db", "dir/iop.db", "a b%20c;&='\"é.db"} {
		t.Chdir(t.TempDir())
		s := openURL(t, "sqlite://"+name)
		createKey(t, s, KeySpec{Name: "k"})
		if _, err := os.Stat(name); err != nil {
			t.Errorf("%v", err)
		}
		if keys, err := openURL(t, "sqlite://"+name).Keys(t.Context()); err != nil || len(keys) != 1 {
			t.Errorf("%s opened again: %v, %v", name, keys, err)
		}
	}
}

func TestOpenRefusesWhatIsNoState(t *testing.T) {
	directory := t.TempDir()
	text := filepath.Join(directory, "text.db")
	if err := os.WriteFile(text, []byte(strings.Repeat("this is no database\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{text, directory, filepath.Join(text, "iop.db")} {
		if s, err := Open(t.Context(), "sqlite://"+path); err == nil {
			s.Close()
			t.Errorf("%s was opened", path)
		} else if !strings.Contains(err.Error(), path) {
			t.Errorf("%s: the error does not name it: %v", path, err)
		}
	}
}

func TestOpenRefusesNewerSchema(t *testing.T) {
	url := fileURL(t)
	s, err := Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.write.Exec(`INSERT INTO ` + schemaTable + ` (version_id, is_applied) VALUES (4711, 1)`); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(t.Context(), url); err == nil {
		s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "newer iop") || !strings.Contains(err.Error(), "4711") {
		t.Errorf("%v", err)
	}
}

// What SQLite does with a commit is decided by these.
func TestDurability(t *testing.T) {
	s := openURL(t, fileURL(t))
	read := func(pragma string) string {
		got, err := queryOne(t.Context(), s.db.write, scanOne[string], "PRAGMA "+pragma)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "busy_timeout": "10000"} {
		if got := read(pragma); got != want {
			t.Errorf("%s is %s, want %s", pragma, got, want)
		}
	}
	if n := s.db.write.Stats().MaxOpenConnections; n != 1 {
		t.Errorf("%d connections write", n)
	}
	if _, err := s.db.read.Exec(`DELETE FROM api_keys`); err == nil {
		t.Error("a reading connection wrote")
	}
}

// A writer in another process holds the file for a while: writers wait for it, readers don't.
func TestWritersWaitForEachOther(t *testing.T) {
	url := fileURL(t)
	a, b := openURL(t, url), openURL(t, url)
	hold := func() *sql.Tx {
		tx, err := a.db.write.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	write := func(ctx context.Context) <-chan error {
		result := make(chan error, 1)
		go func() {
			_, err := b.NextGeneration(ctx, "n", 0)
			result <- err
		}()
		for b.db.write.Stats().InUse == 0 && len(result) == 0 { // until it is at the file
			runtime.Gosched()
		}
		return result
	}

	tx := hold()
	result := write(t.Context())
	if _, err := b.Keys(t.Context()); err != nil {
		t.Errorf("a reader meets the writer: %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Errorf("it did not wait: %v", err)
	}

	tx = hold()
	defer tx.Rollback()
	ctx, cancel := context.WithCancel(t.Context())
	result = write(ctx)
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("waiting does not end with the context: %v", err)
	}
}

func TestMemoryStoresAreApart(t *testing.T) {
	a, b := openURL(t, "sqlite::memory:"), openURL(t, "sqlite::memory:")
	_, presented := createKey(t, a, KeySpec{Name: "k"})
	if _, err := b.VerifyKey(t.Context(), presented); !errors.Is(err, ErrInvalidKey) {
		t.Errorf("the other store: %v", err)
	}
}

// Cancelled queries may cost a connection, but not the database that only lives in connections.
func TestMemorySurvivesCancelledQueries(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	key, _ := createKey(t, s, KeySpec{Name: "k"})
	last := uint64(0)
	for i := range 200 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Microsecond)
		next, err := s.NextGeneration(ctx, "n", 0)
		cancel()
		if err == nil && uint64(next) <= last {
			t.Fatalf("%d after %d", next, last)
		} else if err == nil {
			last = uint64(next)
		}
	}
	keys, err := s.Keys(t.Context())
	if err != nil || len(keys) != 1 || keys[0].ID != key.ID {
		t.Errorf("%+v, %v", keys, err)
	}
	if next, err := s.NextGeneration(t.Context(), "n", 0); err != nil || uint64(next) <= last {
		t.Errorf("%d after %d, %v", next, last, err)
	}
}

func TestPingAndClose(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		if err := s.Ping(t.Context()); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := s.Ping(t.Context()); err == nil {
			t.Error("a closed state answers")
		}
		if _, err := s.NextGeneration(t.Context(), "n", 0); err == nil {
			t.Error("a closed state gives generations")
		}
	})
}

// The context of Open is for the opening: what it ends must not end the background work.
func TestOpenContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s, err := Open(ctx, "sqlite::memory:")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	_, presented := createKey(t, s, KeySpec{Name: "k"})
	if _, err := s.VerifyKey(t.Context(), presented); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if s, err := Open(ctx, fileURL(t)); err == nil {
		s.Close()
		t.Error("opened with an ended context")
	}
}

func ExampleStore_CreateKey() {
	ctx := context.Background()
	s, err := Open(ctx, "sqlite::memory:")
	if err != nil {
		panic(err)
	}
	defer s.Close()
	_, secret, err := s.CreateKey(ctx, KeySpec{Name: "laptop", Routes: []string{"llama*"}})
	if err != nil {
		panic(err)
	}
	fmt.Println("it prints as", secret)
	key, err := s.VerifyKey(ctx, secret.Reveal())
	if err != nil {
		panic(err)
	}
	fmt.Println(key.Name, key.AllowsModel("llama3:8b"), key.AllowsModel("gpt-oss"))
	// Output:
	// it prints as [secret]
	// laptop true false
}
