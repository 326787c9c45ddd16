//go:build linux || darwin

package main

import (
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// account is a user of this machine with its groups.
type account struct {
	name   string
	uid    uint32
	groups []uint32
}

// serviceOf returns the owner of a state directory, who runs the Edge. False: this process's user (euid) is not root, or the owner
// is, so that what this process can read the Edge can too.
func serviceOf(dir string, euid int) (a account, other bool) {
	info, err := os.Stat(dir)
	if err != nil || euid != 0 {
		return a, false
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || owner.Uid == 0 {
		return a, false
	}
	a = account{name: strconv.FormatUint(uint64(owner.Uid), 10), uid: owner.Uid, groups: []uint32{owner.Gid}}
	if u, err := user.LookupId(a.name); err == nil {
		a.name = u.Username
		ids, _ := u.GroupIds() // without them the directory's group counts
		for _, id := range ids {
			if gid, err := strconv.ParseUint(id, 10, 32); err == nil {
				a.groups = append(a.groups, uint32(gid))
			}
		}
	}
	return a, true
}

// blocks returns the file itself, or the directory above it, that keeps the account from reading a file of an absolute path; empty:
// it can. Access control lists are not considered.
func (a *account) blocks(path string) string {
	if !a.may(path, 0o4) {
		return path
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if !a.may(dir, 0o1) {
			return dir
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
	}
}

// may reports whether the mode of a path gives the account a permission, which is written as one octal digit.
func (a *account) may(path string, permission fs.FileMode) bool {
	info, err := os.Stat(path)
	if err != nil {
		return true // another line says so
	}
	of, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return true
	case of.Uid == a.uid:
		permission <<= 6
	case slices.Contains(a.groups, of.Gid):
		permission <<= 3
	}
	return info.Mode().Perm()&permission != 0
}

// handOver gives a state that root has just made in a service's directory to the service.
func handOver(database string) error {
	dir := filepath.Dir(database)
	service, other := serviceOf(dir, os.Geteuid())
	if !other {
		return nil
	}
	for _, path := range []string{database, database + "-wal", database + "-shm", filepath.Join(dir, "pepper"), filepath.Join(dir, "admin-token")} {
		if err := os.Chown(path, int(service.uid), int(service.groups[0])); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
