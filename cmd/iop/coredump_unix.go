//go:build unix

package main

import "syscall"

// forbidCoreDumps sees to it that no crash writes this process's memory to a disk. It can't be taken back.
func forbidCoreDumps() error { return syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}) }
