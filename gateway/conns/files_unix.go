//go:build unix

package conns

import (
	"math"
	"syscall"
)

// fileLimit is how many descriptors this process may have. The runtime has raised it to the hard limit at the start.
func fileLimit() (n int, known bool) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, false
	}
	return int(min(uint64(limit.Cur), math.MaxInt32)), true
}
