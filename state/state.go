package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// ErrNotFound says that what was named does not exist.
var ErrNotFound = errors.New("not found")

// Store is an open state. Its methods may be called from any goroutine. The zero value is of no use: see Open. An error that
// a method's comment does not name means that the database could not be asked or did not answer, or that ctx had ended: a
// change was made wholly then, or not at all.
type Store struct {
	// Static after Open.
	db      *database
	files   secretFiles
	peppers *peppers
	queries preparedQueries

	summaries chan struct{} // a place for each UsageSummary that runs; never closed

	// Each guards itself.
	keys       keyCache
	uses       useLog
	admin      adminCheck
	masterKeys atomic.Pointer[keyring] // or nil: UseMasterKey was not called
	leases     leaseLog
	facts      facts
	given      generations

	// The background goroutines belong to Open, which starts them, and Close, which stops them and waits.
	stop       context.CancelFunc
	background sync.WaitGroup
	close      func() error // once
}

// Open opens the state at a URL and brings its schema up to date. The URL is one of
//
//	sqlite:///var/lib/iop/iop.db   an absolute path
//	sqlite://iop-data/iop.db       a path relative to the working directory
//	sqlite::memory:                in memory, of this Store alone, gone with Close
//
// A missing directory is made with mode 0700, a missing file with 0600. Several Stores, in one process or many, may have
// the same file open. The context bounds the opening only.
func Open(ctx context.Context, url string) (*Store, error) {
	at, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	s, err := open(ctx, at)
	if err != nil {
		return nil, fmt.Errorf("open state %s: %w", at, err)
	}
	return s, nil
}

func open(ctx context.Context, at location) (*Store, error) {
	db, files, err := openLocation(ctx, at)
	if err != nil {
		return nil, err
	}
	return openOn(ctx, db, files)
}

// openOn makes a Store of a database, which it closes if it fails.
func openOn(ctx context.Context, db *database, files secretFiles) (*Store, error) {
	if err := db.migrate(ctx); err != nil {
		return nil, errors.Join(err, db.close())
	}
	if err := db.guard.begin(ctx); err != nil {
		return nil, errors.Join(err, db.close())
	}
	peppers, err := openPeppers(ctx, db, files)
	if err != nil {
		return nil, errors.Join(err, db.close())
	}
	queries, err := prepareQueries(ctx, db)
	if err != nil {
		return nil, errors.Join(err, db.close())
	}
	s := &Store{
		db: db, files: files, peppers: peppers, queries: queries,
		summaries: make(chan struct{}, summariesAtOnce), leases: newLeaseLog(),
	}
	s.close = sync.OnceValue(s.shutdown)
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.background.Go(func() { s.keepHouse(background) })
	s.background.Go(func() { s.writeLeases(background) })
	return s, nil
}

func openLocation(ctx context.Context, at location) (*database, secretFiles, error) {
	if at.memory {
		db, err := openSQLiteMemory(ctx)
		return db, secretMemory{}, err
	}
	if err := os.MkdirAll(at.directory(), 0o700); err != nil {
		return nil, nil, err
	}
	if err := refuseOrphans(at); err != nil {
		return nil, nil, err
	}
	db, err := openSQLiteFile(at.path)
	return db, secretDirectory(at.directory()), err
}

// Close writes down what is still in memory and closes the database. Later calls return the same error.
func (s *Store) Close() error { return s.close() }

func (s *Store) shutdown() error {
	s.stop()
	s.background.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := errors.Join(s.FlushAudit(ctx), s.flushUses(ctx))
	return errors.Join(err, s.queries.close(), s.db.close())
}

// Ping reports whether the database answers.
func (s *Store) Ping(ctx context.Context) error {
	if _, err := queryOne(ctx, s.db.read, scanOne[int64], `SELECT 1`); err != nil {
		return fmt.Errorf("state: ping: %w", err)
	}
	return nil
}

// location is a parsed URL.
type location struct {
	memory bool
	path   string // of the SQLite file
}

func (l location) directory() string { return filepath.Dir(l.path) }

func (l location) String() string {
	if l.memory {
		return "in memory"
	}
	return l.path
}

// FilePath returns the path of the database file that a state URL names, empty for a state in memory. Its errors are those of
// Open about the URL. It opens nothing, and anybody may call it.
func FilePath(url string) (string, error) {
	at, err := parseURL(url)
	return at.path, err
}

// parseURL names no more of a URL that it refuses than the scheme: the rest may hold a password.
func parseURL(url string) (location, error) {
	const examples = `want sqlite:///absolute/path/iop.db, sqlite://relative/path/iop.db or sqlite::memory:`
	if url == "sqlite::memory:" {
		return location{memory: true}, nil
	}
	scheme, path, ok := strings.Cut(url, "://")
	switch {
	case !ok:
		return location{}, fmt.Errorf("state URL: unknown form: %s", examples)
	case scheme == "postgres" || scheme == "postgresql":
		return location{}, errors.New("state URL: PostgreSQL is not built in yet: use sqlite://")
	case scheme != "sqlite":
		return location{}, fmt.Errorf("state URL: unknown scheme %q: %s", scheme, examples)
	case path == "" || strings.HasSuffix(path, "/"):
		return location{}, fmt.Errorf("state URL: the file's name is missing: %s", examples)
	case strings.ContainsAny(path, "?#\x00"):
		return location{}, errors.New("state URL: it takes no options: remove what follows the path")
	case strings.HasPrefix(path, ":memory:"):
		return location{}, fmt.Errorf("state URL: %s", examples)
	}
	return location{path: filepath.FromSlash(path)}, nil
}
