//go:build !unix

package main

import "testing"

// hangUp skips the rest of the test: there is no SIGHUP here.
func hangUp(t *testing.T) {
	t.Helper()
	t.Skip("no SIGHUP on this system")
}
