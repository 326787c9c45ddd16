package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"iop/filewatch"
)

// Names in the state directory.
const (
	pepperFile     = "pepper"
	adminTokenFile = "admin-token"
)

// maxSecretFile bounds what is read of a file that should hold a few lines.
const maxSecretFile = 64 << 10

// secretFiles keeps small secrets beside the database.
type secretFiles interface {
	// read returns a file's content, or an error that is fs.ErrNotExist.
	read(name string) (string, error)
	// create writes a file that does not exist yet. Callers hold the database's write lock, so that no two processes
	// create the same one.
	create(name, content string) error
}

// secretDirectory is secretFiles in a directory.
type secretDirectory string

func (d secretDirectory) read(name string) (string, error) {
	return readSecretFile(filepath.Join(string(d), name))
}

// readSecretFile reads a small file that nobody but its owner may read.
func readSecretFile(path string) (string, error) {
	file := filewatch.File{Path: path, Max: maxSecretFile, Private: true}
	content, err := file.Read()
	return string(content), err
}

// create makes the file appear with all its content or not at all, also after a crash.
func (d secretDirectory) create(name, content string) error {
	return filewatch.Replace(filepath.Join(string(d), name), []byte(content), 0o600)
}

// ErrOrphaned says that the database is missing where files of one lie. The message names them, and what to do.
var ErrOrphaned = errors.New("the state is incomplete")

// orphaned is an ErrOrphaned with a message of its own.
type orphaned string

func (o orphaned) Error() string { return string(o) }

// Is implements errors.Is.
func (orphaned) Is(target error) bool { return target == ErrOrphaned }

// refuseOrphans refuses to make a new database where the rest of another one lies: whoever deleted the database, or mounted
// the wrong disk, would find an Edge that knows none of its keys and has no past.
func refuseOrphans(at location) error {
	// Looked for before the database: who makes a new one makes it first and these after it.
	pepper := filepath.Join(at.directory(), pepperFile)
	_, noPepper := os.Stat(pepper)
	wal, noWAL := os.Stat(at.path + "-wal")
	info, err := os.Stat(at.path)
	how := "is missing"
	switch {
	case err == nil && info.Size() == 0:
		how = "is empty"
	case !errors.Is(err, fs.ErrNotExist):
		return nil // it is there, or openSQLiteFile says why it can't be read
	}
	switch {
	case noPepper == nil:
		return orphaned(fmt.Sprintf("%s %s, but the pepper of an earlier state is next to it: restore the database from a backup; or, to start over without keys, tokens and usage, remove %s", at.path, how, pepper))
	case noWAL == nil && wal.Size() > 0:
		return orphaned(fmt.Sprintf("%s %s, but its write-ahead log is next to it: restore the database from a backup; or, to start over, remove %s-wal", at.path, how, at.path))
	}
	return nil
}

// secretMemory is secretFiles of a Store in memory.
type secretMemory map[string]string

func (m secretMemory) read(name string) (string, error) {
	content, ok := m[name]
	if !ok {
		return "", fs.ErrNotExist
	}
	return content, nil
}

func (m secretMemory) create(name, content string) error {
	m[name] = content
	return nil
}
