package state

import (
	"context"
	"database/sql"
	"sync"

	"iop/execution"
)

// Moment is a state of the database as all processes left it. Two Moments are equal only if nobody committed anything
// between them. The zero value is an unknown one, which equals nothing.
type Moment struct {
	connection uint64 // counts the connections that versions were read on: one means nothing on another
	version    int64
}

// Moment returns the present one, the zero Moment where the database can't tell. What is asked as of it is answered as
// the database has it now or has had it since; what was learned as of the same Moment before costs no look-up. Whoever
// must not miss a change asks for a Moment of his own, after the change may have been announced to him.
func (s *Store) Moment(ctx context.Context) Moment {
	if s.db.versions == nil || ctx.Err() != nil || s.db.guard.allow(false) != nil {
		return Moment{}
	}
	return s.db.versions.read()
}

// queryVersion is a number that moves with each commit of another connection, in whatever process. SQLite only.
const queryVersion = `PRAGMA data_version`

// versions reads the database's version, on a connection of its own that never writes.
type versions struct {
	db *sql.DB // never nil; of one connection

	mu         sync.Mutex // guards what follows
	connection *sql.Conn  // or nil
	statement  *sql.Stmt  // of connection
	count      uint64     // connections so far
}

// read returns the present Moment, the zero one where it can't be read.
func (v *versions) read() Moment {
	v.mu.Lock()
	defer v.mu.Unlock()
	// Without a context to watch: it is done before a goroutine could look.
	ctx := context.Background()
	if v.connection == nil && v.connectLocked(ctx) != nil {
		return Moment{}
	}
	version, err := queryOne(ctx, statement{v.statement}, scanOne[int64], queryVersion)
	if err != nil {
		v.dropLocked()
		return Moment{}
	}
	return Moment{connection: v.count, version: version}
}

func (v *versions) connectLocked(ctx context.Context) (err error) {
	if v.connection, err = v.db.Conn(ctx); err != nil {
		v.connection = nil
		return err
	}
	v.count++
	if v.statement, err = v.connection.PrepareContext(ctx, queryVersion); err != nil {
		v.dropLocked()
	}
	return err
}

// dropLocked gives the connection up. What was learned as of its versions is looked up anew.
func (v *versions) dropLocked() {
	if v.statement != nil {
		_ = v.statement.Close() // it goes with its connection
	}
	_ = v.connection.Close()
	v.connection, v.statement = nil, nil
}

func (v *versions) close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.connection != nil {
		v.dropLocked()
	}
	return v.db.Close()
}

// statement is a querier whose query is always the same.
type statement struct{ *sql.Stmt }

// QueryContext ignores the text.
func (s statement) QueryContext(ctx context.Context, _ string, args ...any) (*sql.Rows, error) {
	return s.Stmt.QueryContext(ctx, args...)
}

// maxLearned bounds what is learned of one kind as of one Moment.
const maxLearned = 4096

// learned is what was looked up as of one Moment. The zero value is ready.
type learned[K comparable, V any] struct {
	mu     sync.Mutex
	as     Moment
	values map[K]V
}

// get returns what was learned as of m, or else looks it up. Errors are not learned.
func (l *learned[K, V]) get(m Moment, key K, lookUp func() (V, error)) (V, error) {
	if m == (Moment{}) {
		return lookUp()
	}
	l.mu.Lock()
	value, known := l.values[key]
	known = known && l.as == m
	l.mu.Unlock()
	if known {
		return value, nil
	}
	// This begins after m: what it finds holds for all who get the same Moment later.
	value, err := lookUp()
	if err != nil {
		return value, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.as != m || l.values == nil || len(l.values) >= maxLearned {
		l.as, l.values = m, make(map[K]V)
	}
	l.values[key] = value
	return value, nil
}

// facts are what a leased run asks for.
type facts struct {
	keys        learned[KeyID, *keyRecord]
	allows      learned[nodeCertificate, NodeAllow]
	credentials learned[execution.SlotName, credentialRow]
}
