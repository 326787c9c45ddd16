package e2e

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// path is the file of the stack's state.
func (s *stack) path() string { return strings.TrimPrefix(s.state, "sqlite://") }

// TestStateFileUnderARunningEdge: whatever is done to the database's file, the Edge says so at /readyz, in its metrics and to
// the doctor, confirms no write that would be lost, and serves nobody by keys that it can't check; what runs finishes.
func TestStateFileUnderARunningEdge(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(path string) error
		ready string
	}{
		"deleted":  {os.Remove, "deleted"},
		"emptied":  {func(path string) error { return os.Truncate(path, 0) }, "damaged"},
		"garbage":  {func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("x"), 1<<16), 0o600) }, "damaged"},
		"replaced": {func(path string) error { return errors.Join(copyTo(path, path+".copy"), os.Rename(path+".copy", path)) }, "replaced"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, stackConfig{})
			s.t = t
			s.served(t, chat("sim-small", "tokens=2", false))
			under := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=200,itl=50ms", true))
			under.reaches(t, 2, patience)
			if err := test.spoil(s.path()); err != nil {
				t.Fatal(err)
			}
			eventually(t, patience, "/readyz says it", func() bool {
				res, body := s.get("/readyz")
				return res.StatusCode == http.StatusServiceUnavailable && strings.Contains(string(body), test.ready)
			})
			if out, stderr, err := tryIOP(t, s.env, "key", "create", "--name", "lost"); err == nil || !strings.Contains(stderr, test.ready) {
				t.Errorf("a key was made: %s %s", out, stderr)
			}
			eventually(t, patience, "requests are refused", func() bool {
				res, _ := s.post("/v1/chat/completions", chat("sim-small", "tokens=1", false))
				return res.StatusCode == http.StatusServiceUnavailable
			})
			if n := s.metric("iop_state_fault"); n != 1 {
				t.Errorf("iop_state_fault is %v", n)
			}
			if out := iop(t, s.env, "status"); !strings.Contains(out, "refusing requests") || !strings.Contains(out, "warning  the state's files have a fault ("+test.ready) {
				t.Errorf("iop status: %s", out)
			}
			s.oneLineASecond(t)
			out, _, err := tryIOP(t, s.env, "doctor", "edge", "--listen", strings.TrimPrefix(s.url, "http://"), "--admin-listen", strings.TrimPrefix(s.admin, "http://"))
			if err == nil || !strings.Contains(out, "it takes no requests: the state") {
				t.Errorf("the doctor found %s", out)
			}
			if under.end(t, patience); under.status != http.StatusOK {
				t.Errorf("what ran ended with %d", under.status)
			}
		})
	}
}

// oneLineASecond floods the Edge with requests that it must refuse, and counts what it logs of the reason.
func (s *stack) oneLineASecond(t *testing.T) {
	t.Helper()
	const word = "could not check an API key"
	before, began := strings.Count(s.edge.text(), word), time.Now()
	for range 100 {
		s.post("/v1/chat/completions", chat("sim-small", "tokens=1", false))
	}
	if n, most := strings.Count(s.edge.text(), word)-before, 2+int(time.Since(began)/time.Second); n > most {
		t.Errorf("%d lines of 100 requests in %s", n, time.Since(began))
	}
}

func copyTo(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o600)
}

// TestStateDeletedThenRestarted: the Edge makes no new state beside the old pepper, and comes back with the old one.
func TestStateDeletedThenRestarted(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{})
	s.edge.stop(patience)
	path := s.path()
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	_, stderr, err := tryIOP(t, s.env, "edge", "--listen", strings.TrimPrefix(s.url, "http://"), "--admin-listen", strings.TrimPrefix(s.admin, "http://"))
	if err == nil || !strings.Contains(stderr, "the pepper of an earlier state is next to it") {
		t.Errorf("started: %v, %s", err, stderr)
	}
	if out, _, err := tryIOP(t, s.env, "doctor", "edge"); err == nil || !strings.Contains(out, "earlier state") {
		t.Errorf("the doctor found %s", out)
	}
	if _, err := os.Stat(path); err == nil {
		t.Errorf("%s was made", filepath.Base(path))
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	s.startEdge()
	eventually(t, patience, "the Node is back", func() bool {
		res, _ := s.post("/v1/chat/completions", chat("sim-small", "tokens=1", false))
		return res.StatusCode == http.StatusOK
	})
}
