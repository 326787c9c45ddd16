package filewatch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// Create makes a file appear with all its content or not at all, also after a crash. Where one exists, also one that another
// process has put there in the meantime, the error is fs.ErrExist.
func Create(path string, content []byte, mode fs.FileMode) error {
	return put(path, content, mode, os.Link)
}

// Replace is Create that replaces a file that exists, and keeps its owner: root renews files that a service must read.
func Replace(path string, content []byte, mode fs.FileMode) error {
	return put(path, content, mode, os.Rename)
}

func put(path string, content []byte, mode fs.FileMode, place func(from, to string) error) (err error) {
	dir, name := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	file, err := os.CreateTemp(dir, "."+name+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if remove := os.Remove(file.Name()); !errors.Is(remove, fs.ErrNotExist) {
			err = errors.Join(err, remove)
		}
	}()
	_, err = file.Write(content)
	if err = errors.Join(err, keepOwner(path, file), file.Chmod(mode), file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := place(file.Name(), path); err != nil {
		return err
	}
	return syncDirectory(dir)
}

// syncDirectory makes a rename in the directory last.
func syncDirectory(dir string) error {
	if runtime.GOOS == "windows" { // it can't sync a directory, nor needs to
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
