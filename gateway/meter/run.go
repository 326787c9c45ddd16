package meter

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// pruneInterval is the time between two prunings, and firstPrune that before the first: soon, but not while the Edge
	// starts. Both vary by a part, so that several Edges on one state don't prune at once.
	pruneInterval = time.Hour
	firstPrune    = time.Minute
	pruneVariance = 4 // up to a quarter more
)

// Run writes records and prunes, until ctx ends; then it writes the rest, within 5 seconds, and returns. It is called
// once, by who ends ctx only when no more runs can be recorded.
func (m *Meter) Run(ctx context.Context) {
	var pruning sync.WaitGroup
	if m.cfg.Retention > 0 {
		pruning.Go(func() { m.prune(ctx) })
	}
	m.write(ctx)
	m.writeRest(ctx)
	pruning.Wait()
}

// write writes each record within the Interval, until ctx ends.
func (m *Meter) write(ctx context.Context) {
	pause := m.cfg.Interval
	for {
		if m.Stats().Pending == 0 {
			select {
			case <-m.work:
			case <-ctx.Done():
				return
			}
		}
		if !m.sleep(ctx, pause) {
			return
		}
		if err := m.Flush(ctx); err == nil {
			pause = m.cfg.Interval
		} else {
			pause = max(min(2*pause, longestPause), m.cfg.Interval)
		}
	}
}

// sleep waits, less long when the buffer fills up while the state works. It is false when ctx ended.
func (m *Meter) sleep(ctx context.Context, pause time.Duration) bool {
	many := m.many
	if pause > m.cfg.Interval {
		many = nil // the state fails, and trying more often would not help it
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-many:
	case <-ctx.Done():
		return false
	}
	return true
}

// writeRest writes what is left when the Edge stops.
func (m *Meter) writeRest(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastFlush)
	defer cancel()
	for {
		err := m.Flush(ctx)
		if err == nil {
			return
		}
		timer := time.NewTimer(lastPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			m.cfg.Logger.Error("usage was lost: it could not be written before the Edge stopped", "runs", m.Stats().Pending, "error", err)
			return
		}
	}
}

// health is what the log knows of the state: it is told when that changes.
type health struct {
	failing  bool
	dropping bool
}

// report tells the log when writing begins or ceases to fail, and when records are dropped. The writer calls it.
func (m *Meter) report(err error, stats Stats) {
	log := m.cfg.Logger
	if dropped := stats.Dropped - m.refused; dropped > 0 && !m.health.dropping {
		m.health.dropping = true
		log.Error("usage is being lost: records are dropped", "dropped", dropped, "pending", stats.Pending, "buffer", m.cfg.Buffer)
	}
	if err != nil {
		if !m.health.failing {
			m.health.failing = true
			log.Warn("usage could not be written; it is kept and retried", "error", err, "pending", stats.Pending, "buffer", m.cfg.Buffer)
		}
		return
	}
	if m.health.failing {
		m.health.failing = false
		log.Info("usage is written again", "pending", stats.Pending)
	}
	if m.health.dropping && stats.Pending <= int64(m.cfg.Buffer/2) { // half: not a line for each batch of a long overload
		log.Info("no more usage is lost", "dropped", stats.Dropped-m.refused)
		m.health.dropping, m.refused = false, stats.Dropped
	}
}

// prune deletes what is older than the Retention, until ctx ends.
func (m *Meter) prune(ctx context.Context) {
	failing := false
	for wait := varied(firstPrune); ; wait = varied(pruneInterval) {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		err := m.pruneOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !failing {
			m.cfg.Logger.Warn("old usage could not be pruned; retrying every hour", "error", err)
		}
		failing = err != nil
	}
}

func (m *Meter) pruneOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pruneInterval) // what is left then is the next one's
	defer cancel()
	deleted, err := m.cfg.Store.PruneUsage(ctx, time.Now().Add(-m.cfg.Retention))
	if deleted > 0 {
		m.cfg.Logger.Info("old usage was pruned", "runs", deleted)
	}
	return err
}

// varied is d and up to a quarter more.
func varied(d time.Duration) time.Duration { return d + rand.N(d/pruneVariance) }
