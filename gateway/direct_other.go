//go:build !unix

package gateway

import (
	"errors"
	"net"
)

// canWriteSome says whether writeSome works on this platform.
const canWriteSome = false

func writeSome(*net.TCPConn, []byte) (int, error) { return 0, errors.ErrUnsupported }
