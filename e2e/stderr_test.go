//go:build unix

package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fullPipe returns the two ends of a pipe that takes no more bytes.
func fullPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	ends := make([]int, 2)
	if err := syscall.Pipe(ends); err != nil {
		t.Fatal(err)
	}
	syscall.CloseOnExec(ends[0])
	syscall.CloseOnExec(ends[1])
	if err := syscall.SetNonblock(ends[1], true); err != nil {
		t.Fatal(err)
	}
	for block := make([]byte, 64<<10); len(block) > 0; {
		if _, err := syscall.Write(ends[1], block); err != nil {
			block = block[:len(block)/2]
		}
	}
	// The process gets it as shells make it: a write waits.
	if err := syscall.SetNonblock(ends[1], false); err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(ends[0]), "read end"), os.NewFile(uintptr(ends[1]), "write end")
}

// unread is a process whose standard output and error nobody reads.
type unread struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	done chan error // gets how it exited
}

// startUnread starts a process on a full pipe. gone closes the end that is to be read: each write fails.
func startUnread(t *testing.T, gone bool, env []string, args ...string) *unread {
	t.Helper()
	r, w := fullPipe(t)
	t.Cleanup(func() { r.Close() })
	if gone {
		r.Close()
	}
	u := &unread{t: t, name: args[0], cmd: exec.Command(binary, args...), done: make(chan error, 1)}
	u.cmd.Env, u.cmd.Dir = append(cleanEnv(), env...), t.TempDir()
	u.cmd.Stdout, u.cmd.Stderr = w, w
	if err := u.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		u.done <- u.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = u.cmd.Process.Kill()
		<-ended
	})
	return u
}

// terminate ends the process with SIGTERM.
func (u *unread) terminate() {
	u.t.Helper()
	if err := u.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		u.t.Errorf("%s: %v", u.name, err)
	}
	select {
	case err := <-u.done:
		if err != nil {
			u.t.Errorf("%s: %v", u.name, err)
		}
	case <-time.After(patience):
		u.t.Errorf("%s did not end in %s after SIGTERM", u.name, patience)
	}
}

// answers waits until a listener answers with 200.
func answers(t *testing.T, url string) {
	t.Helper()
	eventually(t, patience, url+" answers", func() bool {
		res, err := http.Get(url)
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// TestNobodyReadsTheLog: Edge, Node and dev start, serve and end while nobody reads what they write, or nobody can.
func TestNobodyReadsTheLog(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]bool{"a full pipe": false, "a closed pipe": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newEdge(t)
			sim := s.startSim("--slots", "64")
			if err := s.edge.stop(patience); err != nil {
				t.Fatal(err)
			}
			edge := startUnread(t, gone, []string{"IOP_EDGE_MISSPELT=1"}, "edge", "--state", s.state, "--log", "debug", "--drain-timeout", "2s",
				"--listen", strings.TrimPrefix(s.url, "http://"), "--admin-listen", strings.TrimPrefix(s.admin, "http://"))
			answers(t, s.url+"/readyz")
			node := startUnread(t, gone, []string{"IOP_NODE_JOIN_TOKEN=" + s.token, "IOP_NODE_MISSPELT=1"}, "node", "--name", "n",
				"--edge", "ws"+strings.TrimPrefix(s.url, "http")+"/tunnel/v1", "--provider", "sim="+sim.url, "--log", "debug", "--drain-timeout", "2s")
			s.serving("n", "sim-small")
			for range 30 {
				if res, body := s.post("/v1/chat/completions", chat("sim-small", "tokens=1", false)); res.StatusCode != 200 {
					t.Fatalf("%d %s", res.StatusCode, body)
				}
			}
			node.terminate()
			edge.terminate()
			if gone {
				return // whoever starts dev reads from its output where it is
			}
			listen := freePort(t)
			dev := startUnread(t, gone, []string{"IOP_DEV_MISSPELT=1"}, "dev", "--listen", listen, "--admin-listen", freePort(t), "--provider", "sim="+sim.url)
			answers(t, "http://"+listen+"/readyz")
			dev.terminate()
		})
	}
}
