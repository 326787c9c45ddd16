package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// copyFile copies a file's content over another's, in place.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// closedWith returns the path of a state that nobody has open, with so many keys.
func closedWith(t *testing.T, keys int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "iop.db")
	s, err := Open(t.Context(), "sqlite://"+path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range keys {
		if _, _, err := s.CreateKey(t.Context(), KeySpec{Name: fmt.Sprintf("k%099d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestWritesNeverVanish: after each thing that can happen to the file of an open state, no write succeeds that the next
// process would not find, and reads say no too.
func TestWritesNeverVanish(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(t *testing.T, path string) error
		fault Fault
	}{
		"deleted":           {func(_ *testing.T, path string) error { return os.Remove(path) }, FaultDeleted},
		"directory deleted": {func(_ *testing.T, path string) error { return os.RemoveAll(filepath.Dir(path)) }, FaultDeleted},
		"moved away":        {func(_ *testing.T, path string) error { return os.Rename(path, path+".old") }, FaultDeleted},
		"a copy moved over": {func(t *testing.T, path string) error {
			copyFile(t, path, path+".copy")
			return os.Rename(path+".copy", path)
		}, FaultReplaced},
		"emptied": {func(_ *testing.T, path string) error { return os.Truncate(path, 0) }, FaultDamaged},
		"a link elsewhere": {func(t *testing.T, path string) error {
			return errors.Join(os.Remove(path), os.Symlink(closedWith(t, 0), path))
		}, FaultReplaced},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := closedWith(t, 1)
			s := openURL(t, "sqlite://"+path)
			if _, err := s.Keys(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := test.spoil(t, path); err != nil {
				t.Fatal(err)
			}
			_, _, err := s.CreateKey(t.Context(), KeySpec{Name: "vanishes"})
			fault, ok := errors.AsType[*FaultError](err)
			if !ok || fault.Fault != test.fault {
				t.Fatalf("a write: %v", err)
			}
			if _, err := s.Keys(t.Context()); FailureOf(err) != FailureFault {
				t.Errorf("a read: %v", err)
			}
			if err := s.Ping(t.Context()); FailureOf(err) != FailureFault {
				t.Errorf("ping: %v", err)
			}
			if got := s.Fault(); got == nil || got.Fault != test.fault || s.Failed(FailureFault) == 0 {
				t.Errorf("it says %v, %d failures", got, s.Failed(FailureFault))
			}
			if strings.Contains(fault.Public(), path) || !strings.Contains(fault.Error(), path) {
				t.Errorf("%s; in public: %s", fault, fault.Public())
			}
		})
	}
}

// TestFileComesBack: the same file in its place again is the same state.
func TestFileComesBack(t *testing.T) {
	t.Parallel()
	path := closedWith(t, 1)
	s := openURL(t, "sqlite://"+path)
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.CreateKey(t.Context(), KeySpec{Name: "x"}); FailureOf(err) != FailureFault {
		t.Fatal(err)
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.CreateKey(t.Context(), KeySpec{Name: "x"}); err != nil {
		t.Error(err)
	}
	if keys, err := s.Keys(t.Context()); err != nil || len(keys) != 2 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
}

// watched opens a state and has the guard follow the files beside it, as Watch does; what Watch would find next is found by
// looked.
func watched(t *testing.T, path string) (s *Store, looked func() Fault) {
	t.Helper()
	s = openURL(t, "sqlite://"+path)
	if _, err := s.Keys(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.db.guard.follow()
	return s, func() Fault {
		s.probe(t.Context(), unreachableAfter-1)
		if f := s.Fault(); f != nil {
			return f.Fault
		}
		return FaultNone
	}
}

// TestProbe: what stat can't see, a look at the content does.
func TestProbe(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(t *testing.T, path string) error
		fault Fault
	}{
		"nothing": {func(*testing.T, string) error { return nil }, FaultNone},
		"garbage": {func(_ *testing.T, path string) error {
			return os.WriteFile(path, bytes.Repeat([]byte("garbage "), 8192), 0o600)
		}, FaultDamaged},
		"another state's content": {func(t *testing.T, path string) error {
			copyFile(t, closedWith(t, 3), path)
			return nil
		}, FaultReplaced},
		"cut short":            {func(_ *testing.T, path string) error { return os.Truncate(path, 8192) }, FaultDamaged},
		"write-ahead log gone": {func(_ *testing.T, path string) error { return os.Remove(path + "-wal") }, FaultDeleted},
		"shared memory gone":   {func(_ *testing.T, path string) error { return os.Remove(path + "-shm") }, FaultDeleted},
		"pepper gone": {func(_ *testing.T, path string) error {
			return os.Remove(filepath.Join(filepath.Dir(path), pepperFile))
		}, FaultPepper},
		"another pepper": {func(t *testing.T, path string) error {
			copyFile(t, filepath.Join(filepath.Dir(closedWith(t, 0)), pepperFile), filepath.Join(filepath.Dir(path), pepperFile))
			return nil
		}, FaultPepper},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := closedWith(t, 200)
			s, looked := watched(t, path)
			if err := test.spoil(t, path); err != nil {
				t.Fatal(err)
			}
			if got := looked(); got != test.fault {
				t.Errorf("found %v: %v", got, s.Fault())
			}
			_, _, err := s.CreateKey(t.Context(), KeySpec{Name: "x"})
			if refuses := test.fault != FaultNone && test.fault != FaultPepper; refuses != (FailureOf(err) == FailureFault) {
				t.Errorf("a write: %v", err)
			}
		})
	}
}

// TestCheckFindsDamage: a page in the middle that no request reads.
func TestCheckFindsDamage(t *testing.T) {
	t.Parallel()
	path := closedWith(t, 400)
	damage(t, path)
	if _, err := Open(t.Context(), "sqlite://"+path); err == nil || !strings.Contains(err.Error(), "damaged") && !strings.Contains(err.Error(), "malformed") {
		t.Errorf("opened: %v", err)
	}
	whole := closedWith(t, 400)
	s := openURL(t, "sqlite://"+whole)
	damage(t, whole)
	var logs bytes.Buffer
	s.checkAll(t.Context(), slog.New(slog.NewTextHandler(&logs, nil)))
	if f := s.Fault(); f == nil || f.Fault != FaultDamaged {
		t.Errorf("found %v: %s", f, &logs)
	}
	sound := openURL(t, "sqlite://"+closedWith(t, 400))
	sound.checkAll(t.Context(), slog.New(slog.NewTextHandler(&logs, nil)))
	if f := sound.Fault(); f != nil || !strings.Contains(logs.String(), "it is intact") {
		t.Errorf("found %v: %s", f, &logs)
	}
}

// damage overwrites the last pages of a database with keys.
func damage(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(bytes.Repeat([]byte{0xaa}, 40<<10), info.Size()-40<<10); err != nil {
		t.Fatal(err)
	}
}

// TestNoNewStateBesideAnOldPepper: a database that is lost is not made anew in silence.
func TestNoNewStateBesideAnOldPepper(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(path string) error{
		"lost":    os.Remove,
		"emptied": func(path string) error { return os.Truncate(path, 0) },
		"only its log is left": func(path string) error {
			return errors.Join(os.Remove(path), os.Remove(filepath.Join(filepath.Dir(path), pepperFile)), os.WriteFile(path+"-wal", []byte("x"), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := closedWith(t, 1)
			if err := spoil(path); err != nil {
				t.Fatal(err)
			}
			url := "sqlite://" + path
			if _, err := Open(t.Context(), url); err == nil || !strings.Contains(err.Error(), "restore the database from a backup") {
				t.Errorf("opened: %v", err)
			}
			if i, err := Inspect(t.Context(), url); err == nil {
				t.Errorf("inspected: %+v", i)
			}
			if err := errors.Join(os.RemoveAll(filepath.Join(filepath.Dir(path), pepperFile)), os.RemoveAll(path+"-wal")); err != nil {
				t.Fatal(err)
			}
			openURL(t, url)
		})
	}
}

// TestWatch: it finds a fault by itself, says so once, says when it is over, and ends with its context.
func TestWatch(t *testing.T) {
	path := closedWith(t, 1)
	s := openURL(t, "sqlite://"+path)
	var logs bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.watch(ctx, slog.New(slog.NewTextHandler(&logs, nil)))
		}()
		if err := os.Rename(path, path+".away"); err != nil {
			t.Error(err)
		}
		time.Sleep(lookEvery + lookEvery/2)
		if f := s.Fault(); f == nil || f.Fault != FaultDeleted {
			t.Errorf("after a second: %v", f)
		}
		time.Sleep(2 * lookEvery)
		if err := os.Rename(path+".away", path); err != nil {
			t.Error(err)
		}
		time.Sleep(lookEvery)
		if f := s.Fault(); f != nil {
			t.Errorf("when it is back: %v", f)
		}
		stop()
		<-done
	})
	if n, m := strings.Count(logs.String(), "can't be trusted"), strings.Count(logs.String(), "trusted again"); n != 1 || m != 1 {
		t.Errorf("%d and %d lines:\n%s", n, m, &logs)
	}
	memory := openURL(t, "sqlite::memory:")
	memory.Watch(t.Context(), slog.New(slog.DiscardHandler)) // returns
}

// TestGenerationsNeverFall: an older copy in the database's place is found before a Node gets a number for the second time.
func TestGenerationsNeverFall(t *testing.T) {
	t.Parallel()
	s := openURL(t, "sqlite://"+closedWith(t, 0))
	for range 3 {
		if _, err := s.NextGeneration(t.Context(), "n", 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.db.write.DB.ExecContext(t.Context(), "DELETE FROM generations"); err != nil {
		t.Fatal(err)
	}
	if n, err := s.NextGeneration(t.Context(), "n", 0); FailureOf(err) != FailureFault {
		t.Errorf("got %d, %v", n, err)
	}
	if f := s.Fault(); f == nil || f.Fault != FaultReplaced {
		t.Errorf("found %v", f)
	}
}
