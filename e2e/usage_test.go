package e2e

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// usageRecord is what the export says of a run.
type usageRecord struct {
	Run, Key, Principal, Route, Operation, Node, Provider, Model, Outcome, Code string
	Session                                                                     string `json:"session_id"`
	Execution                                                                   string
	Started                                                                     time.Time
	Status, Attempts                                                            int
	Stream                                                                      bool
	Known                                                                       bool  `json:"usage_known"`
	Estimated                                                                   bool  `json:"usage_estimated"`
	Input                                                                       int64 `json:"input_tokens"`
	Output                                                                      int64 `json:"output_tokens"`
	Cached                                                                      int64 `json:"cached_tokens"`
	Reasoning                                                                   int64 `json:"reasoning_tokens"`
}

// records exports the records of runs, by run.
func (s *stack) records(args ...string) map[string]usageRecord {
	s.t.Helper()
	all := map[string]usageRecord{}
	lines := json.NewDecoder(strings.NewReader(iop(s.t, s.env, append([]string{"usage", "--records", "--json"}, args...)...)))
	for lines.More() {
		var r usageRecord
		if err := lines.Decode(&r); err != nil {
			s.t.Fatal(err)
		}
		if _, twice := all[r.Run]; twice || r.Run == "" {
			s.t.Fatalf("the run %q stands there twice", r.Run)
		}
		all[r.Run] = r
	}
	return all
}

// usageSums are sums of usage.
type usageSums struct {
	Runs, Completed, Failed, Cancelled, Rejected int64
	Input                                        int64 `json:"input_tokens"`
	Output                                       int64 `json:"output_tokens"`
	Cached                                       int64 `json:"cached_tokens"`
	Reasoning                                    int64 `json:"reasoning_tokens"`
}

// add adds a record.
func (u *usageSums) add(r *usageRecord) {
	u.Runs++
	*map[string]*int64{"completed": &u.Completed, "failed": &u.Failed, "cancelled": &u.Cancelled, "rejected": &u.Rejected}[r.Outcome]++
	u.Input, u.Output, u.Cached, u.Reasoning = u.Input+r.Input, u.Output+r.Output, u.Cached+r.Cached, u.Reasoning+r.Reasoning
}

// usage asks for sums, by the values that they are grouped by, with slashes.
func (s *stack) usage(by string, args ...string) map[string]usageSums {
	s.t.Helper()
	var sums struct {
		Data []struct {
			Key, Principal, Route, Model, Node, Provider, Outcome, Day, Month string
			usageSums
		}
	}
	s.json(&sums, append([]string{"usage", "--json", "--by", by}, args...)...)
	all := map[string]usageSums{}
	for _, d := range sums.Data {
		group := []string{}
		for _, name := range strings.Split(by, ",") {
			group = append(group, map[string]string{
				"key": d.Key, "principal": d.Principal, "route": d.Route, "model": d.Model, "node": d.Node, "provider": d.Provider,
				"outcome": d.Outcome, "day": d.Day, "month": d.Month,
			}[name])
		}
		all[strings.Join(group, "/")] = d.usageSums
	}
	return all
}

// sumsOf sums records up as `iop usage` should have.
func sumsOf(records map[string]usageRecord, group func(*usageRecord) string) map[string]usageSums {
	all := map[string]usageSums{}
	for _, r := range records {
		sum := all[group(&r)]
		sum.add(&r)
		all[group(&r)] = sum
	}
	return all
}

func sameSums(t *testing.T, what string, got, want map[string]usageSums) {
	t.Helper()
	for group := range want {
		if got[group] != want[group] {
			t.Errorf("%s, %q: %+v, not %+v", what, group, got[group], want[group])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s: %d groups, not %d", what, len(got), len(want))
	}
}

// usageWorld is an Edge with two keys of hostile names and two Nodes.
type usageWorld struct {
	*stack
	keys [2]keyState
	want map[string]usageRecord // by run, as far as the client knows
}

const hostileOwner = `=cmd|'/C calc'!A0,"quoted";semi`

func newUsageWorld(t *testing.T) *usageWorld {
	t.Helper()
	w := &usageWorld{stack: newEdge(t), want: map[string]usageRecord{}}
	w.keys[0] = w.limitedKey(`+1, "two"`, "--owner", hostileOwner)
	w.keys[1] = w.limitedKey(`@SUM(A1:A9)`)
	a := w.startSim("--models", "sim-small,sim-embed,-odd,model\"=x", "--slots", "16")
	b := w.startSim("--models", "sim-small,sim-large", "--slots", "16")
	w.startNode("node-a", "--provider", "sim="+a.url)
	w.startNode("node-b", "--provider", "other="+b.url)
	w.online("node-a", patience)
	w.online("node-b", patience)
	return w
}

// send sends a request with a key and notes how it has to end.
func (w *usageWorld) send(t *testing.T, key int, path string, body map[string]any, want usageRecord) *answer {
	t.Helper()
	a := w.with(w.keys[key].Key).ask(context.Background(), http.DefaultClient, path, body).end(t, patience)
	w.note(t, a, key, want)
	return a
}

func (w *usageWorld) note(t *testing.T, a *answer, key int, want usageRecord) {
	t.Helper()
	run := a.header.Get("X-Iop-Run-Id")
	if run == "" {
		t.Fatalf("no run: %s", a)
	}
	want.Run, want.Key, want.Principal = run, w.keys[key].ID, w.keys[key].Principal
	w.want[run] = want
}

// mix ends requests in every way.
func (w *usageWorld) mix(t *testing.T) {
	t.Helper()
	told := struct {
		Usage struct {
			Prompt     int64 `json:"prompt_tokens"`
			Completion int64 `json:"completion_tokens"`
		}
	}{}
	for i := range 6 {
		for key := range w.keys {
			model := []string{"sim-small", "sim-large", "-odd", `model"=x`}[i%4]
			body := chat(model, fmt.Sprintf("tokens=%d,cached=1", 3+i), false)
			a := w.send(t, key, "/v1/chat/completions", body, usageRecord{Outcome: "completed", Model: model, Status: 200})
			if err := json.Unmarshal([]byte(a.body.String()), &told); err != nil {
				t.Fatal(err)
			}
			want := w.want[a.header.Get("X-Iop-Run-Id")]
			want.Input, want.Output, want.Known, want.Cached = told.Usage.Prompt, told.Usage.Completion, true, 1
			w.want[want.Run] = want
			body["stream"] = true // and that is the same in tokens
			want.Stream = true
			w.send(t, key, "/v1/chat/completions", body, want)
		}
	}
	w.send(t, 0, "/v1/embeddings", map[string]any{"model": "sim-embed", "input": "one two three four"},
		usageRecord{Outcome: "completed", Model: "sim-embed", Status: 200, Known: true, Input: -1})
	w.send(t, 1, "/v1/chat/completions", chat("sim-small", "tokens=9,midreset=4", true),
		usageRecord{Outcome: "failed", Model: "sim-small", Status: 200, Stream: true, Known: true, Estimated: true, Output: 5}) // the first is the role's
	w.send(t, 1, "/v1/chat/completions", chat("sim-small", "status=500", false), usageRecord{Outcome: "failed", Model: "sim-small", Status: 502})
	w.send(t, 0, "/v1/chat/completions", chat("sim-small", "status=422", false), usageRecord{Outcome: "completed", Model: "sim-small", Status: 422})
	w.send(t, 0, "/v1/chat/completions", chat("nobody's", "", false), usageRecord{Outcome: "rejected", Status: 404})
}

// cancelled leaves a stream, and checks what it cost against what the provider produced.
func (w *usageWorld) cancelled(t *testing.T, key int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	a := w.with(w.keys[key].Key).ask(ctx, http.DefaultClient, "/v1/chat/completions", chat("sim-large", "tokens=100000,itl=15ms", true))
	a.reaches(t, 10, patience)
	cancel()
	a.end(t, patience)
	w.note(t, a, key, usageRecord{Outcome: "cancelled", Model: "sim-large", Status: 200, Stream: true, Known: true, Estimated: true, Output: -1})
	w.sims[1].active(t, 0)
	w.quiet()
	got := w.records()[a.header.Get("X-Iop-Run-Id")]
	// The head of the stream is an event without a token, and counts as one.
	if seen, made := int64(a.count())-1, w.sims[1].lastCancelled(t); got.Output < seen || got.Output > made+1 || got.Code != "client_gone" {
		t.Errorf("the client saw %d tokens of %d, and booked is %+v", seen, made, got)
	}
}

// lastCancelled is how many tokens the provider had made of the last request that was cancelled.
func (s *simulator) lastCancelled(t *testing.T) int64 {
	t.Helper()
	var last []struct {
		State     string
		Inference bool
		Tokens    int64
	}
	s.control(t, "GET", "/sim/requests", nil, &last)
	for _, r := range last {
		if r.Inference && r.State == "cancelled" {
			return r.Tokens
		}
	}
	t.Fatal("none was cancelled")
	return 0
}

// TestUsageAddsUp runs a mix and compares the books with what clients were told and what providers counted.
func TestUsageAddsUp(t *testing.T) {
	t.Parallel()
	w := newUsageWorld(t)
	w.mix(t)
	w.cancelled(t, 0)
	w.cancelled(t, 1)
	w.quiet()
	got := w.records()
	for run, want := range w.want {
		g := got[run]
		if g.Run != want.Run || g.Key != want.Key || g.Principal != want.Principal || g.Outcome != want.Outcome || g.Model != want.Model || g.Status != want.Status ||
			g.Known != want.Known || g.Estimated != want.Estimated || g.Stream != want.Stream || want.Output >= 0 && g.Output != want.Output || g.Cached != want.Cached ||
			!want.Estimated && g.Input != want.Input && want.Input >= 0 || want.Estimated && g.Input == 0 || g.Started.IsZero() || (g.Outcome != "rejected") != (g.Node != "") {
			t.Errorf("booked %+v\n not %+v", g, want)
		}
	}
	if n := w.metric("iop_requests_accepted_total"); len(got) != len(w.want) || float64(len(got)) != n {
		t.Errorf("%d records, %d requests, %v accepted", len(got), len(w.want), n)
	}

	day := func(r *usageRecord) string { return r.Started.UTC().Format(time.DateOnly) }
	sameSums(t, "by key, model and day", w.usage("key,model,day"), sumsOf(got, func(r *usageRecord) string { return r.Key + "/" + r.Model + "/" + day(r) }))
	sameSums(t, "by principal and node", w.usage("principal,node"), sumsOf(got, func(r *usageRecord) string { return r.Principal + "/" + r.Node }))
	sameSums(t, "by outcome and month", w.usage("outcome,month"), sumsOf(got, func(r *usageRecord) string { return r.Outcome + "/" + day(r)[:7] }))
	first := w.keys[0].ID
	mine := map[string]usageRecord{}
	for run, r := range got {
		if r.Key == first {
			mine[run] = r
		}
	}
	sameSums(t, "of one key", w.usage("key", "--key", first), sumsOf(mine, func(r *usageRecord) string { return r.Key }))
	sameSums(t, "of one owner", w.usage("principal", "--principal", hostileOwner), sumsOf(mine, func(r *usageRecord) string { return r.Principal }))

	// What the providers counted.
	for i, node := range []string{"node-a", "node-b"} {
		st := w.sims[i].stats(t)
		sum := w.usage("node")[node]
		if st.Finished+st.Cancelled+st.Rejected != sum.Runs || st.Active+st.Queued+st.Reading != 0 {
			t.Errorf("%s has %+v, its provider %+v", node, sum, st)
		}
	}
	w.exportsAgree(t, got)
}

// exportsAgree compares CSV with JSON, and looks at the table for people.
func (w *usageWorld) exportsAgree(t *testing.T, records map[string]usageRecord) {
	t.Helper()
	rows := readCSV(t, iop(t, w.env, "usage", "--records", "--csv"))
	if len(rows) != len(records) {
		t.Errorf("%d rows of %d records", len(rows), len(records))
	}
	plain := func(cell string) string { return strings.TrimPrefix(cell, "'") }
	for _, row := range rows {
		r := records[row["run"]]
		if r.Key != plain(row["key"]) || r.Principal != plain(row["principal"]) || r.Model != plain(row["model"]) || r.Node != row["node"] || r.Outcome != row["outcome"] ||
			r.Code != row["code"] || strconv.FormatInt(r.Input, 10) != row["input_tokens"] || strconv.FormatInt(r.Output, 10) != row["output_tokens"] || strconv.Itoa(r.Status) != row["status"] {
			t.Errorf("the row %v is none of %+v", row, r)
		}
	}
	sums := w.usage("principal,model")
	rows = readCSV(t, iop(t, w.env, "usage", "--csv", "--by", "principal,model"))
	for _, row := range rows {
		sum := sums[plain(row["principal"])+"/"+plain(row["model"])]
		if strconv.FormatInt(sum.Runs, 10) != row["runs"] || strconv.FormatInt(sum.Output, 10) != row["output_tokens"] {
			t.Errorf("the row %v is not %+v", row, sum)
		}
	}
	if len(rows) != len(sums) {
		t.Errorf("%d rows of %d sums", len(rows), len(sums))
	}
	table := iop(t, w.env, "usage", "--by", "key,model,day")
	for _, want := range []string{"KEY", "MODEL", "DAY", "total", `+1, "two"`, "sim-embed", strconv.Itoa(len(records))} {
		if !strings.Contains(table, want) {
			t.Errorf("the table has no %q:\n%s", want, table)
		}
	}
}

// readCSV reads CSV with a header line, as spreadsheets do, and fails where a cell is a formula.
func readCSV(t *testing.T, text string) (rows []map[string]string) {
	t.Helper()
	all, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil || len(all) == 0 {
		t.Fatalf("%v in %s", err, text)
	}
	if strings.Count(text, "\r\n") != len(all) {
		t.Errorf("lines do not end in CR LF: %q", tail(text, 300))
	}
	for _, line := range all[1:] {
		row := map[string]string{}
		for i, cell := range line {
			row[all[0][i]] = cell
			if cell != "" && strings.ContainsRune("=+-@\t\r\n", rune(cell[0])) {
				t.Errorf("a formula in %s: %q", all[0][i], cell)
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// TestUsageOfProviders has providers that tell usage in each of their ways: what is booked is right, or called estimated.
func TestUsageOfProviders(t *testing.T) {
	t.Parallel()
	for _, tells := range []string{"", "never", "always", "refuse", "finish"} {
		t.Run(cmp.Or(tells, "as asked"), func(t *testing.T) {
			t.Parallel()
			s := newStack(t, stackConfig{})
			for _, c := range []struct {
				name               string
				asked, stream, cut bool
			}{{name: "stream", stream: true}, {"asked", true, true, false}, {"broken", false, true, true}, {"unary", false, false, false}} {
				knobs := "tokens=7"
				if tells != "" {
					knobs += ",usage=" + tells
				}
				if c.cut {
					knobs += ",midclose=5"
				}
				body := chat("sim-small", knobs, c.stream)
				if c.asked {
					body["stream_options"] = map[string]any{"include_usage": true}
				}
				a := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", body).end(t, patience)
				s.quiet()
				got := s.records()[a.header.Get("X-Iop-Run-Id")]
				estimated := c.stream && (tells == "never" || tells == "refuse") || c.cut && tells != "always"
				output := int64(7)
				switch { // where it is counted, the first event counts too, which is the role's
				case c.cut && estimated:
					output = 6
				case estimated:
					output = 8
				}
				switch refused := tells == "refuse" && c.asked; {
				case refused && (got.Status != http.StatusBadRequest || got.Output != 0):
					t.Errorf("%s, refused: booked %+v", c.name, got)
				case !refused && tells == "never" && !c.stream: // there is nothing to count
					if !got.Known || !got.Estimated || got.Input == 0 {
						t.Errorf("%s: booked %+v", c.name, got)
					}
				case !refused && (got.Output != output || got.Input == 0 || !got.Known || got.Estimated != estimated):
					t.Errorf("%s: booked %+v, not %d, estimated %v", c.name, got, output, estimated)
				}
			}
		})
	}
}

// TestUsageSurvivesStop stops the Edge with runs under way: none of them is missing from the books.
func TestUsageSurvivesStop(t *testing.T) {
	t.Parallel()
	s := newEdge(t, "--drain-timeout", "12s") // short runs take a second, or a few where much else runs
	sim := s.startSim("--slots", "64")
	s.startNode("node-1", "--provider", "sim="+sim.url+",capacity=40")
	var short, long []*answer
	for i := range 20 {
		short = append(short, s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=50,itl=20ms", i%2 == 0)))
		long = append(long, s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=100000,itl=20ms", true)))
	}
	sim.active(t, 40)
	s.edge.signal(15) // SIGTERM
	runs := map[string]string{}
	for _, a := range short {
		if a.end(t, patience); a.status != http.StatusOK || a.err != nil {
			t.Errorf("the drain cut a short run: %s", a)
		}
		runs[a.header.Get("X-Iop-Run-Id")] = "completed"
	}
	for _, a := range long {
		if err := a.end(t, patience).broken(); err != nil {
			t.Errorf("a run that was cut: %v", err)
		}
		runs[a.header.Get("X-Iop-Run-Id")] = "cancelled"
	}
	select {
	case <-s.edge.done:
	case <-time.After(patience):
		t.Fatal("the Edge does not end")
	}
	if err := s.edge.stop(0); err != nil {
		t.Errorf("the Edge ended with %v", err)
	}
	s.startEdge()
	got := s.records()
	for run, outcome := range runs {
		r := got[run]
		if r.Outcome != outcome && !(outcome == "cancelled" && r.Outcome == "failed") || r.Output < 50 {
			t.Errorf("a run that was %s is booked as %+v", outcome, r)
		}
	}
	if len(got) != len(runs) || len(runs) != 40 {
		t.Errorf("%d records of %d runs", len(got), len(runs))
	}
	sums := s.usage("outcome")
	t.Logf("%v", slices.Collect(func(yield func(string) bool) {
		for outcome, sum := range sums {
			yield(fmt.Sprintf("%s %+v", outcome, sum))
		}
	}))
}
