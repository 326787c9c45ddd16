package route

import (
	"context"
	"os"
	"sync"
	"time"
)

// Watcher keeps a file's Table current. Its methods are for any goroutine, but not for apply and refused themselves.
type Watcher struct {
	// Static.
	path    string
	options []Option
	apply   func(*Table)
	refused func(error)
	done    chan struct{} // closed by the goroutine when it ends, or by Watch where there is none

	// loading is held while the file is looked at and while apply and refused run, so that Tables take effect in the
	// order in which they were read. It guards what follows.
	loading sync.Mutex
	seen    os.FileInfo // what the file was like when it was last read, or nil: read it again
	pending string      // what the last look found and did not take yet, or empty
	taken   string      // what was taken last: a content's digest, or why there was none
	told    string      // the fault that was told last, empty since the file is right

	mu     sync.Mutex // guards status
	status Status
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

// fresh is how old a change must be before its time tells it from a later one: file systems count time in steps.
const fresh = 2 * time.Second

// Watch reads a file and calls apply with its Table before it returns, then looks at the file at each interval until
// ctx ends; with an interval of 0 it reads it again only at Reload. Any error is of this first reading.
//
// A changed content takes effect when two looks have found the same: whoever writes in place leaves a half file for a
// moment, and half a list of routes is a right one. Where the content is at fault or the file is not there, the Table in
// force stays, and refused is told once for each fault that follows a right file or another fault. Both functions
// run on one goroutine at a time.
func Watch(ctx context.Context, path string, every time.Duration, apply func(*Table), refused func(error), options ...Option) (*Watcher, error) {
	w := &Watcher{path: path, options: options, apply: apply, refused: refused, done: make(chan struct{}), status: Status{Path: path}}
	if err := w.Reload(); err != nil {
		return nil, err
	}
	if every <= 0 {
		close(w.done)
		return w, nil
	}
	go w.run(ctx, every)
	return w, nil
}

func (w *Watcher) run(ctx context.Context, every time.Duration) {
	defer close(w.done)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.look()
		}
	}
}

// Wait returns when the ctx of Watch has ended and nothing is looked at any more.
func (w *Watcher) Wait() { <-w.done }

// Status returns what became of the file so far.
func (w *Watcher) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// Reload reads the file now and takes what it finds at once. It returns why the file was refused, which refused is then
// not told; the Table in force stays. A content that is in force already is not applied again.
func (w *Watcher) Reload() error {
	w.loading.Lock()
	defer w.loading.Unlock()
	err := w.take(w.read())
	if err != nil {
		w.told = err.Error()
	}
	return err
}

// look reads the file if it has changed, and takes what it finds when it is what the look before found.
func (w *Watcher) look() {
	w.loading.Lock()
	defer w.loading.Unlock()
	if w.unchanged() {
		return
	}
	f := w.read()
	switch f.key {
	case w.taken:
		w.pending = ""
	case w.pending:
		if err := w.take(f); err != nil && err.Error() != w.told {
			w.told = err.Error()
			w.refused(err)
		}
	default:
		w.pending, w.seen = f.key, nil
	}
}

// unchanged reports whether the file is the one that was read last.
func (w *Watcher) unchanged() bool {
	if w.seen == nil {
		return false
	}
	info, err := os.Stat(w.path)
	return err == nil && os.SameFile(info, w.seen) && info.Size() == w.seen.Size() && info.ModTime().Equal(w.seen.ModTime())
}

// finding is what a reading of the file found.
type finding struct {
	key  string // tells it from others: the content's digest, or what err says
	data []byte
	err  error
}

func (w *Watcher) read() finding {
	data, info, err := read(w.path)
	if w.seen = info; err != nil {
		w.seen = nil
		return finding{key: err.Error(), err: err}
	}
	if time.Since(info.ModTime()) < fresh {
		w.seen = nil
	}
	return finding{key: digest(data), data: data}
}

// take makes a finding the Watcher's state, and the Table in force if it is right.
func (w *Watcher) take(f finding) error {
	w.taken, w.pending = f.key, ""
	table, err := (*Table)(nil), f.err
	if err == nil {
		table, err = Parse(w.path, f.data, w.options...)
	}
	if err != nil {
		w.refuse(err.Error())
		return err
	}
	w.told = ""
	changed := table.digest != w.Status().Digest
	if changed {
		w.apply(table)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.Fault, w.status.FaultAt = "", time.Time{}
	if changed {
		w.status.Digest, w.status.Loaded = table.digest, time.Now()
	}
	return nil
}

// refuse notes a fault, and since when it is there.
func (w *Watcher) refuse(fault string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.status.Fault != fault {
		w.status.Fault, w.status.FaultAt = fault, time.Now()
	}
}
