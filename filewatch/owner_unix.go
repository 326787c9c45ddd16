//go:build unix

package filewatch

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// keepOwner gives file the owner and group of the one at path. Only root can; for others they are their own already, or the
// directory is shared and the file becomes theirs.
func keepOwner(path string, file *os.File) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || os.Geteuid() != 0 {
		return nil
	}
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return file.Chown(int(owner.Uid), int(owner.Gid))
}
