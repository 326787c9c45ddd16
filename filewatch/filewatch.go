// Package filewatch keeps what one or more files hold together in force: the routes, a certificate with its key. It reads the
// files at intervals and on request, waits until their writers are done, and reports each fault once. What a content means, and
// whether it takes effect, is its caller's to decide; the last good one is the caller's to keep. Create and Replace write such files.
package filewatch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"time"
)

// fresh is how old a change must be before its time tells it from a later one: file systems count time in steps.
const fresh = 2 * time.Second

// File is one file of a set. Symbolic links are followed at each reading.
type File struct {
	Path string
	Max  int64 // bytes; a longer file is a fault
	// Private: the file must be closed to everybody but its owner, except on Windows.
	Private bool
}

// Config is what a Watcher needs.
type Config struct {
	// Required.
	Files []File
	// Take makes the contents, in the order of Files, take effect as a whole, or returns why they are refused; the former ones
	// then stay in force. It is called with contents that differ from the last ones, and, at each look, with those that it
	// refused, as they may only have been too early. The contents are overwritten afterwards. It may call no method but Status.
	Take func(contents [][]byte) error

	// Optional.
	Refused func(error)   // a look met a fault that was not reported yet, by Refused or by Reload. Never called at the same time as Take
	Settle  time.Duration // from a look that found a change to the next; 0 means that of Run
}

// Status is how the files fare. Fault is why they were refused as they are now, and FaultAt since when; empty and zero while
// their contents are in force.
type Status struct {
	Fault   string
	FaultAt time.Time
}

// Watcher reads the files of a Config. Its methods are for any goroutine.
type Watcher struct {
	config Config // static

	// loading is held while files are read and while Take and Refused run, so that contents take effect in the order in which
	// they were read. It guards what follows.
	loading sync.Mutex
	seen    []os.FileInfo // the files as they were last read, or nil: read them again
	decided digest        // what was taken or refused last
	pending digest        // what the last look found and did not take yet, or zero

	mu     sync.Mutex // guards status
	status Status
}

// digest is of the files' contents, or of why they could not be read.
type digest [sha256.Size]byte

// Open reads the files and takes what they hold. Any error is of this first reading.
func Open(config Config) (*Watcher, error) {
	w := &Watcher{config: config}
	if err := w.Reload(); err != nil {
		return nil, err
	}
	return w, nil
}

// Run looks at the files at each interval until ctx ends. A changed content takes effect when two looks have found the same: a
// writer leaves half a file for a moment, or one file of two, and half a list can be a valid one.
func (w *Watcher) Run(ctx context.Context, every time.Duration) {
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if w.Look() && w.config.Settle > 0 {
			timer.Reset(min(w.config.Settle, every))
		} else {
			timer.Reset(every)
		}
	}
}

// Status returns how the files fared at the last reading.
func (w *Watcher) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// Reload reads the files now, without waiting for a second look. It returns why they were refused, if they were; Refused is not
// called. What is in force already is not taken again.
func (w *Watcher) Reload() error {
	w.loading.Lock()
	defer w.loading.Unlock()
	r := w.read()
	defer r.forget()
	if r.digest == w.decided && w.Status().Fault == "" {
		w.pending = digest{}
		return nil
	}
	return w.take(r)
}

// Look is one look of Run. It reports whether it found a change that the next look must confirm.
func (w *Watcher) Look() (again bool) {
	w.loading.Lock()
	defer w.loading.Unlock()
	before := w.Status().Fault
	if before == "" && w.unchanged() {
		return false
	}
	r := w.read()
	defer r.forget()
	switch {
	case r.digest == w.decided && before == "":
		w.pending = digest{}
		return false
	case r.digest != w.decided && r.digest != w.pending:
		w.pending, w.seen = r.digest, nil
		return true
	}
	if err := w.take(r); err != nil && err.Error() != before && w.config.Refused != nil {
		w.config.Refused(err)
	}
	return false
}

// unchanged reports whether the files are those that were read last, by their inodes.
func (w *Watcher) unchanged() bool {
	for i, seen := range w.seen {
		info, err := os.Stat(w.config.Files[i].Path)
		if err != nil || !os.SameFile(info, seen) || info.Mode() != seen.Mode() || info.Size() != seen.Size() || !info.ModTime().Equal(seen.ModTime()) {
			return false
		}
	}
	return w.seen != nil
}

// take makes a reading the one that was decided on. loading is held.
func (w *Watcher) take(r reading) error {
	w.decided, w.pending = r.digest, digest{}
	err := r.err
	if err == nil {
		err = w.config.Take(r.contents)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		w.status = Status{}
	case err.Error() != w.status.Fault:
		w.status = Status{Fault: err.Error(), FaultAt: time.Now()}
	}
	return err
}

// reading is what the files held at one time.
type reading struct {
	digest   digest
	contents [][]byte
	err      error
}

// forget overwrites the contents: there may be keys among them.
func (r *reading) forget() {
	for _, content := range r.contents {
		clear(content)
	}
}

// read reads all files, and notes what they were like. loading is held.
func (w *Watcher) read() reading {
	var r reading
	var faults []error
	seen, old := make([]os.FileInfo, len(w.config.Files)), true
	hash := sha256.New()
	for i, f := range w.config.Files {
		content, info, err := f.read()
		if err != nil {
			faults = append(faults, err)
			continue
		}
		seen[i], old = info, old && time.Since(info.ModTime()) >= fresh
		r.contents = append(r.contents, content)
		part := sha256.Sum256(content) // of fixed size, so that nothing can move from one file to the next unseen
		hash.Write(part[:])
	}
	if w.seen = nil; len(faults) > 0 {
		r.err = errors.Join(faults...)
		r.digest = sha256.Sum256([]byte(r.err.Error()))
		return r
	}
	if old {
		w.seen = seen
	}
	hash.Sum(r.digest[:0])
	return r
}

// Read returns the content of a regular file. Any goroutine may call it.
func (f *File) Read() ([]byte, error) {
	content, _, err := f.read()
	return content, err
}

// read also returns what the file was like when it was opened.
func (f *File) read() ([]byte, os.FileInfo, error) {
	// Asked before it is opened: a named pipe would hold its reader.
	info, err := os.Stat(f.Path)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is not a regular file", f.Path)
	}
	file, err := os.Open(f.Path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return nil, nil, err
	}
	if mode := info.Mode().Perm(); f.Private && mode&0o077 != 0 && runtime.GOOS != "windows" {
		return nil, nil, fmt.Errorf("%s has mode %#o, so others may read the secret in it: set it to 0600", f.Path, mode)
	}
	content, err := io.ReadAll(io.LimitReader(file, f.Max+1))
	if err == nil && int64(len(content)) > f.Max {
		clear(content)
		err = fmt.Errorf("%s: the file is larger than %d bytes", f.Path, f.Max)
	}
	return content, info, err
}
