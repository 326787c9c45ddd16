package admin_test

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/execution"
	"iop/gateway/admin"
	"iop/state"
)

func usageRecord(id string) state.UsageRecord {
	return state.UsageRecord{
		Run: execution.RunID(id), Key: "k1", Principal: "team-a", Route: "chat", Operation: "chat.completions",
		Started: time.Now().UTC().Add(-time.Minute), Outcome: execution.Completed, Status: 200, Attempts: 1,
	}
}

func TestUsageSums(t *testing.T) {
	d := newDesk(t)
	d.makeKeys()
	d.addUsage()
	var all, byKey admin.Usage
	d.must(&all, "GET", v1+"/usage", "")
	if len(all.Data) != 1 || all.Data[0].Runs != 2 || all.Data[0].Input != 10 || all.Data[0].Output != 20 || all.Data[0].Rejected != 1 {
		t.Errorf("all: %+v", all)
	}
	if span := all.To.Sub(all.From); span != 30*24*time.Hour {
		t.Errorf("the span is %v", span)
	}
	d.must(&byKey, "GET", v1+"/usage?by=key,month", "")
	var rows []string
	for _, row := range byKey.Data {
		rows = append(rows, fmt.Sprint(row.KeyName, " ", row.Month, " ", row.Runs, " ", row.Route))
	}
	slices.Sort(rows)
	month := time.Now().UTC().Format("2006-01")
	if want := []string{"k1 " + month + " 1 ", "k2 " + month + " 1 "}; !slices.Equal(rows, want) {
		t.Errorf("by key and month: %q, want %q", rows, want)
	}
	for query, runs := range map[string]int64{"?key=k1": 1, "?principal=team-a": 1, "?node=n1": 1, "?route=chat": 1, "?route=none": 0} {
		var got admin.Usage
		d.must(&got, "GET", v1+"/usage"+query, "")
		var n int64
		for _, row := range got.Data {
			n += row.Runs
		}
		if n != runs {
			t.Errorf("%s: %d runs, want %d", query, n, runs)
		}
	}
	if d.edge.flushed < 7 {
		t.Errorf("asked the meter to write %d times", d.edge.flushed)
	}
}

// TestTheLatestRunCounts: one that began in the millisecond of the question is in the answer.
func TestTheLatestRunCounts(t *testing.T) {
	d := newDesk(t)
	for i := range 20 {
		record := usageRecord(fmt.Sprint("run_", i))
		record.Started = time.Now()
		if err := d.store.AddUsage(t.Context(), []state.UsageRecord{record}); err != nil {
			t.Fatal(err)
		}
		var all admin.Usage
		if d.must(&all, "GET", v1+"/usage", ""); all.Data[0].Runs != int64(i+1) {
			t.Fatalf("%d runs of %d", all.Data[0].Runs, i+1)
		}
	}
}

// TestExportsAgree: both formats say the same of each run, and CSV is what RFC 4180 says.
func TestExportsAgree(t *testing.T) {
	d := newDesk(t)
	d.addUsage()
	ndjson := d.ask("GET", v1+"/usage/records?format=json", "").body
	answer := d.ask("GET", v1+"/usage/records?format=csv", "")
	rows, err := csv.NewReader(strings.NewReader(answer.body)).ReadAll()
	if err != nil || len(rows) != 3 || !slices.Equal(rows[0], admin.RecordColumns) || strings.Count(answer.body, "\r\n") != 3 {
		t.Fatalf("%v: %q", err, answer.body)
	}
	if kind := answer.header.Get("Content-Type"); !strings.HasPrefix(kind, "text/csv") {
		t.Errorf("it is %s", kind)
	}
	decoder := json.NewDecoder(strings.NewReader(ndjson))
	for _, row := range rows[1:] {
		var record map[string]any
		if err := decoder.Decode(&record); err != nil {
			t.Fatal(err)
		}
		for i, column := range admin.RecordColumns {
			if want := fmt.Sprint(record[column]); strings.TrimPrefix(row[i], "'") != want {
				t.Errorf("%s is %q in CSV and %q in JSON", column, row[i], want)
			}
		}
	}
	if decoder.More() {
		t.Error("more lines of JSON than rows of CSV")
	}
}

// TestExportTellsHowRunsWent: the client's session, and how the run was executed; nothing of one that no Node took.
func TestExportTellsHowRunsWent(t *testing.T) {
	d := newDesk(t)
	d.addUsage()
	relayed := usageRecord("run_3")
	relayed.Started = time.Now()
	if err := d.store.AddUsage(t.Context(), []state.UsageRecord{relayed}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for decoder := json.NewDecoder(strings.NewReader(d.ask("GET", v1+"/usage/records", "").body)); decoder.More(); {
		var record admin.UsageRecord
		if err := decoder.Decode(&record); err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %q %q", record.Run, record.Session, record.Execution))
	}
	if want := []string{`run_1 "=job-7" "normalized"`, `run_2 "" ""`, `run_3 "" "raw"`}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	var sums admin.Usage
	d.must(&sums, "GET", v1+"/usage?by=session", "")
	if len(sums.Data) != 2 || sums.Data[0].Session != "" || sums.Data[0].Runs != 2 || sums.Data[1].Session != "=job-7" || sums.Data[1].Runs != 1 {
		t.Errorf("by session: %+v", sums.Data)
	}
}

// TestColumnsAreTheRecord: a member that is new in the record is in the CSV too, at its place.
func TestColumnsAreTheRecord(t *testing.T) {
	var members []string
	for i := range reflect.TypeFor[admin.UsageRecord]().NumField() {
		members = append(members, reflect.TypeFor[admin.UsageRecord]().Field(i).Tag.Get("json"))
	}
	if !slices.Equal(members, admin.RecordColumns) {
		t.Errorf("columns %q, members %q", admin.RecordColumns, members)
	}
}

// TestNoCellIsAFormula: names that a client chose can't make a spreadsheet compute.
func TestNoCellIsAFormula(t *testing.T) {
	d := newDesk(t)
	for i, name := range []string{"=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "plain", "a=b", ""} {
		record := usageRecord(fmt.Sprint("run_", i))
		record.Route, record.Model, record.Principal = name, name, name
		record.Started = record.Started.Add(time.Duration(i) * time.Second)
		if err := d.store.AddUsage(t.Context(), []state.UsageRecord{record}); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := csv.NewReader(strings.NewReader(d.ask("GET", v1+"/usage/records?format=csv", "").body)).ReadAll()
	if err != nil || len(rows) != 11 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for _, row := range rows {
		for _, cell := range row {
			if cell != "" && strings.ContainsRune("=+-@\t\r\n", rune(cell[0])) {
				t.Errorf("a cell begins with %q", cell)
			}
		}
	}
	if rows[8][3] != "plain" || rows[9][3] != "a=b" || rows[10][3] != "" {
		t.Errorf("names that are no formula changed: %q", rows[8:])
	}
}

func TestExportFilters(t *testing.T) {
	d := newDesk(t)
	d.makeKeys()
	d.addUsage()
	for query, want := range map[string]string{
		"?key=k1": "run_1", "?principal=team-a": "run_1", "?node=n1": "run_1", query("route", `chat, "b"`): "run_2", "?from=2001-01-01&to=2001-01-02": "",
	} {
		var ids []string
		for decoder := json.NewDecoder(strings.NewReader(d.ask("GET", v1+"/usage/records"+query, "").body)); decoder.More(); {
			var record admin.UsageRecord
			if err := decoder.Decode(&record); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, string(record.Run))
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	if body := d.ask("GET", v1+"/usage/records?format=csv&from=2001-01-01&to=2001-01-02", "").body; body != strings.Join(admin.RecordColumns, ",")+"\r\n" {
		t.Errorf("an empty export is %q", body)
	}
}

// TestLargeExport: many records come out once each, in order.
func TestLargeExport(t *testing.T) {
	d := newDesk(t)
	const n = 3000
	records := make([]state.UsageRecord, n)
	for i := range records {
		records[i] = usageRecord(fmt.Sprintf("run_%04d", i))
		records[i].Started = records[i].Started.Add(time.Duration(i-n) * time.Second)
	}
	if err := d.store.AddUsage(t.Context(), records); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(d.ask("GET", v1+"/usage/records", "").body), "\n")
	for i, line := range lines {
		if !strings.Contains(line, fmt.Sprintf(`"run_%04d"`, i)) {
			t.Fatalf("line %d is %s", i, line)
		}
	}
	if len(lines) != n {
		t.Errorf("%d lines", len(lines))
	}
}

func TestMeterCannotWrite(t *testing.T) {
	d := newDesk(t)
	d.edge.flushErr = errors.New("the disk is full")
	for _, path := range []string{"/usage", "/usage/records"} {
		if e := d.refused(500, "internal_error", "", "GET", v1+path, ""); strings.Contains(e.Message, "disk") {
			t.Errorf("%s tells %q", path, e.Message)
		}
	}
	if !strings.Contains(d.logs.String(), "the disk is full") {
		t.Error("nothing in the log")
	}
}

// TestBrokenExportIsNotWhole: where the state fails in the middle, the client can tell; where it fails at once, it is told.
func TestBrokenExportIsNotWhole(t *testing.T) {
	d := newDesk(t)
	// More than the sockets between hold: 10 MB in 6 pages of the state.
	records := make([]state.UsageRecord, 6000)
	name := strings.Repeat("x", 512)
	for i := range records {
		records[i] = usageRecord(fmt.Sprintf("run_%06d", i))
		records[i].Principal, records[i].Route, records[i].Model = name, name, name
	}
	if err := d.store.AddUsage(t.Context(), records); err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.server.URL+v1+"/usage/records", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+d.token)
	resp, err := d.server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 1)); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", resp.Status, err)
	}
	if err := d.store.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("a part reads like the whole")
	}
	for _, path := range []string{"/usage/records", "/usage/records?format=csv", "/usage", "/keys", "/join-tokens"} {
		d.refused(http.StatusInternalServerError, "internal_error", "", "GET", v1+path, "")
	}
}
