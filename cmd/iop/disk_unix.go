//go:build linux || darwin

package main

import "syscall"

// freeSpace is how many bytes this user can still write to a directory's disk, if that can be told.
func freeSpace(dir string) (free uint64, known bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, false
	}
	return s.Bavail * uint64(s.Bsize), true
}
