package route

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const interval = 5 * time.Second

// watched is a Watcher over a file, and what it told.
type watched struct {
	t *testing.T
	*Watcher
	path string

	mu      sync.Mutex
	tables  []*Table
	refusal []string
}

// watch writes a file with one route and watches it until the test ends.
func watch(t *testing.T, path string) *watched {
	t.Helper()
	w := &watched{t: t, path: path}
	ctx, cancel := context.WithCancel(t.Context())
	var err error
	w.Watcher, err = Watch(ctx, path, interval, func(table *Table) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.tables = append(w.tables, table)
	}, func(err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.refusal = append(w.refusal, err.Error())
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); w.Wait() })
	return w
}

// pass lets the Watcher look n times.
func (w *watched) pass(n int) {
	time.Sleep(time.Duration(n) * interval)
	synctest.Wait()
}

// expect tests which route is in force, and how many Tables and refusals there were.
func (w *watched) expect(model string, tables, refusals int) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.tables) != tables || len(w.refusal) != refusals {
		w.t.Fatalf("%d tables, %d refusals (%q); want %d and %d", len(w.tables), len(w.refusal), w.refusal, tables, refusals)
	}
	last := w.tables[tables-1]
	if last.Resolve(model) == nil {
		w.t.Errorf("%s is not served", model)
	}
	if status := w.Status(); status.Digest != last.Digest() || status.Path != w.path {
		w.t.Errorf("status %+v", status)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func routeOf(model string) string { return "routes: [{model: " + model + "}]\n" }

func TestWatchAppliesChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "iop.yaml")
	write(t, path, routeOf("a"))
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, path)
		w.expect("a", 1, 0)
		w.pass(3)
		w.expect("a", 1, 0)

		write(t, path, routeOf("b")) // in place, of the same length
		w.pass(1)
		w.expect("a", 1, 0) // it may be half written
		w.pass(1)
		w.expect("b", 2, 0)
		if loaded := w.Status().Loaded; time.Since(loaded) > interval {
			t.Errorf("loaded %s", loaded)
		}

		write(t, path+".new", routeOf("c")) // as editors do
		rename(t, path+".new", path)
		w.pass(2)
		w.expect("c", 3, 0)

		write(t, path, routeOf("d")) // changed and changed back
		write(t, path, routeOf("c"))
		w.pass(4)
		w.expect("c", 3, 0)
	})
}

// TestWatchWaitsForWriters: a file that is another at each look is still being written.
func TestWatchWaitsForWriters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "iop.yaml")
	write(t, path, routeOf("a"))
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, path)
		for _, half := range []string{"", "routes:\n", "routes:\n- model: x\n", "routes:\n- model: x\n- model", "routes:\n- model: x\n- model: b"} {
			w.expect("a", 1, 0)
			write(t, path, half)
			w.pass(1)
		}
		w.pass(1)
		w.expect("b", 2, 0)
	})
}

func TestWatchFollowsSymlinks(t *testing.T) {
	dir := t.TempDir()
	for _, version := range []string{"..1", "..2"} {
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, version, "iop.yaml"), routeOf("m"+version[2:]))
	}
	path := filepath.Join(dir, "iop.yaml")
	for name, to := range map[string]string{"..data": "..1", "..tmp": "..2", "iop.yaml": filepath.Join("..data", "iop.yaml")} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC) // both files are of the same time and size
	for _, version := range []string{"..1", "..2"} {
		if err := os.Chtimes(filepath.Join(dir, version, "iop.yaml"), old, old); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, path)
		w.expect("m1", 1, 0)
		rename(t, filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data"))
		w.pass(2)
		w.expect("m2", 2, 0)
	})
}

func TestWatchKeepsTheTableInForce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "iop.yaml")
	write(t, path, routeOf("a"))
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, path)
		rename(t, path, path+".away") // for a moment
		w.pass(1)
		rename(t, path+".away", path)
		w.pass(2)
		w.expect("a", 1, 0)

		write(t, path, "rutes: []")
		w.pass(2)
		since := time.Now()
		w.expect("a", 1, 1)
		w.pass(5)
		w.expect("a", 1, 1) // told once
		status := w.Status()
		if !strings.HasPrefix(status.Fault, path+":1:1: rutes: ") || !status.FaultAt.Equal(since) {
			t.Errorf("%+v", status)
		}
		write(t, path, "rutes: []\n# the same fault\n")
		w.pass(3)
		w.expect("a", 1, 1)
		write(t, path, "rotes: []")
		w.pass(3)
		w.expect("a", 1, 2)
		rename(t, path, path+".away")
		w.pass(3)
		w.expect("a", 1, 3)

		write(t, path, routeOf("a")) // right again, and what is in force
		w.pass(2)
		w.expect("a", 1, 3)
		if status := w.Status(); status.Fault != "" || !status.FaultAt.IsZero() {
			t.Errorf("%+v", status)
		}
		write(t, path, "rotes: []") // a fault that was told before, but not of this change
		w.pass(2)
		w.expect("a", 1, 4)
		write(t, path, routeOf("b"))
		w.pass(2)
		w.expect("b", 2, 4)
	})
}

// TestWatchRefusesAnEmptiedFile: a file that lost its routes opens nothing, however long it stays so.
func TestWatchRefusesAnEmptiedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "iop.yaml")
	write(t, path, routeOf("a"))
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, path)
		for _, text := range []string{"", "# routes: [{model: a}]\n", "{}", "advertised_models: serve\n"} {
			write(t, path, text)
			w.pass(5)
			if status := w.Status(); !strings.Contains(status.Fault, "routes: []") {
				t.Errorf("%q: %+v", text, status)
			}
			if err := w.Reload(); err == nil {
				t.Errorf("%q was taken", text)
			}
		}
		w.expect("a", 1, 2) // each fault once
		write(t, path, "routes: []\n")
		w.pass(5)
		w.expect("any", 2, 2)
	})
}

func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "iop.yaml")
	write(t, path, routeOf("a"))
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, path)
		write(t, path, routeOf("b"))
		if err := w.Reload(); err != nil {
			t.Fatal(err)
		}
		w.expect("b", 2, 0) // at once
		if err := w.Reload(); err != nil {
			t.Fatal(err)
		}
		w.expect("b", 2, 0)

		write(t, path, "rutes: []")
		for range 2 {
			err := w.Reload()
			if _, ok := errors.AsType[*ConfigError](err); !ok || w.Status().Fault != err.Error() {
				t.Errorf("%v, %+v", err, w.Status())
			}
		}
		since := time.Now()
		write(t, path, "rutes: []\n# the same fault\n")
		w.pass(3)
		w.expect("b", 2, 0) // the caller was told
		if at := w.Status().FaultAt; !at.Equal(since) {
			t.Errorf("at fault since %s, want %s", at, since)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := w.Reload(); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%v", err)
		}
	})
}

// TestWatchReadsOnlyWhatChanged: a change that leaves no trace in the file's inode is for Reload to find.
func TestWatchReadsOnlyWhatChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "iop.yaml")
	old := time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)
	set := func(text string) {
		write(t, path, text)
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	set(routeOf("a"))
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, path)
		set(routeOf("b"))
		w.pass(3)
		w.expect("a", 1, 0)
		if err := w.Reload(); err != nil {
			t.Fatal(err)
		}
		w.expect("b", 2, 0)
	})
}

func TestWatchNeedsARightFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "iop.yaml")
	never := func(*Table) { t.Error("applied") }
	if w, err := Watch(t.Context(), path, interval, never, nil); w != nil || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v %v", w, err)
	}
	write(t, path, "rutes: []")
	if w, err := Watch(t.Context(), path, interval, never, nil); w != nil || err == nil {
		t.Errorf("%v %v", w, err)
	}
	write(t, path, routeOf("a"))
	applied := 0
	w, err := Watch(t.Context(), path, 0, func(*Table) { applied++ }, nil)
	if err != nil || applied != 1 {
		t.Fatalf("%v, applied %d", err, applied)
	}
	w.Wait() // nothing looks at the file
}
