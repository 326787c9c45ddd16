//go:build unix

package gateway

import (
	"errors"
	"net"
	"syscall"
)

// canWriteSome says whether writeSome works on this platform.
const canWriteSome = true

// writeSome writes as much of p as the kernel takes at once.
func writeSome(c *net.TCPConn, p []byte) (n int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		for {
			n, failed = syscall.Write(int(fd), p)
			if failed != syscall.EINTR {
				return true // whatever came of it: waiting is for others
			}
		}
	})
	n = max(n, 0)
	if err == nil && failed != nil && !errors.Is(failed, syscall.EAGAIN) {
		err = failed
	}
	return n, err
}
