package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"iop/state"
)

// errLocked is the error of lockFile where another process has the file.
var errLocked = errors.New("another process holds the lock")

// claimState holds the state for this Edge until release is called or the process ends: a second one would count limits
// for itself, and say of leases that the first one's Nodes have that none is left. Commands may open the state meanwhile.
func claimState(url string, logger *slog.Logger) (release func() error, err error) {
	path, err := state.FilePath(url)
	if err != nil {
		return nil, err
	}
	path += ".lock"
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("claim the state: %w", err)
	}
	err = lockFile(file)
	if errors.Is(err, errLocked) {
		return nil, errors.Join(fmt.Errorf("another Edge uses the state %s: stop it, or give this one its own state (IOP_EDGE_STATE, --state)", url), file.Close())
	}
	if err != nil {
		logger.Warn("the state can't be locked on this file system: make sure that no second Edge uses it", "file", path, "error", err)
	}
	return file.Close, nil
}
