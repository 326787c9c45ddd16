package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// How often a state is looked after.
const (
	lookEvery  = time.Second     // at the files: three calls of stat
	probeEvery = 5 * time.Second // at the content, by a new connection: about a millisecond
	// checkEvery is for all of the file: ten million runs, 0.8 GB, take some seconds of a processor and that much reading.
	checkEvery = 24 * time.Hour
	// firstCheck is when Nodes and clients have come back after a start.
	firstCheck = time.Minute
	// unreachableAfter is how many probes in a row must fail: one may have met a moment without a free descriptor.
	unreachableAfter = 2
)

// Watch looks after the files of the state until ctx ends: whether they are still there and the same, whether they can be
// read, and, a minute after the start and once a day, whether all of the database is sound. What it finds is logged as it
// begins and as it ends; Fault returns it. One process calls it, once, for each Store. It does nothing for a state in memory.
func (s *Store) Watch(ctx context.Context, log *slog.Logger) {
	g := s.db.guard
	if g == nil {
		return
	}
	// Held for as long as it watches: the files beside the database stay the same only while a connection is open.
	err := g.inspect(ctx, func(db *sql.DB) error {
		if _, err := readProofs(ctx, db); err != nil {
			return err
		}
		g.follow()
		s.watch(ctx, log)
		return nil
	})
	if err != nil && ctx.Err() == nil {
		log.Error("the state can't be watched", "error", err)
	}
}

func (s *Store) watch(ctx context.Context, log *slog.Logger) {
	look, probe, check := time.NewTicker(lookEvery), time.NewTicker(probeEvery), time.NewTimer(firstCheck)
	defer look.Stop()
	defer probe.Stop()
	defer check.Stop()
	g, failed := s.db.guard, 0
	var told [2]Fault
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			g.look()
		case <-probe.C:
			failed = s.probe(ctx, failed)
		case <-check.C:
			s.checkAll(ctx, log)
			check.Reset(checkEvery)
		}
		told[0] = tellFault(log, told[0], g.fault.Load())
		told[1] = tellFault(log, told[1], g.pepper.Load())
	}
}

// tellFault logs what has changed since it was last told, and returns what is told now.
func tellFault(log *slog.Logger, told Fault, now *FaultError) Fault {
	fault := FaultNone
	if now != nil {
		fault = now.Fault
	}
	switch {
	case fault == told:
	case now != nil:
		log.Error("the state can't be trusted", "fault", fault.String(), "reason", now.Error())
	default:
		log.Info("the state can be trusted again", "fault", told.String())
	}
	return fault
}

// probe reads a little by a new connection and compares it with what is known, and looks at the pepper. It returns how many
// probes have failed in a row.
func (s *Store) probe(ctx context.Context, failed int) int {
	g := s.db.guard
	g.pepper.Store(s.pepperFault())
	g.look()
	if now := g.fault.Load(); now != nil && now.Fault != FaultUnreachable {
		return 0
	}
	var proofs map[int64]string
	err := g.inspect(ctx, func(db *sql.DB) (err error) {
		proofs, err = readProofs(ctx, db)
		return err
	})
	switch failure := FailureOf(err); {
	case ctx.Err() != nil:
	case err == nil:
		failed = 0
		g.unreachable(nil)
		if fault := s.peppers.strangers(proofs); fault != "" {
			g.condemn(FaultReplaced, g.path+" has another state's content: "+fault)
		}
	case failure == FailureDamaged:
		g.condemn(FaultDamaged, err.Error())
	case isSQL(err):
		g.condemn(FaultReplaced, g.path+" has another content: "+err.Error())
	case failure == FailureIO, failure == FailureReadOnly:
		if failed++; failed >= unreachableAfter {
			g.unreachable(err)
		}
	}
	return failed
}

// checkAll checks all of the database.
func (s *Store) checkAll(ctx context.Context, log *slog.Logger) {
	g, began := s.db.guard, time.Now()
	if g.fault.Load() != nil {
		return
	}
	err := g.inspect(ctx, func(db *sql.DB) error { return quickCheck(ctx, db, "") })
	switch {
	case ctx.Err() != nil:
	case err == nil:
		log.Info("the state was checked: it is intact", "took", time.Since(began).Round(time.Millisecond).String())
	case errors.Is(err, ErrDamaged) || FailureOf(err) == FailureDamaged:
		g.condemn(FaultDamaged, err.Error())
	default:
		log.Warn("the state could not be checked", "error", err)
	}
}

// pepperFault says whether the pepper's file would open this state.
func (s *Store) pepperFault() *FaultError {
	content, err := s.files.read(pepperFile)
	if err != nil {
		return &FaultError{FaultPepper, "the pepper can't be read: " + err.Error()}
	}
	now, err := parsePeppers(content)
	if err != nil {
		return &FaultError{FaultPepper, "the pepper: " + err.Error()}
	}
	for version, p := range s.peppers.byVersion {
		if other := now.byVersion[version]; other == nil || other.proof() != p.proof() {
			return &FaultError{FaultPepper, fmt.Sprintf("the pepper has lost version %d", version)}
		}
	}
	return nil
}

// strangers says how the proofs of a database are not those of these peppers; empty if they are.
func (all *peppers) strangers(proofs map[int64]string) string {
	for version, p := range all.byVersion {
		if proofs[version] != p.proof() {
			return fmt.Sprintf("it lacks pepper version %d", version)
		}
	}
	return ""
}

// Fault returns what is wrong with the state's files now, as Watch and accesses found it; nil if nothing is.
func (s *Store) Fault() *FaultError {
	if g := s.db.guard; g != nil {
		if f := g.fault.Load(); f != nil {
			return f
		}
		return g.pepper.Load()
	}
	return nil
}

// Failed returns how many accesses have failed for that reason.
func (s *Store) Failed(f Failure) int64 {
	if g := s.db.guard; g != nil {
		return g.failed[f].Load()
	}
	return 0
}
