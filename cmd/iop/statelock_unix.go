//go:build linux || darwin

package main

import (
	"errors"
	"os"
	"syscall"
)

// lockFile locks a file for as long as it is open.
func lockFile(file *os.File) error {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errLocked
	}
	return err
}
