//go:build !unix

package conns

// fileLimit is known on Unix only; Windows has none that matters.
func fileLimit() (n int, known bool) { return maxFiles, true }
