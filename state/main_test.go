package state

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"go.uber.org/goleak"
)

// childMode is the variable that makes this test binary one of the other processes that the tests need.
const childMode = "IOP_STATE_TEST_CHILD"

func TestMain(m *testing.M) {
	if mode := os.Getenv(childMode); mode != "" {
		if err := runChild(mode, os.Getenv("IOP_STATE_TEST_URL")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// open opens a Store that the test closes.
func openURL(t testing.TB, url string) *Store {
	t.Helper()
	s, err := Open(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func fileURL(t testing.TB) string {
	return "sqlite://" + filepath.Join(t.TempDir(), "data", "iop.db")
}

// onEach runs a test on every engine.
func onEach(t *testing.T, test func(*testing.T, *Store)) {
	t.Run("file", func(t *testing.T) { test(t, openURL(t, fileURL(t))) })
	t.Run("memory", func(t *testing.T) { test(t, openURL(t, "sqlite::memory:")) })
	onPostgres(t, test)
}

func createKey(t testing.TB, s *Store, spec KeySpec) (Key, string) {
	t.Helper()
	key, secret, err := s.CreateKey(context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return key, secret.Reveal()
}

func createJoinToken(t testing.TB, s *Store, spec JoinTokenSpec) (JoinToken, string) {
	t.Helper()
	token, secret, err := s.CreateJoinToken(context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return token, secret.Reveal()
}

// raceEnabled tells tests of allocations that the race detector makes its own.
var raceEnabled bool

func withCancel(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}

// sharesMemory reports whether a's bytes lie inside b's.
func sharesMemory(a, b string) bool {
	start, at := uintptr(unsafe.Pointer(unsafe.StringData(b))), uintptr(unsafe.Pointer(unsafe.StringData(a)))
	return at >= start && at < start+uintptr(len(b))
}
