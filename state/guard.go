package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Fault is what is wrong with the files of a state. The zero value is nothing.
type Fault uint8

// The faults. With each but FaultPepper the Store refuses every access with a *FaultError.
const (
	FaultNone        Fault = iota
	FaultDeleted           // the database, or a file that SQLite keeps beside it, is gone
	FaultReplaced          // another file, or another state's content, is in its place
	FaultDamaged           // its content is not that of a database
	FaultUnreachable       // it can't be opened or read: permissions, or the disk
	FaultPepper            // the pepper's file is gone or another: this Store goes on, a new one would not open
	faults
)

// String returns the fault as it stands in logs and metrics.
func (f Fault) String() string {
	return [...]string{"none", "deleted", "replaced", "damaged", "unreachable", "pepper"}[min(f, faults-1)]
}

// Faults are all faults.
func Faults() (all []Fault) {
	for f := FaultDeleted; f < faults; f++ {
		all = append(all, f)
	}
	return all
}

// FaultError says why a Store refuses accesses. What was written before the fault may be lost; nothing is written after it.
type FaultError struct {
	Fault  Fault
	Detail string // for the operator: names files
}

// Error says what happened and what to do.
func (e *FaultError) Error() string {
	do := map[Fault]string{
		FaultDeleted:     "put the same file back, or stop the Edge, restore a backup and start it",
		FaultReplaced:    "stop the Edge before replacing its state, and start it afterwards",
		FaultDamaged:     "stop the Edge, restore a backup and start it",
		FaultUnreachable: "check the directory's owner and mode, and the disk",
		FaultPepper:      "restore the pepper before the Edge is started again",
	}[e.Fault]
	return fmt.Sprintf("the state's files have a fault (%s): %s; %s", e.Fault, e.Detail, do)
}

// Public is what anybody may know of it: no paths.
func (e *FaultError) Public() string {
	switch e.Fault {
	case FaultDeleted:
		return "the state's file was deleted"
	case FaultReplaced:
		return "the state's file was replaced"
	case FaultDamaged:
		return "the state is damaged"
	}
	return "the state can't be reached"
}

// Failure is why an access to the database failed: a closed set. The zero value is no failure.
type Failure uint8

// The failures.
const (
	FailureNone Failure = iota
	FailureFault
	FailureBusy     // another process had it locked for too long
	FailureFull     // the disk is full
	FailureReadOnly // the file or the disk can't be written
	FailureIO       // the disk, a quota (SQLite calls only ENOSPC full), or the file could not be opened
	FailureDamaged
	failures
)

// String returns the failure as it stands in metrics.
func (f Failure) String() string {
	return [...]string{"none", "fault", "busy", "full", "readonly", "io", "damaged"}[min(f, failures-1)]
}

// Reason says in words why the access failed; it names no file. It is empty for FailureNone.
func (f Failure) Reason() string {
	return [...]string{
		"",
		"its files have a fault",
		"another process has held the database's lock for too long",
		"the disk is full",
		"the file or its disk is read-only",
		"the disk failed, a quota or a file size limit was reached, or the file could not be opened",
		"the database is damaged",
	}[min(f, failures-1)]
}

// Failures are all failures.
func Failures() (all []Failure) {
	for f := FailureFault; f < failures; f++ {
		all = append(all, f)
	}
	return all
}

// FailureOf says whether an error of a Store's is a failure of the database, and not of the question: FailureNone if not.
func FailureOf(err error) Failure {
	if err == nil {
		return FailureNone
	}
	if _, ok := errors.AsType[*FaultError](err); ok {
		return FailureFault
	}
	fault, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return FailureNone
	}
	switch fault.Code() & 0xff { // above it stands of which kind
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return FailureBusy
	case sqlite3.SQLITE_FULL:
		return FailureFull
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return FailureReadOnly
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN:
		return FailureIO
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return FailureDamaged
	}
	return FailureNone
}

// isSQL reports whether the database does not understand a query, because it lacks a table.
func isSQL(err error) bool {
	fault, ok := errors.AsType[*sqlite.Error](err)
	return ok && fault.Code()&0xff == sqlite3.SQLITE_ERROR
}

// guard knows whether the database's file is still the one that was opened. SQLite would not notice: on Unix a deleted file
// takes writes until it is closed, and then they are gone. A nil guard, of a database in memory, allows everything.
//
// It never opens the file but through SQLite: to close it would end SQLite's locks on it (POSIX).
type guard struct {
	path string // as it was named: a link is followed each time
	name string // for sqlitePool

	fault  atomic.Pointer[FaultError] // or nil
	pepper atomic.Pointer[FaultError] // or nil; refuses nothing
	failed [failures]atomic.Int64

	mu      sync.Mutex // guards what follows
	files   []guarded
	forGood bool // what is found out now changes nothing: only opening it anew can help
}

// guarded is a file that must stay the one that it is.
type guarded struct {
	path     string
	info     os.FileInfo
	database bool // and no file beside it, which may be empty
}

func newGuard(path, name string) *guard { return &guard{path: path, name: name} }

// begin takes the database as it is now for the one that it must stay, and checks what every request depends on.
func (g *guard) begin(ctx context.Context) error {
	if g == nil {
		return nil
	}
	info, err := os.Stat(g.path)
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.files = []guarded{{path: g.path, info: info, database: true}}
	g.mu.Unlock()
	return g.inspect(ctx, func(db *sql.DB) error {
		for _, table := range smallTables {
			if err := quickCheck(ctx, db, table); err != nil {
				return err
			}
		}
		return nil
	})
}

// follow guards the files beside the database as well. They stay the same while a connection is open.
func (g *guard) follow() {
	real, err := filepath.EvalSymlinks(g.path)
	if err != nil {
		return // look says why
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, suffix := range []string{"-wal", "-shm"} {
		if info, err := os.Stat(real + suffix); err == nil {
			g.files = append(g.files, guarded{path: real + suffix, info: info})
		}
	}
}

// allow returns a *FaultError while the database can't be trusted. Before a write it looks at the files: it takes a
// microsecond for each, and a write waits for the disk anyway.
func (g *guard) allow(write bool) error {
	if g == nil {
		return nil
	}
	if write {
		g.look()
	}
	if fault := g.fault.Load(); fault != nil {
		return fault
	}
	return nil
}

// look looks at the files. A fault is over when they are back.
func (g *guard) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.forGood {
		return
	}
	for _, f := range g.files {
		if fault := f.look(); fault != nil {
			g.fault.Store(fault)
			g.forGood = fault.Fault == FaultDamaged
			return
		}
	}
	if now := g.fault.Load(); now != nil && now.Fault != FaultUnreachable { // that is for a probe to say
		g.fault.Store(nil)
	}
}

func (f guarded) look() *FaultError {
	info, err := os.Stat(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &FaultError{FaultDeleted, f.path + " is gone"}
	case err != nil:
		return &FaultError{FaultUnreachable, err.Error()}
	case !os.SameFile(info, f.info):
		return &FaultError{FaultReplaced, f.path + " is not the file that was opened"}
	case f.database && info.Size() == 0:
		return &FaultError{FaultDamaged, f.path + " was emptied"}
	}
	return nil
}

// noted counts a failure. What SQLite calls damaged is not used any more.
func (g *guard) noted(err error) {
	failure := FailureOf(err)
	if g == nil || failure == FailureNone {
		return
	}
	g.failed[failure].Add(1)
	if failure == FailureDamaged {
		g.condemn(FaultDamaged, err.Error())
	}
}

// condemn sets a fault that stays until the state is opened anew.
func (g *guard) condemn(f Fault, detail string) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.forGood {
		g.forGood = true
		g.fault.Store(&FaultError{f, detail})
	}
}

// unreachable sets or ends that fault.
func (g *guard) unreachable(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.fault.Load()
	switch {
	case g.forGood || now != nil && now.Fault != FaultUnreachable:
	case err != nil:
		g.fault.Store(&FaultError{FaultUnreachable, err.Error()})
	default:
		g.fault.Store(nil)
	}
}

// inspect runs f on a connection of its own, which has nothing in memory yet.
func (g *guard) inspect(ctx context.Context, f func(*sql.DB) error) (err error) {
	db, err := sqlitePool(g.name, url.Values{"mode": {"rw"}, "_query_only": {"true"}}, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := db.PingContext(ctx); err != nil {
		return err
	}
	return f(db)
}

// smallTables are checked whenever a state is opened: without them no request and no Node can be let in.
var smallTables = []string{"peppers", "api_keys", "join_tokens", "node_claims", "generations", "profiles", "slots", "node_allows", "node_denials"}

// ErrDamaged says that SQLite found the database damaged when it was opened or inspected.
var ErrDamaged = errors.New("the database is damaged")

// quickCheck has SQLite check a table, or all of the file if it is empty.
func quickCheck(ctx context.Context, db *sql.DB, table string) error {
	argument := "1" // the first fault is enough
	if table != "" {
		argument = table
	}
	found, err := queryOne(ctx, db, scanOne[string], "PRAGMA quick_check("+argument+")")
	if err == nil && found != "ok" {
		err = fmt.Errorf("%w: %s", ErrDamaged, found)
	}
	return err
}
