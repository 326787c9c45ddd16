//go:build !linux

package e2e

import "testing"

// leasesOf returns nothing: here a test can't read the memory of another process.
func leasesOf(*testing.T, *process) []string { return nil }
