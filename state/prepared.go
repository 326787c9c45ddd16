package state

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// prepared is a query that each connection parses once. Parsing is half of what a look-up costs, and a leased run makes
// two. It takes the place of a querier whose query is always that one.
type prepared struct {
	statement *sql.Stmt
	pool      *pool
}

// QueryContext ignores the text: it was given when the query was prepared.
func (p prepared) QueryContext(ctx context.Context, _ string, args ...any) (*sql.Rows, error) {
	return p.statement.QueryContext(ctx, args...)
}

// done tells the pool's observer.
func (p prepared) done(began time.Time) { p.pool.done(began) }

// preparedQueries are those on the path of a leased run.
type preparedQueries struct{ credential, nodeAllowed prepared }

func prepareQueries(ctx context.Context, db *database) (q preparedQueries, err error) {
	for query, place := range map[string]*prepared{queryCredential: &q.credential, queryNodeAllowed: &q.nodeAllowed} {
		place.pool = db.read
		if place.statement, err = db.read.PrepareContext(ctx, query); err != nil {
			return q, err
		}
	}
	return q, nil
}

func (q *preparedQueries) close() error {
	return errors.Join(q.credential.statement.Close(), q.nodeAllowed.statement.Close())
}
