package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// secretVariable carries a key or token to the load's process: a command line is for all to see.
const secretVariable = "SCALE_SECRET"

// house is what one measurement starts: a directory of its own, and processes that end with it.
type house struct {
	dir   string
	iop   string
	procs []*process
}

func newHouse(ctx context.Context, iop string) (*house, error) {
	dir, err := os.MkdirTemp("", "iop-scale-")
	if err != nil {
		return nil, err
	}
	h := &house{dir: dir, iop: iop}
	if iop == "" {
		h.iop = filepath.Join(dir, "iop")
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", h.iop, "./cmd/iop")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			h.close()
			return nil, fmt.Errorf("build iop: %w\n%s", err, out)
		}
	} else if h.iop, err = filepath.Abs(iop); err != nil {
		return nil, err
	}
	return h, nil
}

// close ends what was started, the last first, and removes the directory.
func (h *house) close() {
	for i := len(h.procs) - 1; i >= 0; i-- {
		h.procs[i].stop()
	}
	os.RemoveAll(h.dir)
}

// process is one that was started here. Its standard error goes to a file, as an operator's log would.
type process struct {
	cmd   *exec.Cmd
	lines chan string // of its standard output, the last 64; closed at its end
	log   string
	wait  func() error
}

// start runs a program with env added to an environment without settings of IOP and proxies.
func (h *house) start(name, program string, env []string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(program, args...), lines: make(chan string, 64), log: filepath.Join(h.dir, name+".log")}
	p.cmd.Env = append(cleanEnv(), env...)
	p.cmd.Dir = h.dir
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd.Stderr = log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			for sent := false; !sent; {
				select {
				case p.lines <- sc.Text():
					sent = true
				default: // nobody wanted the oldest
					<-p.lines
				}
			}
		}
		_, _ = io.Copy(io.Discard, out)
	}()
	p.wait = sync.OnceValue(func() error { <-read; return p.cmd.Wait() })
	h.procs = append(h.procs, p)
	return p, nil
}

// stop asks the process to end, and ends it if it does not within ten seconds.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	_ = p.wait() // ended by a signal, which is no news
}

// line waits for a line of standard output that is JSON, and decodes it into v.
func (p *process) line(ctx context.Context, within time.Duration, v any) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		select {
		case l, ok := <-p.lines:
			if !ok {
				return fmt.Errorf("%s ended early: %s", filepath.Base(p.cmd.Path), p.logTail())
			}
			if json.Unmarshal([]byte(l), v) == nil {
				return nil
			}
		case <-timer.C:
			return fmt.Errorf("%s said nothing in %s: %s", filepath.Base(p.cmd.Path), within, p.logTail())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *process) logTail() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-2000):])
}

// resident returns the resident set in bytes.
func (p *process) resident() (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(data) {
		if rest, ok := bytes.CutPrefix(line, []byte("VmRSS:")); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(string(rest)), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("no VmRSS in /proc")
}

// clockTicks is USER_HZ, which Linux shows the world on every machine.
const clockTicks = 100

// cpu returns the CPU time used so far.
func (p *process) cpu() (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	// The second field is the name in parentheses and may hold anything; utime and stime are fields 14 and 15.
	_, rest, _ := strings.Cut(string(data[max(0, bytes.LastIndexByte(data, ')')):]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, errors.New("malformed /proc stat")
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	if err != nil {
		return 0, err
	}
	return time.Duration(user+system) * time.Second / clockTicks, nil
}

// run runs a command of iop that prints JSON.
func (h *house) run(ctx context.Context, env []string, v any, args ...string) error {
	cmd := exec.CommandContext(ctx, h.iop, args...)
	cmd.Env = append(cleanEnv(), env...)
	cmd.Dir = h.dir
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("iop %s: %w", args[0], err)
	}
	return json.Unmarshal(out, v)
}

func cleanEnv() (env []string) {
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "IOP_") && !strings.HasSuffix(strings.ToLower(name), "_proxy") {
			env = append(env, kv)
		}
	}
	return env
}

// load starts this program again, as the load's side.
func (h *house) load(mode, secret string, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return h.start(mode, self, []string{secretVariable + "=" + secret}, append([]string{mode}, args...)...)
}
