package main

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lockFile locks a file for as long as it is open.
func lockFile(file *os.File) error {
	const exclusive = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	err := windows.LockFileEx(windows.Handle(file.Fd()), exclusive, 0, 1, 0, &windows.Overlapped{})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return errLocked
	}
	return err
}
