package state

import (
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pressly/goose/v3"

	"iop/execution"
)

// usageBefore writes a record as versions before 0005_usage_sources.sql did.
const usageBefore = `INSERT INTO usage_runs (run_id, started_at, day, key_id, principal, route, operation, node, provider,
		model, outcome, code, status, attempts, stream, queue_us, first_token_us, duration_us, input, output, cached,
		reasoning, known, estimated)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)`

// openAtVersion makes a state as a binary that knew so many migrations had it.
func openAtVersion(t *testing.T, url string, version int64) *database {
	t.Helper()
	path := strings.TrimPrefix(url, "sqlite://")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	old, err := openSQLiteFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = old.close() })
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	provider, err := goose.NewProvider(old.dialect, old.write.DB, files, goose.WithTableName(schemaTable))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
	return old
}

// Records that an older version wrote are the same after it was brought up to date, and are not written again.
func TestUsageOfOlderVersion(t *testing.T) {
	url := fileURL(t)
	old := openAtVersion(t, url, 4)
	at := time.Date(2026, 11, 29, 23, 59, 0, 0, time.UTC)
	other := used(2, at.Add(time.Minute))
	other.Key, other.Node, other.Stream, other.Usage = "", "", false, execution.Usage{Input: 3}
	other.Outcome, other.Code, other.Status, other.Attempts = execution.Failed, execution.CodeProviderError, 502, 0
	known := used(3, at.Add(2*time.Minute))
	known.Usage.Estimated, known.Usage.Cached, known.Stream = false, 0, false
	records := []UsageRecord{used(1, at), other, known}
	for i := range records {
		r := &records[i]
		_, err := old.write.Exec(usageBefore, string(r.Run), millis(r.Started), dayOf(r.Started), string(r.Key), r.Principal, r.Route,
			r.Operation, string(r.Node), string(r.Provider), r.Model, int64(r.Outcome), int64(r.Code), r.Status, r.Attempts, flag(r.Stream),
			micros(r.Queue), micros(r.FirstToken), micros(r.Duration), r.Usage.Input, r.Usage.Output, r.Usage.Cached, r.Usage.Reasoning,
			flag(r.Usage.Known), flag(r.Usage.Estimated))
		if err != nil {
			t.Fatal(err)
		}
	}
	s := openURL(t, url)
	more := used(4, at.Add(3*time.Minute))
	addAll(t, s, append(records, more)...)
	if got, want := export(t, s, UsageQuery{}), append(records, more); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := monthTokens(t, s, more.Key, more.Started); got != 110 {
		t.Errorf("%d tokens were counted anew", got)
	}
	if n := countSources(t, s); n != 2 {
		t.Errorf("%d sources", n)
	}
}

func countSources(t *testing.T, s *Store) int64 {
	t.Helper()
	n, err := queryOne(t.Context(), s.db.read, scanOne[int64], `SELECT COUNT(*) FROM usage_sources`)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Names live as long as a run has them, and are there again when they are needed again: also for a process that knew
// them before another one pruned them, and for a record that comes late.
func TestUsageSourcesArePruned(t *testing.T) {
	url := fileURL(t)
	s, other := openURL(t, url), openURL(t, url)
	at := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	early, late := used(1, at), used(2, at.AddDate(0, 0, 10))
	early.Model, late.Model = "early", "late"
	both := []UsageRecord{used(3, at), used(4, at.AddDate(0, 0, 10))}
	addAll(t, s, early, late, both[0], both[1])
	if n := countSources(t, s); n != 3 {
		t.Fatalf("%d sources", n)
	}
	prune := func(before time.Time, runs, sources int64) {
		t.Helper()
		if n, err := other.PruneUsage(t.Context(), before); err != nil || n != runs {
			t.Errorf("pruned %d, %v", n, err)
		}
		if n := countSources(t, s); n != sources {
			t.Errorf("%d sources are left", n)
		}
	}
	prune(at.AddDate(0, 0, 5), 2, 2)
	if got, want := export(t, s, UsageQuery{}), []UsageRecord{late, both[1]}; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	addAll(t, s, early) // older than what was pruned
	if got := export(t, s, UsageQuery{}); len(got) != 3 || got[0].Model != "early" {
		t.Errorf("%+v", got)
	}
	prune(at.AddDate(0, 0, 11), 3, 0)
	addAll(t, s, late)
	if got := export(t, s, UsageQuery{}); !reflect.DeepEqual(got, []UsageRecord{late}) {
		t.Errorf("%+v", got)
	}
}

// A name that many have in common is told apart by each of its parts.
func TestUsageSourcesDiffer(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		at := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
		records := []UsageRecord{used(0, at)}
		for i, change := range []func(*UsageRecord){
			func(r *UsageRecord) { r.Key = "x" }, func(r *UsageRecord) { r.Principal = "x" }, func(r *UsageRecord) { r.Route = "x" },
			func(r *UsageRecord) { r.Operation = "x" }, func(r *UsageRecord) { r.Node = "x" }, func(r *UsageRecord) { r.Provider = "x" },
			func(r *UsageRecord) { r.Model = "x" },
		} {
			r := used(i+1, at)
			change(&r)
			records = append(records, r)
		}
		addAll(t, s, records...)
		if got := export(t, s, UsageQuery{}); !reflect.DeepEqual(got, records) {
			t.Errorf("%+v", got)
		}
	})
}

// What is packed into one number comes out of it, at the bounds too.
func TestUsageDetails(t *testing.T) {
	for _, r := range []UsageRecord{
		{}, {Stream: true}, {Usage: execution.Usage{Known: true}}, {Usage: execution.Usage{Estimated: true}},
		{Attempts: 1, Status: 599, Code: 255}, {Attempts: maxDetail, Status: maxDetail, Code: 255, Stream: true},
	} {
		var got UsageRecord
		if unpackDetails(&got, packDetails(&r)); got != r {
			t.Errorf("%+v, want %+v", got, r)
		}
	}
	var got UsageRecord
	if unpackDetails(&got, packDetails(&UsageRecord{Attempts: 1 << 40, Status: -1})); got != (UsageRecord{Attempts: maxDetail}) {
		t.Errorf("%+v", got)
	}
}

// Records that version 5 wrote had no session and were relayed; those of now keep both, beside every other detail.
func TestUsageBeforeSessions(t *testing.T) {
	url := fileURL(t)
	old := openAtVersion(t, url, 5)
	at := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	before := used(1, at)
	before.Code, before.Attempts, before.Status = math.MaxUint8, maxDetail, maxDetail
	_, err := old.write.Exec(`INSERT INTO usage_sources (id, `+sourceColumns+`, last_day)
		VALUES (1, 'key00001', 'team', 'chat', 'chat', 'gpu-1', 'vllm', 'meta-llama/Llama-3', 20261101);
		INSERT INTO usage_runs VALUES ($1, $2, 1, 20261101, 1, $3, 3, 20000, 1000000, 100, 10, 50, 5)`,
		millis(at), string(before.Run), packDetails(&before))
	if err != nil {
		t.Fatal(err)
	}
	s := openURL(t, url)
	relayed, normalized, long := used(2, at.Add(time.Second)), used(3, at.Add(2*time.Second)), used(4, at.Add(3*time.Second))
	relayed.Session = "job-7"
	normalized.Normalized, normalized.Code, normalized.Attempts, normalized.Status = true, before.Code, maxDetail, maxDetail
	long.Session = strings.Repeat("s", maxUsageText+1)
	addAll(t, s, relayed, normalized, long)
	long.Session = long.Session[:maxUsageText]
	if got, want := export(t, s, UsageQuery{}), []UsageRecord{before, relayed, normalized, long}; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
