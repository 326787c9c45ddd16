//go:build !unix

package main

// forbidCoreDumps has nothing to do: there is no such limit here.
func forbidCoreDumps() error { return nil }
