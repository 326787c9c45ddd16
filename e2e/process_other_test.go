//go:build !unix

package e2e

import "syscall"

// freeze skips the test: a process can't be stopped and go on here.
func (p *process) freeze() {
	p.t.Helper()
	p.t.Skip("no SIGSTOP on this system")
}

// thaw does nothing: no process is frozen here.
func (*process) thaw() {}

// smallBuffers leaves the system's buffers: what a slow link holds is more here.
func smallBuffers(_, _ string, _ syscall.RawConn) error { return nil }
