package state

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"iop/execution"
)

const (
	// usageBatch bounds one transaction of usage, so that no generation waits long behind it.
	usageBatch = 2000

	// maxUsageText bounds a name in a record of usage, in bytes. A Node's word for a model has no limit of its own here.
	maxUsageText = 512

	// maxUsageTime bounds a duration in a record, so that sums of them stay numbers.
	maxUsageTime = 365 * 24 * time.Hour
)

// UsageRecord is what one run used. It holds names and numbers, nothing that was asked or answered.
type UsageRecord struct {
	Run       execution.RunID // never empty
	Key       KeyID           // empty: no key was asked for
	Principal string          // whom it counts for
	Route     string          // its name; where no route names the model, the model's
	Operation string
	Node      execution.NodeID     // of the last attempt; empty: none
	Provider  execution.ProviderID // of the last attempt; empty: none
	Model     string               // as the provider names it
	Session   string               // the client's own name for what the run belongs to; empty: none

	Started    time.Time     // to the millisecond, in UTC where it is read; its month is the one that is charged
	Queue      time.Duration // durations are to the microsecond
	FirstToken time.Duration // since Started; 0: none came
	Duration   time.Duration // Started until its end

	Outcome  execution.Outcome
	Code     execution.Code
	Status   int // of the HTTP answer
	Attempts int
	Stream   bool

	Normalized bool // an adapter of the Node ran the last attempt; otherwise, if there was one, it was relayed

	Usage execution.Usage // of a cancelled run too: what was produced up to then
}

// AddUsage writes records down. A record whose Run is there already is not counted again, so a call that failed may be
// repeated. Up to 2,000 records are one transaction, written wholly or not at all; more are several, with room for
// other writers between. A record without a Run is an error, and so is nothing else about one: names that no database
// could keep are cut or mended, counts and times out of reason are brought back into it (see MaxRunTokens).
func (s *Store) AddUsage(ctx context.Context, records []UsageRecord) error {
	for i := range records {
		if records[i].Run == "" {
			return errors.New("add usage: a record has no run id")
		}
	}
	for batch := range slices.Chunk(records, usageBatch) {
		err := s.db.locked(ctx, func(tx *sql.Tx) error { return addUsage(ctx, tx, s.db.inOrder(insertUsage), batch) })
		if err != nil {
			return fmt.Errorf("add usage of %d runs: %w", len(records), err)
		}
	}
	return nil
}

// keyMonth names a row of usage_months.
type keyMonth struct {
	key   KeyID
	month int64
}

func addUsage(ctx context.Context, tx *sql.Tx, insert string, records []UsageRecord) error {
	w := usageWriter{tx: tx, sources: make(map[usageNames]*usageSource), months: make(map[keyMonth]int64)}
	var err error
	if w.insert, err = tx.PrepareContext(ctx, insert); err != nil {
		return err
	}
	defer w.insert.Close()
	err = eachRow(ctx, len(records), func(ctx context.Context, i int) error { return w.add(ctx, &records[i]) })
	if err != nil {
		return err
	}
	return addMonths(ctx, tx, w.months)
}

// addMonths adds to the sums, in one order everywhere, so that two Edges don't wait for each other in a circle.
func addMonths(ctx context.Context, tx *sql.Tx, sums map[keyMonth]int64) error {
	months := make([]keyMonth, 0, len(sums))
	for at, tokens := range sums {
		if tokens > 0 {
			months = append(months, at)
		}
	}
	slices.SortFunc(months, func(a, b keyMonth) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.month, b.month))
	})
	for _, at := range months {
		if _, err := tx.ExecContext(ctx, addMonthTokens, string(at.key), at.month, sums[at]); err != nil {
			return err
		}
	}
	return nil
}

// usageText is a name as every database can keep it.
func usageText(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if strings.IndexByte(text, 0) >= 0 {
		text = strings.ReplaceAll(text, "\x00", "\uFFFD")
	}
	if len(text) > maxUsageText {
		end := maxUsageText
		for !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end]
	}
	return text
}

func flag(set bool) int64 {
	if set {
		return 1
	}
	return 0
}

// micros is how a duration stands in the database. One that is there is never 0.
func micros(d time.Duration) int64 {
	if d > 0 && d < time.Microsecond {
		return 1
	}
	return min(max(d, 0), maxUsageTime).Microseconds()
}

// fromMicros is the inverse of micros.
func fromMicros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// dayOf is a day in UTC as yyyymmdd.
func dayOf(t time.Time) int64 {
	year, month, day := t.UTC().Date()
	return int64(year)*10_000 + int64(month)*100 + int64(day)
}

// MonthTokens returns how many tokens, input and output, the key used in the calendar month (in UTC) that month lies
// in, in runs that began then. Pruning takes nothing from it.
func (s *Store) MonthTokens(ctx context.Context, key KeyID, month time.Time) (int64, error) {
	tokens, err := queryOne(ctx, s.db.read, scanOne[int64], queryMonthTokens, string(key), dayOf(month)/100)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("tokens of key %q: %w", key, err)
	}
	return tokens, nil
}

const (
	// pruneBatch bounds one transaction of a pruning.
	pruneBatch = 1000

	// pruneRest is the pause between two of them: writers in other processes get the file only between transactions.
	pruneRest = 20 * time.Millisecond
)

// PruneUsage deletes the records of runs that started before then, a thousand at a time with pauses between, and returns
// how many it deleted, also when an error or the context ended it early. The monthly sums stay.
func (s *Store) PruneUsage(ctx context.Context, before time.Time) (int64, error) {
	deleted, err := s.prune(ctx, pruneUsage, before)
	if err == nil {
		_, err = s.db.write.ExecContext(ctx, pruneSources, dayOf(before), millis(before))
	}
	if err != nil {
		return deleted, fmt.Errorf("prune usage: %w", err)
	}
	return deleted, nil
}

// prune runs one of the pruning queries, which take a time and how many rows to delete at most, until none is left.
func (s *Store) prune(ctx context.Context, query string, before time.Time) (int64, error) {
	deleted := int64(0)
	for {
		result, err := s.db.write.ExecContext(ctx, query, millis(before), int64(pruneBatch))
		if err != nil {
			return deleted, err
		}
		n, err := result.RowsAffected()
		if err != nil {
			return deleted, err
		}
		if deleted += n; n < pruneBatch {
			return deleted, nil
		}
		select {
		case <-time.After(pruneRest):
		case <-ctx.Done():
			return deleted, ctx.Err()
		}
	}
}
