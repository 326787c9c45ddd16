package state

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// prepared is a query that each connection parses once. Parsing is half of what a look-up costs, and a leased run makes
// three. It takes the place of a querier whose query is always that one.
type prepared struct {
	statement *sql.Stmt
	pool      *pool
}

// QueryContext ignores the text: it was given when the query was prepared. It looks at the context before it begins and
// not again: such a query reads a row or two, and two goroutines that wait for its cancellation cost as much.
func (p prepared) QueryContext(ctx context.Context, _ string, args ...any) (*sql.Rows, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := p.pool.guard.allow(false); err != nil {
		return nil, err
	}
	return p.statement.QueryContext(context.WithoutCancel(ctx), args...)
}

// done tells the pool.
func (p prepared) done(began time.Time, err error) { p.pool.done(began, err) }

// preparedQueries are those on the path of a leased run.
type preparedQueries struct{ key, credential, nodeAllowed prepared }

func prepareQueries(ctx context.Context, db *database) (q preparedQueries, err error) {
	for query, place := range map[string]*prepared{
		queryKey: &q.key, queryCredential: &q.credential, queryNodeAllowed: &q.nodeAllowed,
	} {
		place.pool = db.read
		if place.statement, err = db.read.PrepareContext(ctx, query); err != nil {
			return q, err
		}
	}
	return q, nil
}

func (q *preparedQueries) close() error {
	return errors.Join(q.key.statement.Close(), q.credential.statement.Close(), q.nodeAllowed.statement.Close())
}
