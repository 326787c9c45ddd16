package state

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"sync/atomic"
	"testing"
	"testing/fstest"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

// postgresServer is the variable that names a PostgreSQL server for the tests, as a URL without a database: then what holds
// on each engine is held against that one, too. .ci/postgres starts one and sets it.
const postgresServer = "IOP_STATE_TEST_POSTGRES"

var postgresDatabases atomic.Int64

// openPostgres opens an empty database of its own on the tests' server. The binary has no such engine yet: this shows that
// the schema and the queries are SQL that PostgreSQL understands, and mean the same there.
func openPostgres(t testing.TB, server string) *Store {
	t.Helper()
	name := fmt.Sprintf("iop_%d_%d", os.Getpid(), postgresDatabases.Add(1))
	admin := postgresPool(t, server, "postgres", 1)
	if _, err := admin.Exec(`CREATE DATABASE ` + name); err != nil {
		t.Fatal(err)
	}
	if err := admin.Close(); err != nil {
		t.Fatal(err)
	}
	db := &database{
		read: &pool{DB: postgresPool(t, server, name, readers)}, write: &pool{DB: postgresPool(t, server, name, 1), writes: true},
		dialect: goose.DialectPostgres, schema: postgresSchema(t),
	}
	s, err := openOn(context.Background(), db, secretDirectory(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// postgresSchema are the migrations without the one word that is SQLite's own, which says how a table is stored.
func postgresSchema(t testing.TB) fs.FS {
	t.Helper()
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil || len(names) < 5 {
		t.Fatalf("%d migrations, %v", len(names), err)
	}
	schema := fstest.MapFS{}
	for _, name := range names {
		text, err := migrations.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		schema[path.Base(name)] = &fstest.MapFile{Data: bytes.ReplaceAll(text, []byte(") WITHOUT ROWID;"), []byte(");"))}
	}
	return schema
}

func postgresPool(t testing.TB, server, name string, connections int) *sql.DB {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	db, err := sql.Open("pgx", u.String())
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db
}

// onPostgres runs a test on PostgreSQL too, where there is a server for it.
func onPostgres(t *testing.T, test func(*testing.T, *Store)) {
	if server := os.Getenv(postgresServer); server != "" {
		t.Run("postgres", func(t *testing.T) { test(t, openPostgres(t, server)) })
	}
}
