//go:build !linux

package tunnel

import "net"

// tuneSocket has nothing to ask of this platform.
func tuneSocket(net.Conn) {}
