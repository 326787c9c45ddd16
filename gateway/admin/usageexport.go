package admin

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"iop/execution"
	"iop/execution/safetext"
	"iop/state"
)

// UsageRecord is a line of the export of usage: one run.
type UsageRecord struct {
	Run       execution.RunID      `json:"run"`
	Key       state.KeyID          `json:"key"`
	Principal string               `json:"principal"`
	Route     string               `json:"route"`
	Operation string               `json:"operation"`
	Node      execution.NodeID     `json:"node"`     // empty: it never got that far
	Provider  execution.ProviderID `json:"provider"` // as the Node
	Model     string               `json:"model"`    // the provider's name for it
	Started   time.Time            `json:"started"`
	Outcome   string               `json:"outcome"`
	Code      string               `json:"code"` // why, where it was not completed
	Status    int                  `json:"status"`
	Attempts  int                  `json:"attempts"`
	Stream    bool                 `json:"stream"`

	QueueMS      float64 `json:"queue_ms"`
	FirstTokenMS float64 `json:"first_token_ms"` // 0: none came
	DurationMS   float64 `json:"duration_ms"`

	Known     bool  `json:"usage_known"` // the provider told the numbers below, or they were estimated
	Estimated bool  `json:"usage_estimated"`
	Input     int64 `json:"input_tokens"`
	Output    int64 `json:"output_tokens"`
	Cached    int64 `json:"cached_tokens"`    // of the input
	Reasoning int64 `json:"reasoning_tokens"` // of the output

	Session   string `json:"session_id"` // the client's own; empty: none
	Execution string `json:"execution"`  // raw or normalized; empty: it never got that far

	KeyName string `json:"key_name"` // when it was exported
}

// usageRecordView is a record as the export shows it.
func usageRecordView(r *state.UsageRecord, names keyNames) UsageRecord {
	return UsageRecord{
		Run: r.Run, Key: r.Key, Principal: r.Principal, Route: r.Route, Operation: r.Operation, Node: r.Node,
		Provider: r.Provider, Model: r.Model, Started: r.Started.UTC(), Outcome: r.Outcome.String(), Code: r.Code.String(),
		Status: r.Status, Attempts: r.Attempts, Stream: r.Stream,
		QueueMS: millis(r.Queue), FirstTokenMS: millis(r.FirstToken), DurationMS: millis(r.Duration),
		Known: r.Usage.Known, Estimated: r.Usage.Estimated, Input: r.Usage.Input, Output: r.Usage.Output,
		Cached: r.Usage.Cached, Reasoning: r.Usage.Reasoning,
		Session: r.Session, Execution: executionOf(r), KeyName: names.of[r.Key],
	}
}

// executionOf says how the last attempt was executed.
func executionOf(r *state.UsageRecord) string {
	switch {
	case r.Attempts == 0:
		return ""
	case r.Normalized:
		return "normalized"
	}
	return "raw"
}

// recordWriter writes records in one format.
type recordWriter interface {
	write(*UsageRecord) error
	flush() error
}

// newRecordWriter writes usage records to w; flush ends it. The format is "json", a JSON object a line, or
// "csv", RFC 4180 with a header line.
func newRecordWriter(format string, w io.Writer) recordWriter {
	if format == "csv" {
		out := csv.NewWriter(w)
		out.UseCRLF = true
		return &csvRecords{out: out}
	}
	buffered := bufio.NewWriter(w)
	return &jsonRecords{buffered: buffered, out: json.NewEncoder(lines{buffered})}
}

// lines passes lines of JSON on as they may be repeated.
type lines struct{ w io.Writer }

// Write implements io.Writer.
func (l lines) Write(line []byte) (int, error) {
	if _, err := l.w.Write(safetext.AppendLine(nil, line)); err != nil {
		return 0, err
	}
	return len(line), nil
}

type jsonRecords struct {
	buffered *bufio.Writer
	out      *json.Encoder
}

func (j *jsonRecords) write(r *UsageRecord) error { return j.out.Encode(r) }
func (j *jsonRecords) flush() error               { return j.buffered.Flush() }

// recordColumns are the columns of the CSV export: the members of a UsageRecord in its order.
var recordColumns = []string{
	"run", "key", "principal", "route", "operation", "node", "provider", "model", "started", "outcome", "code", "status",
	"attempts", "stream", "queue_ms", "first_token_ms", "duration_ms", "usage_known", "usage_estimated", "input_tokens",
	"output_tokens", "cached_tokens", "reasoning_tokens", "session_id", "execution",
	"key_name",
}

type csvRecords struct {
	out    *csv.Writer
	headed bool
}

func (c *csvRecords) write(r *UsageRecord) error {
	if err := c.head(); err != nil {
		return err
	}
	text := []string{string(r.Run), string(r.Key), r.Principal, r.Route, r.Operation, string(r.Node), string(r.Provider), r.Model}
	row := make([]string, 0, len(recordColumns))
	for _, cell := range text {
		row = append(row, NoFormula(cell))
	}
	number := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	row = append(row, r.Started.Format(time.RFC3339Nano), r.Outcome, r.Code, strconv.Itoa(r.Status), strconv.Itoa(r.Attempts),
		strconv.FormatBool(r.Stream), number(r.QueueMS), number(r.FirstTokenMS), number(r.DurationMS),
		strconv.FormatBool(r.Known), strconv.FormatBool(r.Estimated))
	for _, n := range []int64{r.Input, r.Output, r.Cached, r.Reasoning} {
		row = append(row, strconv.FormatInt(n, 10))
	}
	return c.out.Write(append(row, NoFormula(r.Session), r.Execution, NoFormula(r.KeyName)))
}

func (c *csvRecords) head() error {
	if c.headed {
		return nil
	}
	c.headed = true
	return c.out.Write(recordColumns)
}

func (c *csvRecords) flush() error {
	if err := c.head(); err != nil {
		return err
	}
	c.out.Flush()
	return c.out.Error()
}

// NoFormula keeps a spreadsheet from running what a client or an operator chose as a name: a cell that would begin a
// formula gets an apostrophe in front. Who reads the file by program takes that off again, or reads the JSON export,
// which has the names as they are.
//
// Keys are masked in either, and characters that must not be repeated escaped (package safetext).
func NoFormula(cell string) string {
	cell = safetext.Escape(safetext.MaskKeys(cell))
	if cell != "" && strings.ContainsRune("=+-@\t\r\n", rune(cell[0])) {
		return "'" + cell
	}
	return cell
}

// Bounds of an export to a client that reads slowly. It is read from the state in pages, so it holds nothing up there.
const (
	exportPatience = 30 * time.Second // for as many records as
	exportStride   = 500
)

// usageRecords streams the records, the oldest first. An export that can't go on breaks the connection: nobody may take
// a part for the whole.
func (a *api) usageRecords(w http.ResponseWriter, r *http.Request) error {
	values := r.URL.Query()
	format := values.Get("format")
	if err := oneOf("format", format, []string{"json", "csv"}); err != nil {
		return err
	}
	query, _, err := a.usageQuery(r, time.Now())
	if err != nil {
		return err
	}
	if err := a.edge.FlushUsage(r.Context()); err != nil {
		return err
	}
	begun, err := a.export(w, r, query, format)
	if err == nil || !begun {
		return err
	}
	if r.Context().Err() == nil {
		a.log.Warn("usage export was cut off", "error", err)
	}
	panic(http.ErrAbortHandler)
}

// export writes the records, and reports whether some of the answer may have gone out.
func (a *api) export(w http.ResponseWriter, r *http.Request, query state.UsageQuery, format string) (begun bool, err error) {
	names, err := readKeyNames(r.Context(), a.store)
	if err != nil {
		return false, err
	}
	out := newRecordWriter(format, w)
	begin := func() {
		if !begun {
			begun = true
			exportHeader(w, format)
		}
	}
	control := http.NewResponseController(w)
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }() // the connection serves on
	n := 0
	err = a.store.EachUsage(r.Context(), query, func(record state.UsageRecord) error {
		begin()
		if n%exportStride == 0 {
			if err := control.SetWriteDeadline(time.Now().Add(exportPatience)); err != nil {
				return err
			}
		}
		n++
		view := usageRecordView(&record, names)
		return out.write(&view)
	})
	if err != nil {
		return begun, err
	}
	begin()
	return begun, out.flush()
}

func exportHeader(w http.ResponseWriter, format string) {
	if format == "csv" {
		header(w, "text/csv; charset=utf-8; header=present")
		w.Header().Set("Content-Disposition", `attachment; filename="usage.csv"`)
		return
	}
	header(w, "application/x-ndjson")
}
