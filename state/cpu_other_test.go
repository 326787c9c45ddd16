//go:build !unix

package state

import (
	"testing"
	"time"
)

// processCPU is not known here: benchmarks report none.
func processCPU(*testing.B) time.Duration { return 0 }
