package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"iop/execution"
	"iop/state"
)

// How many runs are listed.
const (
	defaultRuns = 100   // where no limit is given
	maxRuns     = 10000 // the greatest limit
)

var runParameters = []string{"state", "key", "route", "node", "outcome", "limit", "follow"}

// What the filters of runs can be.
var (
	runStates = []string{"queued", "active", "ended"}
	outcomes  = []string{"completed", "failed", "cancelled", "rejected"}
)

// runFilter selects runs; an empty field selects all.
type runFilter struct {
	state, route, node, outcome string
	key                         state.KeyID
	limit                       int
}

func parseRunFilter(q url.Values) (f runFilter, err error) {
	f = runFilter{state: q.Get("state"), route: q.Get("route"), node: q.Get("node"), outcome: q.Get("outcome"), limit: defaultRuns}
	if err := oneOf("state", f.state, runStates); err != nil {
		return f, err
	}
	if err := oneOf("outcome", f.outcome, outcomes); err != nil {
		return f, err
	}
	if text := q.Get("limit"); text != "" {
		f.limit, err = strconv.Atoi(text)
		if err != nil || f.limit < 0 || f.limit > maxRuns {
			return f, invalid("limit", fmt.Sprintf("limit must be a number from 0 to %d", maxRuns))
		}
	}
	return f, nil
}

// oneOf refuses a value that is given and none of those.
func oneOf(param, value string, values []string) error {
	if value == "" || slices.Contains(values, value) {
		return nil
	}
	return invalid(param, param+" must be "+strings.Join(values, ", "))
}

func (f *runFilter) selects(r *Run) bool {
	return is(f.state, r.State) && (f.key == "" || f.key == r.Key) && is(f.route, r.Route) && is(f.node, string(r.Node)) && is(f.outcome, r.Outcome)
}

func is(wanted, got string) bool { return wanted == "" || wanted == got }

// newest returns the newest runs that the filter selects, as many as its limit, the newest first.
func (f *runFilter) newest(runs []Run) []Run {
	selected := []Run{}
	for i := range runs {
		if len(selected) == f.limit {
			break
		}
		if f.selects(&runs[i]) {
			selected = append(selected, runs[i])
		}
	}
	return selected
}

// runs lists the newest runs; with ?follow it goes on with one JSON line for each run that ends.
func (a *api) runs(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	filter, err := parseRunFilter(query)
	if err == nil {
		filter.key, err = a.keyAsked(r, "key")
	}
	if err != nil {
		return err
	}
	if query.Has("follow") {
		a.follow(w, r, &filter)
		return nil
	}
	reply(w, http.StatusOK, list[Run]{filter.newest(a.edge.Runs())})
	return nil
}

// follow writes a line for each of the newest runs, the newest last, and for each that ends from now on.
func (a *api) follow(w http.ResponseWriter, r *http.Request, filter *runFilter) {
	header(w, "application/x-ndjson")
	w.Header().Set("X-Accel-Buffering", "no")
	out := json.NewEncoder(w)
	flush := http.NewResponseController(w)
	begin := func(runs []Run) error {
		for _, run := range slices.Backward(filter.newest(runs)) {
			if err := out.Encode(run); err != nil {
				return err
			}
		}
		return flush.Flush()
	}
	each := func(run Run) error {
		if !filter.selects(&run) {
			return nil
		}
		if err := out.Encode(run); err != nil {
			return err
		}
		return flush.Flush()
	}
	_ = a.edge.Follow(r.Context(), begin, each) // it ends when the reader goes or the Edge stops
}

func (a *api) oneRun(r *http.Request) (any, error) {
	id := execution.RunID(r.PathValue("id"))
	for _, run := range a.edge.Runs() {
		if run.ID == id {
			return run, nil
		}
	}
	return nil, noRun()
}

func (a *api) cancelRun(r *http.Request) (any, error) {
	id := execution.RunID(r.PathValue("id"))
	switch a.edge.CancelRun(id) {
	case RunCancelled:
		a.done(r, "cancel run", "run_id", id)
		a.note(r.Context(), state.AuditEntry{Action: state.AuditRunCancelled, Run: id})
		return map[string]any{"id": id}, nil
	case RunEnded:
		return nil, &failure{http.StatusConflict, "run_ended", "id", "the run has already ended"}
	}
	return nil, noRun()
}

func noRun() error {
	return &failure{http.StatusNotFound, "run_not_found", "id", "there is no such run, or it ended long ago"}
}
