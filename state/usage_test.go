package state

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
)

// used is a record with something in every field; n makes it differ.
func used(n int, started time.Time) UsageRecord {
	return UsageRecord{
		Run: execution.RunID(fmt.Sprintf("run_%08d", n)), Key: "key00001", Principal: "team", Route: "chat",
		Operation: "chat", Node: "gpu-1", Provider: "vllm", Model: "meta-llama/Llama-3", Started: started.UTC().Truncate(time.Millisecond),
		Queue: 3 * time.Microsecond, FirstToken: 20 * time.Millisecond, Duration: time.Second,
		Outcome: execution.Completed, Code: execution.CodeNone, Status: 200, Attempts: 2, Stream: true,
		Usage: execution.Usage{Input: 100, Output: 10, Cached: 50, Reasoning: 5, Known: true, Estimated: true},
	}
}

func addAll(t testing.TB, s *Store, records ...UsageRecord) {
	t.Helper()
	if err := s.AddUsage(context.Background(), records); err != nil {
		t.Fatal(err)
	}
}

// export returns all records that a query means.
func export(t testing.TB, s *Store, q UsageQuery) (all []UsageRecord) {
	t.Helper()
	err := s.EachUsage(context.Background(), q, func(r UsageRecord) error {
		all = append(all, r)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// total is the summary of everything.
func total(t testing.TB, s *Store) UsageRow {
	t.Helper()
	rows, err := s.UsageSummary(context.Background(), UsageQuery{})
	if err != nil || len(rows) != 1 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	return rows[0]
}

func monthTokens(t testing.TB, s *Store, key KeyID, month time.Time) int64 {
	t.Helper()
	tokens, err := s.MonthTokens(context.Background(), key, month)
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

func TestUsageRoundTrip(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
		full := used(1, at)
		cancelled := used(2, at.Add(time.Minute))
		cancelled.Outcome, cancelled.Code, cancelled.Stream = execution.Cancelled, execution.CodeClientGone, false
		cancelled.Usage = execution.Usage{Input: 7, Output: 3, Known: true, Estimated: true}
		rejected := UsageRecord{Run: "run_r", Principal: "p", Route: "chat", Operation: "chat", Started: at.Add(time.Hour),
			Outcome: execution.Rejected, Code: execution.CodeCapacity, Status: 429}
		addAll(t, s, rejected, cancelled, full)
		want := []UsageRecord{full, cancelled, rejected} // the oldest first
		if got := export(t, s, UsageQuery{}); !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
		row := total(t, s)
		if row.Runs != 3 || row.Completed != 1 || row.Cancelled != 1 || row.Rejected != 1 || row.Failed != 0 ||
			row.Input != 107 || row.Output != 13 || row.Cached != 50 || row.Reasoning != 5 {
			t.Errorf("%+v", row)
		}
		if row.Queue != 2*time.Microsecond || row.FirstToken != 20*time.Millisecond || row.Duration != 2*time.Second/3/time.Microsecond*time.Microsecond {
			t.Errorf("means %v, %v, %v", row.Queue, row.FirstToken, row.Duration)
		}
		if got := monthTokens(t, s, "key00001", at); got != 120 {
			t.Errorf("%d tokens this month", got)
		}
	})
}

// What is there already counts once, whether it comes again in the same call, another one or another order.
func TestUsageCountsOnce(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
		var records []UsageRecord
		for i := range 5000 { // three transactions
			records = append(records, used(i, at))
		}
		addAll(t, s, records[:3000]...)
		addAll(t, s, append(records[2000:], records[4000:]...)...)
		again := records[0]
		again.Usage.Output = 1000 // the first word counts
		addAll(t, s, again, again)
		addAll(t, s)
		if row := total(t, s); row.Runs != 5000 || row.Input != 500_000 || row.Output != 50_000 {
			t.Errorf("%+v", row)
		}
		if got := monthTokens(t, s, "key00001", at); got != 550_000 {
			t.Errorf("%d tokens this month", got)
		}
	})
}

// A batch that fails leaves neither rows nor sums.
func TestUsageIsWhole(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	if _, err := s.db.write.Exec(`CREATE TRIGGER full BEFORE INSERT ON usage_months BEGIN SELECT RAISE(FAIL, 'disk full'); END`); err != nil {
		t.Fatal(err)
	}
	records := []UsageRecord{used(1, at), used(2, at)}
	if err := s.AddUsage(t.Context(), records); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("%v", err)
	}
	if row := total(t, s); row.Runs != 0 {
		t.Errorf("half of it was written: %+v", row)
	}
	if _, err := s.db.write.Exec(`DROP TRIGGER full`); err != nil {
		t.Fatal(err)
	}
	ended, cancel := withCancel(t)
	cancel()
	if err := s.AddUsage(ended, records); err == nil {
		t.Error("an ended context reported success")
	}
	addAll(t, s, records...)
	if got := monthTokens(t, s, "key00001", at); got != 220 {
		t.Errorf("%d tokens", got)
	}
	records = append(records, UsageRecord{Principal: "no run"})
	if err := s.AddUsage(t.Context(), records); err == nil {
		t.Error("a record without a run was taken")
	}
}

// Days and months are UTC's, whatever zone a time is in and whatever day it is there.
func TestUsageMonths(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		east := time.FixedZone("east", 14*3600)
		edge := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
		leap := time.Date(2028, 2, 29, 23, 59, 59, 0, time.UTC)
		addAll(t, s, used(1, edge.Add(-time.Millisecond).In(east)), used(2, edge), used(3, edge.In(east)),
			used(4, leap), used(5, leap.Add(time.Second)), UsageRecord{Run: "no-time", Key: "key00001", Usage: execution.Usage{Input: 1}},
			UsageRecord{Run: "before-all", Started: time.Unix(-1e9, 0)})
		for month, want := range map[time.Time]int64{
			edge.Add(-1): 110, edge: 220, edge.In(east): 220, leap: 110, leap.Add(time.Second): 110,
			edge.AddDate(0, 1, 0): 0, time.Unix(0, 0): 1,
		} {
			if got := monthTokens(t, s, "key00001", month); got != want {
				t.Errorf("%v: %d, want %d", month, got, want)
			}
		}
		if got := monthTokens(t, s, "other", edge); got != 0 {
			t.Errorf("another key: %d", got)
		}
		if got, want := summaryText(t, s, UsageQuery{By: []Dimension{ByMonth, ByDay}}), []string{
			"1970-01 1970-01-01 2", "2026-11 2026-11-30 1", "2026-12 2026-12-01 2", "2028-02 2028-02-29 1", "2028-03 2028-03-01 1",
		}; !reflect.DeepEqual(got, want) {
			t.Errorf("%q", got)
		}
	})
}

// summaryText is a summary with what was grouped by and the number of runs, a line a row.
func summaryText(t testing.TB, s *Store, q UsageQuery) (lines []string) {
	t.Helper()
	rows, err := s.UsageSummary(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		line := []string{r.Key, r.Principal, r.Route, r.Model, r.Node, r.Provider, r.Outcome, r.Month, r.Day, r.Session, fmt.Sprint(r.Runs)}
		lines = append(lines, strings.Join(strings.Fields(strings.Join(line, " ")), " "))
	}
	return lines
}

func TestUsageSummary(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		at := time.Date(2026, 11, 29, 23, 0, 0, 0, time.UTC)
		var records []UsageRecord
		for i := range 12 {
			r := used(i, at.Add(time.Duration(i)*15*time.Minute)) // four on the first day
			r.Key = KeyID(fmt.Sprint("k", i%2))
			r.Principal, r.Route, r.Model = fmt.Sprint("p", i%3), fmt.Sprint("r", i%4), fmt.Sprint("m", i%6)
			r.Node, r.Provider = execution.NodeID(fmt.Sprint("n", i%2)), execution.ProviderID(fmt.Sprint("v", i%3))
			r.Outcome = execution.Outcome(i%4 + 1)
			if i%3 == 0 {
				r.Session = fmt.Sprint("s", i%2)
			}
			records = append(records, r)
		}
		addAll(t, s, records...)
		check := func(q UsageQuery, want ...string) {
			t.Helper()
			if got := summaryText(t, s, q); !reflect.DeepEqual(got, want) {
				t.Errorf("%+v: %q, want %q", q, got, want)
			}
		}
		check(UsageQuery{}, "12")
		check(UsageQuery{By: []Dimension{ByKey}}, "k0 6", "k1 6")
		check(UsageQuery{By: []Dimension{ByPrincipal}}, "p0 4", "p1 4", "p2 4")
		check(UsageQuery{By: []Dimension{ByRoute}}, "r0 3", "r1 3", "r2 3", "r3 3")
		check(UsageQuery{By: []Dimension{ByModel}, Node: "n1"}, "m1 2", "m3 2", "m5 2")
		check(UsageQuery{By: []Dimension{ByNode, ByKey}}, "k0 n0 6", "k1 n1 6")
		check(UsageQuery{By: []Dimension{ByProvider}, Principal: "p1"}, "v1 4")
		check(UsageQuery{By: []Dimension{ByOutcome}}, "completed 3", "failed 3", "cancelled 3", "rejected 3")
		check(UsageQuery{By: []Dimension{ByDay}}, "2026-11-29 4", "2026-11-30 8")
		check(UsageQuery{By: []Dimension{ByMonth}}, "2026-11 12")
		check(UsageQuery{By: []Dimension{BySession}}, "8", "s0 2", "s1 2")
		check(UsageQuery{By: []Dimension{BySession, ByKey}, Principal: "p0"}, "k0 s0 2", "k1 s1 2")
		check(UsageQuery{By: []Dimension{ByDay, ByPrincipal}, Key: "k1", Route: "r3"}, "p0 2026-11-29 1", "p1 2026-11-30 1", "p2 2026-11-30 1")
		check(UsageQuery{From: at.Add(15 * time.Minute), To: at.Add(30 * time.Minute)}, "1") // From belongs to it, To does not
		check(UsageQuery{Principal: "p1' OR '1'='1"}, "0")
		check(UsageQuery{By: []Dimension{ByKey}, Principal: "nobody"})
		all := []Dimension{ByKey, ByPrincipal, ByRoute, ByModel, ByNode, ByProvider, ByOutcome, ByDay, ByMonth, BySession}
		if got := summaryText(t, s, UsageQuery{By: all}); len(got) != 12 {
			t.Errorf("by everything: %q", got)
		}
		for i, d := range all {
			if parsed, err := ParseDimension(d.String()); err != nil || parsed != d || int(d) != i+1 {
				t.Errorf("%v: %v, %v", d, parsed, err)
			}
		}
		for _, bad := range []Dimension{0, BySession + 1, 200} {
			if _, err := s.UsageSummary(t.Context(), UsageQuery{By: []Dimension{bad}}); err == nil {
				t.Errorf("grouped by %v", bad)
			}
		}
		if _, err := ParseDimension("run_id; DROP TABLE usage_runs"); err == nil || !strings.Contains(err.Error(), "key, principal") {
			t.Errorf("%v", err)
		}
	})
}

// Summaries that wait for others give up with their context.
func TestUsageSummariesAtOnce(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	for range summariesAtOnce {
		s.summaries <- struct{}{}
	}
	ctx, cancel := withCancel(t)
	cancel()
	if _, err := s.UsageSummary(ctx, UsageQuery{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	<-s.summaries
	total(t, s)
}

// An export goes over pages without losing or doubling a record, also where many started in the same millisecond, and
// its reader may write meanwhile.
func TestEachUsage(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		at := time.Date(2026, 11, 29, 23, 0, 0, 0, time.UTC)
		var records []UsageRecord
		for i := range 3*usagePage + 7 {
			r := used(i, at.Add(time.Duration(i/1500)*time.Hour))
			r.Key = KeyID(fmt.Sprint("k", i%2))
			records = append(records, r)
		}
		addAll(t, s, records...)
		if got := export(t, s, UsageQuery{By: []Dimension{200}}); !reflect.DeepEqual(got, records) {
			t.Errorf("%d records of %d", len(got), len(records))
		}
		n := 0
		err := s.EachUsage(t.Context(), UsageQuery{Key: "k1", From: at.Add(time.Hour)}, func(r UsageRecord) error {
			if r.Key != "k1" || r.Started.Before(at.Add(time.Hour)) {
				t.Errorf("%+v", r)
			}
			if n++; n%100 != 0 {
				return nil
			}
			_, err := s.NextGeneration(t.Context(), "node", 0)
			return err
		})
		if err != nil || n != (3*usagePage+7-1500)/2 {
			t.Errorf("%d, %v", n, err)
		}
		stop := errors.New("enough")
		n = 0
		err = s.EachUsage(t.Context(), UsageQuery{}, func(UsageRecord) error {
			n++
			return stop
		})
		if err != stop || n != 1 {
			t.Errorf("%d, %v", n, err)
		}
		if got := export(t, s, UsageQuery{To: at}); len(got) != 0 {
			t.Errorf("%d records from before all", len(got))
		}
	})
}

func TestPruneUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openURL(t, "sqlite::memory:")
		at := time.Date(2026, 11, 29, 23, 0, 0, 0, time.UTC)
		var records []UsageRecord
		for i := range 2*pruneBatch + 10 {
			records = append(records, used(i, at.Add(time.Duration(i)*time.Millisecond)))
		}
		addAll(t, s, records...)
		prune := func(before time.Time, want int64) {
			t.Helper()
			if n, err := s.PruneUsage(t.Context(), before); err != nil || n != want {
				t.Errorf("pruned %d, %v; want %d", n, err, want)
			}
		}
		prune(at, 0)
		prune(at.Add(time.Millisecond), 1)
		prune(at.Add((2*pruneBatch+8)*time.Millisecond), 2*pruneBatch+7)
		if got := export(t, s, UsageQuery{}); !reflect.DeepEqual(got, records[2*pruneBatch+8:]) {
			t.Errorf("%d are left", len(got))
		}
		if got := monthTokens(t, s, "key00001", at); got != (2*pruneBatch+10)*110 {
			t.Errorf("the sums changed: %d", got)
		}
		addAll(t, s, records[:pruneBatch+1]...)
		ctx, cancel := context.WithTimeout(t.Context(), pruneRest/2)
		defer cancel()
		if n, err := s.PruneUsage(ctx, at.Add(time.Hour)); err == nil || n != pruneBatch {
			t.Errorf("cut short: %d, %v", n, err)
		}
	})
}

// What a Node or a client makes up does not keep the rest from being written.
func TestUsageOutOfReason(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	odd := used(1, at)
	odd.Model, odd.Route = "a\x00b\xff", strings.Repeat("é", 400)
	odd.Queue, odd.FirstToken, odd.Duration = -time.Second, 1, math.MaxInt64
	odd.Usage = execution.Usage{Input: math.MaxInt64, Output: -5, Cached: math.MinInt64, Known: true}
	addAll(t, s, odd)
	got := export(t, s, UsageQuery{})[0]
	if got.Model != "a\uFFFDb\uFFFD" || got.Route != strings.Repeat("é", 256) {
		t.Errorf("names %q, %q", got.Model, got.Route)
	}
	if got.Queue != 0 || got.FirstToken != time.Microsecond || got.Duration != maxUsageTime {
		t.Errorf("durations %v, %v, %v", got.Queue, got.FirstToken, got.Duration)
	}
	if got.Usage != (execution.Usage{Input: MaxRunTokens, Known: true}) || monthTokens(t, s, "key00001", at) != MaxRunTokens {
		t.Errorf("%+v", got.Usage)
	}
	if n := len(export(t, s, UsageQuery{Route: strings.Repeat("é", 400)})); n != 1 {
		t.Errorf("its own name finds %d", n)
	}
}

// TestEstimatedRunsAreCounted: of each group, whatever else the run's details hold.
func TestEstimatedRunsAreCounted(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		at := time.Date(2026, 11, 29, 23, 0, 0, 0, time.UTC)
		var records []UsageRecord
		for i := range 8 {
			r := used(i, at)
			r.Key, r.Attempts, r.Stream = KeyID(fmt.Sprint("k", i%2)), i, i%4 < 2
			r.Usage.Estimated = i < 3
			records = append(records, r)
		}
		addAll(t, s, records...)
		for _, tt := range []struct {
			by   []Dimension
			want []int64
		}{{nil, []int64{3}}, {[]Dimension{ByKey}, []int64{2, 1}}, {[]Dimension{ByDay}, []int64{3}}, {[]Dimension{ByKey, ByDay}, []int64{2, 1}}} {
			rows, err := s.UsageSummary(t.Context(), UsageQuery{By: tt.by})
			if err != nil {
				t.Fatal(err)
			}
			var got []int64
			for _, row := range rows {
				got = append(got, row.Estimated)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("by %v: %v runs are estimated, want %v", tt.by, got, tt.want)
			}
		}
	})
}
