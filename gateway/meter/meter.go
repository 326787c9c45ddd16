package meter

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"iop/state"
)

const (
	defaultInterval = 500 * time.Millisecond
	defaultBuffer   = 65536 // some 20 MB

	// pageRecords is how many records lie in a page, and so how many one call of AddUsage gets: few enough to let other
	// writers of the state in.
	pageRecords = 1000

	// writeTimeout bounds one call of AddUsage; longer than the state waits for another process.
	writeTimeout = 15 * time.Second

	// longestPause bounds the time between two tries while the state fails.
	longestPause = 5 * time.Second

	// lastFlush bounds what Run does after its context has ended, and lastPause is between its tries.
	lastFlush = 5 * time.Second
	lastPause = 100 * time.Millisecond

	// keptPages is how many pages are kept for the next records; what a backlog needed more is given back.
	keptPages = 4
)

// Store is where usage goes: a *state.Store. Its calls end with their context, and keep nothing of the slice.
type Store interface {
	// AddUsage writes records, each Run once however often it comes.
	AddUsage(ctx context.Context, records []state.UsageRecord) error
	// PruneUsage deletes records of runs that started before then, and returns how many.
	PruneUsage(ctx context.Context, before time.Time) (int64, error)
}

// Config is what a Meter needs.
type Config struct {
	Store Store // required

	// Optional.
	Interval  time.Duration // between a record and its writing, at most; 0: 500 ms
	Retention time.Duration // how long records are kept; 0: for ever
	Buffer    int           // records that may wait; 0: 65536
	Logger    *slog.Logger  // nil: slog.Default()
}

// Meter is a buffer of usage before the state. Its methods may be called from any goroutine. See New.
type Meter struct {
	cfg  Config        // static after New
	work chan struct{} // holds a value when the first record has come; never closed
	many chan struct{} // holds a value when waiting for the Interval would take too much room; never closed

	mu      sync.Mutex
	pages   []*page // the oldest first; new records go into the last
	free    []*page // empty, to be used again
	waiting int     // records in pages and in the writer's page
	stats   Stats   // but for Pending

	// writer is held by who writes: it holds a value then. What follows is the holder's alone.
	writer  chan struct{}
	writing *page // or nil; stays here while the state fails
	health  health
	refused int64 // stats.Dropped as far as the log knows
}

// page is a part of the buffer. The buffer grows by pages, so that no record waits while older ones are copied.
type page struct {
	n       int
	records [pageRecords]state.UsageRecord
}

// Stats are counts since New, but for Pending.
type Stats struct {
	Pending  int64 // records that wait
	Dropped  int64 // records that found the buffer full, or had no run id
	Written  int64 // records that the state has
	Failures int64 // writes that failed
}

// New returns a Meter. Records wait until Run or Flush writes them.
func New(cfg Config) *Meter {
	if cfg.Interval <= 0 {
		cfg.Interval = defaultInterval
	}
	if cfg.Buffer <= 0 {
		cfg.Buffer = defaultBuffer
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Meter{
		cfg: cfg, work: make(chan struct{}, 1), many: make(chan struct{}, 1), writer: make(chan struct{}, 1),
	}
}

// Record takes what a run used. It never blocks and never touches the disk. A record that finds the buffer full, or has
// no run id, is dropped and counted.
func (m *Meter) Record(record state.UsageRecord) {
	m.mu.Lock()
	if record.Run == "" || m.waiting >= m.cfg.Buffer {
		m.stats.Dropped++
		m.mu.Unlock()
		return
	}
	p := m.lastPageLocked()
	p.records[p.n] = record
	p.n++
	m.waiting++
	waiting := m.waiting
	m.mu.Unlock()
	if waiting == 1 {
		wake(m.work)
	}
	if waiting == m.cfg.Buffer/4 {
		wake(m.many)
	}
}

// lastPageLocked returns a page with room.
func (m *Meter) lastPageLocked() *page {
	if last := len(m.pages) - 1; last >= 0 && m.pages[last].n < pageRecords {
		return m.pages[last]
	}
	var p *page
	if last := len(m.free) - 1; last >= 0 {
		p, m.free = m.free[last], m.free[:last]
	} else {
		p = new(page)
	}
	m.pages = append(m.pages, p)
	return p
}

func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // it will look anyway
	}
}

// Stats returns the counts.
func (m *Meter) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	stats := m.stats
	stats.Pending = int64(m.waiting)
	return stats
}

// Flush writes what was recorded before the call, and waits for a write that is going on. After an error the records
// still wait.
func (m *Meter) Flush(ctx context.Context) error {
	select {
	case m.writer <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-m.writer }()
	if err := m.writePage(ctx); err != nil { // what an earlier write left
		return err
	}
	m.mu.Lock()
	pages := len(m.pages)
	m.mu.Unlock()
	for range pages {
		m.takePage()
		if err := m.writePage(ctx); err != nil {
			return err
		}
	}
	return nil
}

// takePage makes the oldest page the writer's, which has none.
func (m *Meter) takePage() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writing = m.pages[0]
	m.pages = slices.Delete(m.pages, 0, 1)
}

// writePage writes the writer's page, if it has one. When that fails it stays the writer's.
func (m *Meter) writePage(ctx context.Context) error {
	p := m.writing
	if p == nil {
		return nil
	}
	writing, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := m.cfg.Store.AddUsage(writing, p.records[:p.n])
	if err != nil && ctx.Err() != nil {
		return err // it was cut short, which says nothing of the state
	}
	m.report(err, m.wrote(p, err))
	return err
}

// wrote notes how the writing of a page went.
func (m *Meter) wrote(p *page, err error) Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.stats.Failures++
	} else {
		m.writing = nil
		m.waiting -= p.n
		m.stats.Written += int64(p.n)
		clear(p.records[:p.n]) // names that nobody needs any more
		if p.n = 0; len(m.free) < keptPages {
			m.free = append(m.free, p)
		}
	}
	stats := m.stats
	stats.Pending = int64(m.waiting)
	return stats
}
