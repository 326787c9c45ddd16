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
	runs := a.edge.Runs()
	runs = runs[:min(limit, len(runs))]
	if !query.Has("follow") {
		a.reply(w, r, list[Run]{runs}, nil)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/x-ndjson")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	out := json.NewEncoder(w)
	flush := http.NewResponseController(w)
	for _, run := range slices.Backward(runs) {
		if out.Encode(run) != nil {
			return
		}
	}
	if flush.Flush() != nil {
		return
	}
	_ = a.edge.Follow(r.Context(), func(run Run) error {
		if err := out.Encode(run); err != nil {
			return err
		}
		return flush.Flush()
	})
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
