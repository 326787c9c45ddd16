package admin

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"iop/execution"
)

// defaultRuns is how many runs are listed where no limit is given.
const defaultRuns = 100

// runs lists the newest runs; with ?follow it goes on with one JSON line for each run that ends.
func (a *api) runs(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	limit := defaultRuns
	if text := query.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			a.reply(w, r, nil, &failure{http.StatusBadRequest, "invalid_request", "limit", "limit must be a number"})
			return
		}
		limit = n
	}
	if query.Has("follow") {
		a.follow(w, r, limit)
		return
	}
	runs := a.edge.Runs()
	a.reply(w, r, list[Run]{runs[:min(limit, len(runs))]}, nil)
}

// follow writes a line for each of the newest runs, the newest last, and for each that ends from now on.
func (a *api) follow(w http.ResponseWriter, r *http.Request, limit int) {
	h := w.Header()
	h.Set("Content-Type", "application/x-ndjson")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	out := json.NewEncoder(w)
	flush := http.NewResponseController(w)
	begin := func(runs []Run) error {
		for _, run := range slices.Backward(runs[:min(limit, len(runs))]) {
			if err := out.Encode(run); err != nil {
				return err
			}
		}
		return flush.Flush()
	}
	each := func(run Run) error {
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
	if !a.edge.CancelRun(id) {
		return nil, noRun()
	}
	a.log.Info("admin", "action", "cancel run", "run_id", id)
	return map[string]any{"id": id}, nil
}

func noRun() error {
	return &failure{http.StatusNotFound, "run_not_found", "id", "there is no such run, or it ended long ago"}
}
