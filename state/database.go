package state

import (
	"context"
	"crypto/rand"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
)

const (
	// busyTimeout is how long a statement waits for another process that writes the same file.
	busyTimeout = 10 * time.Second

	// readers bounds the connections that look things up beside the one that writes: a flood of unknown keys must not
	// wait behind a commit's fsync, nor open files without bound.
	readers = 4

	// pageCache bounds the pages that one connection caches, in KiB. SQLite's default is 2000, and a page takes twice its size,
	// because the allocator rounds up to powers of two. With that default the six connections grow for hours, up to 24 MB, by
	// every page of usage that is written or scanned, and use none of them again. The pages in constant use are about twenty;
	// the kernel caches the file, so another page costs a system call.
	pageCache = 256

	schemaTable = "schema_version"
)

//go:embed migrations/*.sql
var migrations embed.FS

// database is an engine behind the queries. It is all that knows which one.
type database struct {
	guard       *guard    // or nil: a database in memory
	read, write *pool     // the same one where the engine has just one connection
	anchor      *sql.DB   // or nil; keeps a database in memory alive
	versions    *versions // or nil: the engine can't tell cheaply whether something has changed
	dialect     goose.Dialect
	schema      fs.FS // or nil: migrations as they are
}

// openSQLiteFile opens the database in that file, and creates it with mode 0600 when it is missing; its directory
// exists. SQLite gives the WAL and shared memory beside it the same mode.
func openSQLiteFile(path string) (*database, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	name, err := sqliteName(path)
	if err != nil {
		return nil, err
	}
	guard := newGuard(path, name)
	writer, err := sqlitePool(name, url.Values{"_journal_mode": {"WAL"}, "_txlock": {"immediate"}}, 1)
	if err != nil {
		return nil, err
	}
	reader, err := sqlitePool(name, url.Values{"_query_only": {"true"}}, readers)
	if err != nil {
		return nil, errors.Join(err, writer.Close())
	}
	versioned, err := sqlitePool(name, url.Values{"_query_only": {"true"}}, 1)
	if err != nil {
		return nil, errors.Join(err, reader.Close(), writer.Close())
	}
	return &database{
		guard: guard, read: &pool{DB: reader, guard: guard}, write: &pool{DB: writer, guard: guard, writes: true}, versions: &versions{db: versioned},
		dialect: goose.DialectSQLite3,
	}, nil
}

// sqliteName is how SQLite's driver names the database in a file.
func sqliteName(path string) (string, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return "file:" + (&url.URL{Path: filepath.ToSlash(absolute)}).EscapedPath(), nil
}

// openSQLiteMemory opens an empty database of its own. One connection reads and writes, so that none meets another's
// lock. A second one, never used, keeps the database when a cancelled query costs the first.
func openSQLiteMemory(ctx context.Context) (*database, error) {
	name := "file:/" + rand.Text()
	anchor, err := sqlitePool(name, url.Values{"vfs": {"memdb"}}, 1)
	if err != nil {
		return nil, err
	}
	if err := anchor.PingContext(ctx); err != nil {
		return nil, errors.Join(err, anchor.Close())
	}
	only, err := sqlitePool(name, url.Values{"vfs": {"memdb"}, "_txlock": {"immediate"}}, 1)
	if err != nil {
		return nil, errors.Join(err, anchor.Close())
	}
	both := &pool{DB: only, writes: true}
	return &database{read: both, write: both, anchor: anchor, dialect: goose.DialectSQLite3}, nil
}

// pool is the connections for one kind of work. It tells an observer how long each piece of it took.
type pool struct {
	*sql.DB
	writes   bool
	guard    *guard                                               // or nil: a database in memory
	observer atomic.Pointer[func(write bool, took time.Duration)] // or nil
}

// QueryContext, ExecContext and BeginTx are those of sql.DB for as long as the database can be trusted.

// QueryContext implements querier.
func (p *pool) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := p.guard.allow(p.writes); err != nil {
		return nil, err
	}
	return p.DB.QueryContext(ctx, query, args...)
}

// ExecContext is for changes that return nothing.
func (p *pool) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := p.guard.allow(p.writes); err != nil {
		return nil, err
	}
	return p.DB.ExecContext(ctx, query, args...)
}

// BeginTx begins a transaction.
func (p *pool) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	if err := p.guard.allow(p.writes); err != nil {
		return nil, err
	}
	return p.DB.BeginTx(ctx, opts)
}

// done tells the observer of a piece of work that began then, and the guard how it went.
func (p *pool) done(began time.Time, err error) {
	p.guard.noted(err)
	if f := p.observer.Load(); f != nil {
		(*f)(p.writes, time.Since(began))
	}
}

// Observe has f told of each access to the database from now on: whether it may have written, and how long it took, the
// wait for a connection and for the disk included. f must return at once. It takes the place of an earlier one.
func (s *Store) Observe(f func(write bool, took time.Duration)) {
	s.db.read.observer.Store(&f)
	s.db.write.observer.Store(&f)
}

func sqlitePool(name string, options url.Values, connections int) (*sql.DB, error) {
	options.Set("_busy_timeout", fmt.Sprint(busyTimeout.Milliseconds()))
	options.Set("_synchronous", "FULL")
	options.Set("_dqs", "false")      // "text" is an identifier, as it is for PostgreSQL
	options.Set("_defensive", "true") // no statement may corrupt the file on purpose
	options.Add("_pragma", fmt.Sprintf("cache_size(-%d)", pageCache))
	connector, err := sqlite.NewConnector(name + "?" + options.Encode())
	if err != nil {
		return nil, err
	}
	pool := sql.OpenDB(connector)
	pool.SetMaxOpenConns(connections)
	pool.SetMaxIdleConns(connections)
	return pool, nil
}

// close closes the readers first: the last connection to leave folds the WAL into the file, and a reader can't.
func (d *database) close() error {
	var errs []error
	if d.versions != nil {
		errs = append(errs, d.versions.close())
	}
	if d.read != d.write {
		errs = append(errs, d.read.Close())
	}
	errs = append(errs, d.write.Close())
	if d.anchor != nil {
		errs = append(errs, d.anchor.Close())
	}
	return errors.Join(errs...)
}

// ErrNewer says that a newer version has migrated the database, which this one therefore refuses to open.
var ErrNewer = errors.New("the state was written by a newer iop")

const (
	// migrateAttempts bounds how often a process looks again after it lost the race to migrate.
	migrateAttempts = 5

	// migrateRest is the pause before it does so when the file was locked: SQLite does not wait for the lock under which
	// another process switches a new file to WAL, whatever the busy timeout.
	migrateRest = 20 * time.Millisecond
)

// migrate brings the schema to the version that this binary knows. Several processes may do so at once: a migration is
// one transaction, so who loses the race fails on what the winner made, looks again and finds nothing left to do.
func (d *database) migrate(ctx context.Context) error {
	giveUp := time.Now().Add(busyTimeout)
	for attempt := 1; ; attempt++ {
		err := d.migrateOnce(ctx)
		if err == nil || errors.Is(err, ErrNewer) || ctx.Err() != nil {
			return err
		}
		if !isBusy(err) && attempt >= migrateAttempts || time.Now().After(giveUp) {
			return err
		}
		if isBusy(err) {
			select {
			case <-time.After(migrateRest):
			case <-ctx.Done():
				return err
			}
		}
	}
}

// isBusy reports whether another process had the file locked.
func isBusy(err error) bool {
	const sqliteBusy = 5 // in the low byte; what stands above tells of which kind
	fault, ok := errors.AsType[*sqlite.Error](err)
	return ok && fault.Code()&0xff == sqliteBusy
}

func (d *database) migrateOnce(ctx context.Context) error {
	files := d.schema
	if files == nil {
		var err error
		if files, err = fs.Sub(migrations, "migrations"); err != nil {
			return err
		}
	}
	provider, err := goose.NewProvider(d.dialect, d.write.DB, files,
		goose.WithDisableGlobalRegistry(true), goose.WithTableName(schemaTable))
	if err != nil {
		return err
	}
	found, known, err := provider.GetVersions(ctx)
	if err != nil {
		return err
	}
	if found > known {
		return fmt.Errorf("%w: its schema has version %d, this iop knows up to %d", ErrNewer, found, known)
	}
	if found == known {
		return nil
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("bring the schema from version %d to %d: %w", found, known, err)
	}
	return nil
}

// locked runs f while this process alone writes: no other, in whatever process, is inside its own locked.
func (d *database) locked(ctx context.Context, f func(*sql.Tx) error) (err error) {
	defer func(began time.Time) { d.write.done(began, err) }(time.Now())
	tx, err := d.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // after a Commit it does nothing
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// inOrder is a query whose parameters stand in it once each and in their order, written as the engine binds them with the
// least ado: SQLite's driver reads the name of each that has one, for every row.
func (d *database) inOrder(query string) string {
	if d.dialect != goose.DialectSQLite3 {
		return query
	}
	return parameter.ReplaceAllString(query, "?")
}

var parameter = regexp.MustCompile(`\$[0-9]+`)

// eachRow calls write for n rows of a transaction. The context is looked at between rows, and what write gets is never done:
// else a goroutine would wait for that for each row, which costs as much as half the row.
func eachRow(ctx context.Context, n int, write func(ctx context.Context, i int) error) error {
	steady := context.WithoutCancel(ctx)
	for i := range n {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := write(steady, i); err != nil {
			return err
		}
	}
	return nil
}

// querier is a pool or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// queryAll returns what scan makes of each row.
//
// It reads to the end of the rows, and that is what makes a write with RETURNING last: SQLite commits such a statement
// in the step after its last row, and a fault there (a full disk) is that step's error. database/sql's QueryRow stops
// before it.
func queryAll[T any](ctx context.Context, q querier, scan func(*sql.Rows) (T, error), query string, args ...any) (all []T, err error) {
	// No transaction, which locked tells of as a whole.
	if p, ok := q.(interface {
		done(began time.Time, err error)
	}); ok {
		defer func(began time.Time) { p.done(began, err) }(time.Now())
	}
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return all, rows.Close()
}

// queryOne is queryAll for a query that gives one row; sql.ErrNoRows when it gives none.
func queryOne[T any](ctx context.Context, q querier, scan func(*sql.Rows) (T, error), query string, args ...any) (T, error) {
	all, err := queryAll(ctx, q, scan, query, args...)
	if err == nil && len(all) == 0 {
		err = sql.ErrNoRows
	}
	if err != nil {
		var none T
		return none, err
	}
	return all[0], nil
}

// scanOne reads a row of one column.
func scanOne[T any](rows *sql.Rows) (v T, err error) {
	err = rows.Scan(&v)
	return v, err
}

// millis is how a time stands in the database; 0 for the zero time.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// fromMillis is the inverse of millis.
func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
