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
	"strconv"
	"strings"
	"time"
)

// Inspection is what Inspect found of a state.
type Inspection struct {
	Path    string // of the database
	Missing bool   // there is none yet: it is made when the state is opened
	Schema  int64  // the version of its schema
	Checked bool   // all of it was checked and is sound; false also where there was no time for it
	Known   int64  // the version that this binary has; an older schema is brought up to it when the state is opened
}

// Directory is where the state lies, with its secrets beside it.
func (i *Inspection) Directory() string { return filepath.Dir(i.Path) }

// Inspect reads what can be told of a state without opening it: nothing is made and nothing brought up to date. Its error
// says why the state could not be opened; the Inspection then holds what was found until there.
func Inspect(ctx context.Context, stateURL string) (Inspection, error) {
	at, err := parseURL(stateURL)
	switch {
	case err != nil:
		return Inspection{}, err
	case at.memory:
		return Inspection{}, errors.New("a state in memory can't be inspected")
	}
	i := Inspection{Path: at.path}
	if i.Known, err = knownSchema(); err != nil {
		return i, err
	}
	switch _, err := os.Stat(at.path); {
	case errors.Is(err, fs.ErrNotExist):
		i.Missing = true
		return i, refuseOrphans(at)
	case err != nil:
		return i, err
	}
	if err := refuseOrphans(at); err != nil {
		return i, err
	}
	if i.Schema, err = schemaOf(ctx, at.path); err != nil {
		return i, fmt.Errorf("open state %s: %w", at, err)
	}
	if i.Schema > i.Known {
		return i, fmt.Errorf("%w: its schema has version %d, this iop knows up to %d", ErrNewer, i.Schema, i.Known)
	}
	if i.Checked, err = checked(ctx, at.path); err != nil {
		return i, err
	}
	return i, readOnly(at.path, func(db *sql.DB) error {
		return inspectPeppers(ctx, db, secretDirectory(i.Directory()))
	})
}

// checked checks all of a database, for as long as half of the time that ctx has.
func checked(ctx context.Context, path string) (bool, error) {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	name, err := sqliteName(path)
	if err != nil {
		return false, err
	}
	err = newGuard(path, name).inspect(ctx, func(db *sql.DB) error { return quickCheck(ctx, db, "") })
	switch {
	case ctx.Err() != nil:
		return false, nil
	case FailureOf(err) == FailureDamaged && !errors.Is(err, ErrDamaged):
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err == nil, err
}

// schemaOf asks a database that exists.
func schemaOf(ctx context.Context, path string) (version int64, err error) {
	err = readOnly(path, func(db *sql.DB) error {
		version, err = queryOne(ctx, db, scanOne[int64], "SELECT max(version_id) FROM "+schemaTable)
		return err
	})
	return version, err
}

// readOnly calls ask with a database that exists.
func readOnly(path string, ask func(db *sql.DB) error) (err error) {
	name, err := sqliteName(path)
	if err != nil {
		return err
	}
	db, err := sqlitePool(name, url.Values{"mode": {"rw"}, "_query_only": {"true"}}, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return ask(db)
}

// knownSchema is the version of the last migration.
func knownSchema() (last int64, err error) {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		number, _, _ := strings.Cut(filepath.Base(file), "_")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("migration %s: %w", file, err)
		}
		last = max(last, n)
	}
	return last, nil
}
