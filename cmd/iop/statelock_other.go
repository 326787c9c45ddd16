//go:build !linux && !darwin && !windows

package main

import (
	"errors"
	"os"
)

// lockFile says that it can't: claimState warns of it.
func lockFile(*os.File) error { return errors.ErrUnsupported }
