package route

import (
	"context"
	"sync"
	"time"

	"iop/filewatch"
)

// Watcher keeps a file's Table current. Its methods are for any goroutine, but not for apply and refused themselves.
type Watcher struct {
	// Static.
	path    string
	options []Option
	apply   func(*Table)
	file    *filewatch.Watcher
	done    chan struct{} // closed by the goroutine when it ends, or by Watch where there is none

	mu     sync.Mutex // guards what follows
	digest string     // of the Table in force
	loaded time.Time  // when it took effect
}

// Status is what became of a file.
type Status struct {
	Path   string
	Digest string    // of the Table in force
	Loaded time.Time // when it took effect
	// Fault is why the file as it is now was refused, and FaultAt since when; empty and zero while it is right.
	Fault   string
	FaultAt time.Time
}

// Watch reads a file and calls apply with its Table before it returns, then looks at the file at each interval until
// ctx ends; with an interval of 0 it reads it again only at Reload. Any error is of this first reading.
//
// A changed content takes effect when two looks have found the same, as [filewatch.Watcher.Run] says. Where the content is at fault
// or the file is not there, the Table in force stays, and refused is called once for each fault that follows a right file or
// another fault. Both functions run on one goroutine at a time.
func Watch(ctx context.Context, path string, every time.Duration, apply func(*Table), refused func(error), options ...Option) (*Watcher, error) {
	w := &Watcher{path: path, options: options, apply: apply, done: make(chan struct{})}
	var err error
	w.file, err = filewatch.Open(filewatch.Config{Files: []filewatch.File{fileAt(path)}, Take: w.take, Refused: refused})
	if err != nil {
		return nil, err
	}
	if every <= 0 {
		close(w.done)
		return w, nil
	}
	go func() {
		defer close(w.done)
		w.file.Run(ctx, every)
	}()
	return w, nil
}

// Wait returns when the ctx of Watch has ended and the file is not read any more.
func (w *Watcher) Wait() { <-w.done }

// Status returns what became of the file so far.
func (w *Watcher) Status() Status {
	fault := w.file.Status()
	w.mu.Lock()
	defer w.mu.Unlock()
	return Status{Path: w.path, Digest: w.digest, Loaded: w.loaded, Fault: fault.Fault, FaultAt: fault.FaultAt}
}

// Reload reads the file now and takes what it finds at once. It returns why the file was refused, for which refused is then
// not called; the Table in force stays. A content that is in force already is not applied again.
func (w *Watcher) Reload() error { return w.file.Reload() }

// take puts the Table of a content in force, if it is right and another.
func (w *Watcher) take(contents [][]byte) error {
	table, err := Parse(w.path, contents[0], w.options...)
	if err != nil || table.digest == w.inForce() {
		return err
	}
	w.apply(table)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.digest, w.loaded = table.digest, time.Now()
	return nil
}

func (w *Watcher) inForce() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.digest
}
