package tunnel

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// notSentLowWater bounds what the kernel queues unsent: what is not yet there can still be overtaken by a heartbeat.
const notSentLowWater = 64 << 10

// tuneSocket asks the kernel for a short send queue. It is a matter of latency, not of correctness, so a socket that
// can't is used as it is.
func tuneSocket(conn net.Conn) {
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = t.NetConn()
	}
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowWater)
	})
}
