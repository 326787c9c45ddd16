//go:build unix

package e2e

import "syscall"

// freeze stops the process where it stands: its connections stay open, and silent.
func (p *process) freeze() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
}

// thaw lets a frozen process go on. One that has ended stays so.
func (p *process) thaw() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

// smallBuffers keeps a slow link from having megabytes of buffers on this machine. It must happen before the connection
// is made: a sender that has seen a large window waits for one when it is small, and the link is slower than its rate.
func smallBuffers(_, _ string, c syscall.RawConn) (err error) {
	if failed := c.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 16<<10)
		if err == nil {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, 16<<10)
		}
	}); failed != nil {
		return failed
	}
	return err
}
