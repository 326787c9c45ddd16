package web

import (
	"net/http"
	"net/url"
	"strconv"
	"time"

	"iop/gateway/admin"
)

// runFilters are what the page of the runs can be narrowed to.
var runFilters = []string{"state", "outcome", "key", "route", "node"}

// shownRuns is how many runs their page shows.
const shownRuns = 100

// runsData is what the page of the runs shows.
type runsData struct {
	Runs    []admin.Run
	More    bool // there are older ones that the filter selects
	Filter  map[string]string
	Self    string // the page's own address, for what is fetched anew
	Outcome string
	Fault   *formFault
}

func (c *console) runs(w http.ResponseWriter, r *http.Request) error {
	query := url.Values{"limit": {strconv.Itoa(shownRuns + 1)}}
	data := runsData{Filter: map[string]string{}, Outcome: outcome(r)}
	self := url.Values{}
	for _, name := range runFilters {
		if value := r.URL.Query().Get(name); value != "" {
			query.Set(name, value)
			self.Set(name, value)
			data.Filter[name] = value
		}
	}
	data.Self = "/admin/runs"
	if len(self) > 0 {
		data.Self += "?" + self.Encode()
	}
	var runs listOf[admin.Run]
	status := http.StatusOK
	if err := c.api.get(r.Context(), "/runs", query, &runs); err != nil {
		if data.Fault = refusedForm(err); data.Fault == nil {
			return err
		}
		status = http.StatusUnprocessableEntity
	}
	data.More = len(runs.Data) > shownRuns
	data.Runs = runs.Data[:min(len(runs.Data), shownRuns)]
	if isPart(r) {
		c.pages.part(w, "runs", "runs-live", data)
		return nil
	}
	c.pages.show(w, r, status, "runs", data)
	return nil
}

// runData is what the page of one run shows.
type runData struct {
	Run     admin.Run
	Steps   []step
	Total   float64 // milliseconds
	Rate    float64 // tokens per second, once it began to answer; 0: unknown
	Outcome string
}

// step is one part of a run's time.
type step struct {
	Name       string
	From, To   float64 // milliseconds since the request came
	Start, Len int     // of the whole, in percent
	Running    bool
}

func (c *console) oneRun(w http.ResponseWriter, r *http.Request) error {
	data := runData{Outcome: outcome(r)}
	if err := c.api.get(r.Context(), "/runs"+seg(r.PathValue("id")), nil, &data.Run); err != nil {
		return err
	}
	data.timeline(time.Now())
	if isPart(r) {
		c.pages.part(w, "run", "run-live", data)
		return nil
	}
	c.pages.show(w, r, http.StatusOK, "run", data)
	return nil
}

// timeline lays the run's phases out in time.
func (d *runData) timeline(now time.Time) {
	run := &d.Run
	d.Total = run.DurationMS
	live := run.State != "ended"
	if live {
		d.Total = max(float64(now.Sub(run.Started).Microseconds())/1000, 0.001)
	}
	queued := min(float64(run.QueueMS), d.Total)
	d.add("Queued", 0, queued, run.State == "queued")
	if run.State == "queued" || run.Attempts == 0 {
		return
	}
	first := run.TTFBMS
	if first == 0 {
		d.add("Waiting for first byte", queued, d.Total, live)
		return
	}
	d.add("Until first byte", queued, first, false)
	d.add("Streaming", first, d.Total, live)
	if run.Usage != nil && d.Total > first {
		d.Rate = float64(run.Usage.Output) / (d.Total - first) * 1000
	}
}

func (d *runData) add(name string, from, to float64, running bool) {
	to = max(from, to)
	share := func(v float64) int { return int(100 * v / max(d.Total, 0.001)) }
	d.Steps = append(d.Steps, step{Name: name, From: from, To: to, Start: share(from), Len: max(share(to)-share(from), 1), Running: running})
}

func (c *console) cancelRun(w http.ResponseWriter, r *http.Request) error {
	path := "/runs" + seg(r.PathValue("id"))
	if err := c.api.post(r.Context(), path+"/cancel", nil, nil); err != nil {
		return err
	}
	return done(w, r, "/admin"+path, "run-cancelled")
}
