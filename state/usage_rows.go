package state

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"iop/execution"
)

// This file is how records of usage lie in the database: a row of numbers for each run, and the names that many runs have
// in common in a row of usage_sources.

// usageNames are the names in a record, as the database has them. They name a row of usage_sources.
type usageNames struct {
	key, principal, route, operation, node, provider, model string
}

func (n *usageNames) args() []any {
	return []any{n.key, n.principal, n.route, n.operation, n.node, n.provider, n.model}
}

// usageSource is a row of usage_sources.
type usageSource struct{ id, lastDay int64 }

// usageWriter writes the records of one transaction. What it knows of sources holds for that alone: another process may
// prune them.
type usageWriter struct {
	tx      *sql.Tx
	insert  *sql.Stmt
	sources map[usageNames]*usageSource
	months  map[keyMonth]int64
	args    [14]any // of insert, used again for each row
}

// add writes a record, and counts it if it was not there.
func (w *usageWriter) add(ctx context.Context, record *UsageRecord) error {
	row := newUsageRow(record)
	source, err := w.source(ctx, &row)
	if err != nil {
		return err
	}
	u := &row.usage
	w.args = [...]any{
		row.started, usageText(string(record.Run)), source, row.day, int64(record.Outcome), packDetails(record),
		micros(record.Queue), micros(record.FirstToken), micros(record.Duration), u.Input, u.Output, u.Cached, u.Reasoning,
		usageText(record.Session),
	}
	result, err := w.insert.ExecContext(ctx, w.args[:]...)
	if err != nil {
		return err
	}
	added, err := result.RowsAffected()
	if err == nil && added > 0 && record.Key != "" {
		w.months[keyMonth{record.Key, row.day / 100}] += u.Input + u.Output
	}
	return err
}

// source returns the id of a row's source, which it makes if there is none, and sees to it that the source stays for as
// long as the row may.
func (w *usageWriter) source(ctx context.Context, row *usageRow) (int64, error) {
	known := w.sources[row.names]
	if known == nil {
		found, err := queryOne(ctx, w.tx, scanSource, querySource, row.names.args()...)
		if errors.Is(err, sql.ErrNoRows) {
			found.lastDay = row.day
			found.id, err = queryOne(ctx, w.tx, scanOne[int64], insertSource, append(row.names.args(), row.day)...)
		}
		if err != nil {
			return 0, err
		}
		known = &found
		w.sources[row.names] = known
	}
	if known.lastDay < row.day {
		if _, err := w.tx.ExecContext(ctx, touchSource, known.id, row.day); err != nil {
			return 0, err
		}
		known.lastDay = row.day
	}
	return known.id, nil
}

func scanSource(rows *sql.Rows) (s usageSource, err error) {
	err = rows.Scan(&s.id, &s.lastDay)
	return s, err
}

// usageRow is what of a record the database has otherwise.
type usageRow struct {
	names        usageNames
	started, day int64
	usage        execution.Usage
}

func newUsageRow(record *UsageRecord) usageRow {
	row := usageRow{
		names: usageNames{
			key: usageText(string(record.Key)), principal: usageText(record.Principal), route: usageText(record.Route),
			operation: usageText(record.Operation), node: usageText(string(record.Node)),
			provider: usageText(string(record.Provider)), model: usageText(record.Model),
		},
		started: max(millis(record.Started), 0), usage: record.Usage,
	}
	row.day = dayOf(time.UnixMilli(row.started))
	u := &row.usage
	for _, count := range [...]*int64{&u.Input, &u.Output, &u.Cached, &u.Reasoning} {
		*count = min(max(*count, 0), MaxRunTokens)
	}
	return row
}

// Where in details what nobody asks for by itself lies: three flags, 16 bits each, a flag. The migrations know it too.
const (
	detailAttempts   = 3
	detailStatus     = 19
	detailCode       = 35
	detailNormalized = 51
	maxDetail        = 1<<16 - 1
)

// packDetails is what nobody asks for by itself as one number.
func packDetails(r *UsageRecord) int64 {
	return flag(r.Stream) | flag(r.Usage.Known)<<1 | flag(r.Usage.Estimated)<<2 |
		detail(r.Attempts)<<detailAttempts | detail(r.Status)<<detailStatus | detail(int(r.Code))<<detailCode |
		flag(r.Normalized)<<detailNormalized
}

func detail(n int) int64 { return int64(min(max(n, 0), maxDetail)) }

// unpackDetails is the inverse of packDetails.
func unpackDetails(r *UsageRecord, details int64) {
	r.Stream, r.Usage.Known, r.Usage.Estimated = details&1 != 0, details&2 != 0, details&4 != 0
	r.Attempts, r.Status = int(details>>detailAttempts&maxDetail), int(details>>detailStatus&maxDetail)
	r.Code = execution.Code(details >> detailCode & maxDetail)
	r.Normalized = details>>detailNormalized&1 != 0
}

// scanUsage reads a row of usageColumns.
func scanUsage(rows *sql.Rows) (UsageRecord, error) {
	var r UsageRecord
	var started, details, queue, firstToken, duration int64
	err := rows.Scan(&r.Run, &started, &r.Key, &r.Principal, &r.Route, &r.Operation, &r.Node, &r.Provider, &r.Model,
		&r.Outcome, &details, &queue, &firstToken, &duration, &r.Usage.Input, &r.Usage.Output, &r.Usage.Cached, &r.Usage.Reasoning,
		&r.Session)
	r.Started = fromMillis(started)
	r.Queue, r.FirstToken, r.Duration = fromMicros(queue), fromMicros(firstToken), fromMicros(duration)
	unpackDetails(&r, details)
	return r, err
}
