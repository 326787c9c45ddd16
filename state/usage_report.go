package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"iop/execution"
)

const (
	// usagePage is how many records EachUsage reads at once.
	usagePage = 1000

	// maxUsageRows bounds a summary: each of its rows is in memory.
	maxUsageRows = 50_000

	// summariesAtOnce leaves connections free for keys that have to be looked up while summaries go through all usage.
	summariesAtOnce = readers / 2
)

// ErrUsageTooMany says that a summary would have more than 50,000 rows: fewer dimensions or less time have fewer.
var ErrUsageTooMany = errors.New("the summary would have more than 50000 rows")

// Dimension is what a summary of usage may be grouped by. The set is closed. The zero value is invalid.
type Dimension uint8

// The dimensions.
const (
	ByKey Dimension = iota + 1
	ByPrincipal
	ByRoute
	ByModel
	ByNode
	ByProvider
	ByOutcome
	ByDay   // in UTC
	ByMonth // in UTC
	BySession
)

// dimensions are the dimensions' names, columns and places in a row. The columns are all of type text, or bigint where
// the place reads it as that.
var dimensions = [...]struct {
	name, column string
	ofSource     bool // the column is one of usage_sources
	place        func(*UsageRow) any
}{
	ByKey:       {"key", `key_id`, true, func(r *UsageRow) any { return &r.Key }},
	ByPrincipal: {"principal", `principal`, true, func(r *UsageRow) any { return &r.Principal }},
	ByRoute:     {"route", `route`, true, func(r *UsageRow) any { return &r.Route }},
	ByModel:     {"model", `model`, true, func(r *UsageRow) any { return &r.Model }},
	ByNode:      {"node", `node`, true, func(r *UsageRow) any { return &r.Node }},
	ByProvider:  {"provider", `provider`, true, func(r *UsageRow) any { return &r.Provider }},
	ByOutcome:   {"outcome", `outcome`, false, func(r *UsageRow) any { return (*outcomeColumn)(&r.Outcome) }},
	ByDay:       {"day", `day`, false, func(r *UsageRow) any { return (*dayColumn)(&r.Day) }},
	ByMonth:     {"month", `day / 100`, false, func(r *UsageRow) any { return (*dayColumn)(&r.Month) }},
	BySession:   {"session", `session_id`, false, func(r *UsageRow) any { return &r.Session }},
}

// String returns the dimension's name as commands and the admin API have it.
func (d Dimension) String() string {
	if !d.valid() {
		return fmt.Sprintf("unknown_%d", d)
	}
	return dimensions[d].name
}

func (d Dimension) valid() bool { return d >= ByKey && int(d) < len(dimensions) }

// ParseDimension returns the dimension of that name. Another name gives a *SpecError of the field "by".
func ParseDimension(name string) (Dimension, error) {
	var names []string
	for d := ByKey; d.valid(); d++ {
		if d.String() == name {
			return d, nil
		}
		names = append(names, d.String())
	}
	return 0, fault("by", "%q is not one of %s", name, strings.Join(names, ", "))
}

// outcomeColumn scans an outcome's number as its name.
type outcomeColumn string

// Scan makes it a sql.Scanner.
func (c *outcomeColumn) Scan(value any) error {
	number, ok := value.(int64)
	if !ok || number < 0 || number > math.MaxUint8 {
		return fmt.Errorf("%v is no outcome", value)
	}
	*c = outcomeColumn(execution.Outcome(number).String())
	return nil
}

// dayColumn scans yyyymmdd as "yyyy-mm-dd", or yyyymm as "yyyy-mm".
type dayColumn string

// Scan makes it a sql.Scanner.
func (c *dayColumn) Scan(value any) error {
	number, ok := value.(int64)
	if !ok {
		return fmt.Errorf("%v is no day", value)
	}
	if number < 1_000_000 {
		*c = dayColumn(fmt.Sprintf("%04d-%02d", number/100, number%100))
	} else {
		*c = dayColumn(fmt.Sprintf("%04d-%02d-%02d", number/10_000, number/100%100, number%100))
	}
	return nil
}

// UsageQuery says which records are meant. A field that is empty leaves all of its kind in.
type UsageQuery struct {
	From, To  time.Time // of Started: From belongs to it, To does not; to the millisecond
	Key       KeyID
	Principal string
	Route     string
	Node      execution.NodeID
	By        []Dimension // for UsageSummary: what makes a row of its own; none: one row of all
}

// UsageRow is a row of a summary.
type UsageRow struct {
	// What was grouped by; empty for what was not.
	Key, Principal, Route, Model, Node, Provider, Outcome string
	Day                                                   string // "2006-01-02"
	Month                                                 string // "2006-01"
	Session                                               string

	Runs, Completed, Failed, Cancelled, Rejected int64
	Input, Output, Cached, Reasoning             int64 // tokens
	Estimated                                    int64 // runs whose tokens are estimated

	// Means; that of FirstToken is over the runs that had one.
	Queue, FirstToken, Duration time.Duration
}

// where returns the conditions of the query and their arguments.
func (q *UsageQuery) where() (string, []any) {
	until := int64(math.MaxInt64)
	if !q.To.IsZero() {
		until = millis(q.To)
	}
	return usageBetween, []any{millis(q.From), until}
}

// filters are the conditions for names; the arguments are numbered from those that are there on.
func (q *UsageQuery) filters(args []any) (string, []any) {
	var conditions []string
	for _, filter := range []struct{ column, value string }{
		{`key_id`, string(q.Key)}, {`principal`, q.Principal}, {`route`, q.Route}, {`node`, string(q.Node)},
	} {
		if filter.value != "" {
			args = append(args, usageText(filter.value))
			conditions = append(conditions, filter.column+` = $`+strconv.Itoa(len(args)))
		}
	}
	if len(conditions) == 0 {
		return "", args
	}
	return usageOfSources + strings.Join(conditions, ` AND `) + `)`, args
}

// UsageSummary adds up the records, a row for each combination of what By names that there is, in the order of those.
// It goes through all records of the time, whatever is asked of them, a second or two for a million. Two run at once, others
// wait. ErrUsageTooMany if there would be too many rows.
func (s *Store) UsageSummary(ctx context.Context, q UsageQuery) ([]UsageRow, error) {
	query, args, err := q.summary()
	if err != nil {
		return nil, fmt.Errorf("usage summary: %w", err)
	}
	select {
	case s.summaries <- struct{}{}:
		defer func() { <-s.summaries }()
	case <-ctx.Done():
		return nil, fmt.Errorf("usage summary: %w", ctx.Err())
	}
	rows, err := queryAll(ctx, s.db.read, q.scanSummary, query, args...)
	if err == nil && len(rows) > maxUsageRows {
		err = ErrUsageTooMany
	}
	if err != nil {
		return nil, fmt.Errorf("usage summary: %w", err)
	}
	return rows, nil
}

// summary composes the query of a summary. Runs are summed up by source first, of which there are few, and their names
// come in with those sums.
func (q *UsageQuery) summary() (string, []any, error) {
	var columns, inner, order []string
	named := false
	for i, d := range q.By {
		if !d.valid() {
			return "", nil, fault("by", "%v is no dimension", d)
		}
		column := dimensions[d].column
		if dimensions[d].ofSource {
			named = true
			columns = append(columns, column)
		} else {
			columns = append(columns, d.String())
			inner = append(inner, column+` AS `+d.String())
		}
		order = append(order, strconv.Itoa(i+1))
	}
	where, args := q.where()
	filters, args := q.filters(args)
	runs := usageFrom + where + filters
	query := selectGrouped(inner, usageSums, runs)
	if named {
		sums := selectGrouped(append(inner, `source`), usageSums, runs)
		query = selectGrouped(columns, usageSumsOfSums, ` FROM (`+sums+`) AS sums`+usageSources)
	}
	if len(q.By) > 0 {
		query += ` ORDER BY ` + strings.Join(order, `, `)
	}
	return query + ` LIMIT ` + strconv.Itoa(maxUsageRows+1), args, nil
}

// selectGrouped sums up a row for each combination of columns.
func selectGrouped(columns []string, sums, from string) string {
	query := `SELECT ` + strings.Join(append(columns, sums), `, `) + from
	for i := range columns {
		query += [...]string{` GROUP BY `, `, `}[min(i, 1)] + strconv.Itoa(i+1)
	}
	return query
}

func (q *UsageQuery) scanSummary(rows *sql.Rows) (UsageRow, error) {
	var r UsageRow
	var queue, duration, firstToken, firstTokens int64
	var places []any
	for _, d := range q.By {
		places = append(places, dimensions[d].place(&r))
	}
	err := rows.Scan(append(places, &r.Runs, &r.Completed, &r.Failed, &r.Cancelled, &r.Rejected,
		&r.Input, &r.Output, &r.Cached, &r.Reasoning, &queue, &duration, &firstToken, &firstTokens, &r.Estimated)...)
	r.Queue, r.Duration = fromMicros(queue/max(r.Runs, 1)), fromMicros(duration/max(r.Runs, 1))
	r.FirstToken = fromMicros(firstToken / max(firstTokens, 1))
	return r, err
}

// EachUsage calls each for every record that is meant, the oldest first, until it fails; By does not matter. It reads a
// thousand at a time and holds nothing open in between, so each may take its time. Of runs that end meanwhile those are
// left out that had started before what was read already.
func (s *Store) EachUsage(ctx context.Context, q UsageQuery, each func(UsageRecord) error) error {
	where, args := q.where()
	after, first := []any{int64(-1), ""}, len(args)
	filters, args := q.filters(append(args, after...))
	query := `SELECT ` + usageColumns + usageFrom + usageSources + where + usageAfter + filters + usageOrder + strconv.Itoa(usagePage)
	for {
		page, err := queryAll(ctx, s.db.read, scanUsage, query, args...)
		if err != nil {
			return fmt.Errorf("read usage: %w", err)
		}
		for i := range page {
			if err := each(page[i]); err != nil {
				return err
			}
		}
		if len(page) < usagePage {
			return nil
		}
		last := &page[len(page)-1]
		started := millis(last.Started)
		args[0], args[first], args[first+1] = started, started, string(last.Run) // the first lets the index begin there
	}
}
