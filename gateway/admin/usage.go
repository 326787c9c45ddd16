package admin

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"iop/execution"
	"iop/state"
)

var (
	usageFilters     = []string{"from", "to", "key", "principal", "route", "node"}
	usageParameters  = append([]string{"by"}, usageFilters...)
	recordParameters = append([]string{"format"}, usageFilters...)
)

// Dimensions are what usage can be summed up by.
var Dimensions = []string{"key", "principal", "route", "model", "node", "provider", "outcome", "day", "month", "session"}

// defaultSpan is how far back usage is shown where no beginning is given.
const defaultSpan = 30 * 24 * time.Hour

// Usage is the answer to GET /admin/v1/usage.
type Usage struct {
	From time.Time  `json:"from"`
	To   time.Time  `json:"to"` // exclusive
	By   []string   `json:"by"`
	Data []UsageRow `json:"data"`
}

// UsageRow is the use of a group of runs. What it is not grouped by is absent.
type UsageRow struct {
	Key       string `json:"key,omitempty"`
	Principal string `json:"principal,omitempty"`
	// What people call these two: the key's name, and the owner or "key:" and the key's name.
	KeyName       string `json:"key_name,omitempty"`
	PrincipalName string `json:"principal_name,omitempty"`

	Route    string `json:"route,omitempty"`
	Model    string `json:"model,omitempty"` // the provider's name for it
	Node     string `json:"node,omitempty"`
	Provider string `json:"provider,omitempty"`
	Outcome  string `json:"outcome,omitempty"`
	Day      string `json:"day,omitempty"`   // 2026-03-31, UTC
	Month    string `json:"month,omitempty"` // 2026-03, UTC
	Session  string `json:"session,omitempty"`

	Runs      int64 `json:"runs"`
	Completed int64 `json:"completed"`
	Failed    int64 `json:"failed"`
	Cancelled int64 `json:"cancelled"`
	Rejected  int64 `json:"rejected"`
	Input     int64 `json:"input_tokens"`
	Output    int64 `json:"output_tokens"`
	Cached    int64 `json:"cached_tokens"`    // of the input
	Reasoning int64 `json:"reasoning_tokens"` // of the output
	Estimated int64 `json:"estimated_runs"`   // whose tokens are estimated

	QueueMS      float64 `json:"queue_ms"`       // mean
	FirstTokenMS float64 `json:"first_token_ms"` // mean of those that had one
	DurationMS   float64 `json:"duration_ms"`    // mean
}

// usage sums up.
func (a *api) usage(r *http.Request) (any, error) {
	values := r.URL.Query()
	query, until, err := a.usageQuery(r, time.Now())
	if err != nil {
		return nil, err
	}
	by := []string{}
	if text := values.Get("by"); text != "" {
		by = strings.Split(text, ",")
	}
	for i, name := range by {
		dimension, err := state.ParseDimension(name)
		if err != nil {
			return nil, err
		}
		if slices.Contains(by[:i], name) {
			return nil, invalid("by", "by names "+name+" twice")
		}
		query.By = append(query.By, dimension)
	}
	if err := a.edge.FlushUsage(r.Context()); err != nil {
		return nil, err
	}
	rows, err := a.store.UsageSummary(r.Context(), query)
	if errors.Is(err, state.ErrUsageTooMany) {
		return nil, invalid("by", "there are too many rows: group by fewer dimensions, or choose a shorter period")
	}
	if err != nil {
		return nil, err
	}
	names, err := a.namesFor(r.Context(), by)
	if err != nil {
		return nil, err
	}
	answer := Usage{From: query.From, To: until, By: by, Data: make([]UsageRow, len(rows))}
	for i := range rows {
		answer.Data[i] = usageRowView(&rows[i], names)
	}
	return answer, nil
}

// namesFor are the names of keys where the sums are by something that has one.
func (a *api) namesFor(ctx context.Context, by []string) (keyNames, error) {
	if !slices.Contains(by, "key") && !slices.Contains(by, "principal") {
		return keyNames{}, nil
	}
	return readKeyNames(ctx, a.store)
}

// usageRowView is a row as this API shows it.
func usageRowView(u *state.UsageRow, names keyNames) UsageRow {
	return UsageRow{
		Key: u.Key, Principal: u.Principal, KeyName: names.of[state.KeyID(u.Key)], PrincipalName: names.principal(u.Principal),
		Route: u.Route, Model: u.Model, Node: u.Node, Provider: u.Provider,
		Outcome: u.Outcome, Day: u.Day, Month: u.Month, Session: u.Session,
		Runs: u.Runs, Completed: u.Completed, Failed: u.Failed, Cancelled: u.Cancelled, Rejected: u.Rejected,
		Input: u.Input, Output: u.Output, Cached: u.Cached, Reasoning: u.Reasoning, Estimated: u.Estimated,
		QueueMS: millis(u.Queue), FirstTokenMS: millis(u.FirstToken), DurationMS: millis(u.Duration),
	}
}

// millis is d in milliseconds, to the microsecond.
func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// usageQuery reads the filters that sums and exports have in common, and says until when they reach.
func (a *api) usageQuery(r *http.Request, now time.Time) (q state.UsageQuery, until time.Time, err error) {
	q, until, err = usageSpan(r.URL.Query(), now)
	if err == nil {
		q.Key, err = a.keyAsked(r, "key")
	}
	if err == nil {
		q.Principal, err = a.principalAsked(r)
	}
	return q, until, err
}

// usageSpan reads all of them but those that the state is asked about.
func usageSpan(values url.Values, now time.Time) (q state.UsageQuery, until time.Time, err error) {
	q = state.UsageQuery{
		Route: values.Get("route"), Node: execution.NodeID(values.Get("node")),
	}
	if text := values.Get("to"); text != "" {
		if q.To, err = ParseTime(text); err != nil {
			return q, until, invalid("to", "to "+err.Error())
		}
	}
	// Without an end the query has none: a run that began in this very millisecond belongs to it.
	if until = q.To; until.IsZero() {
		until = now.UTC()
	}
	q.From = until.Add(-defaultSpan)
	if text := values.Get("from"); text != "" {
		if q.From, err = ParseTime(text); err != nil {
			return q, until, invalid("from", "from "+err.Error())
		}
	}
	if !q.From.Before(until) {
		return q, until, invalid("from", "from must be before to")
	}
	return q, until, nil
}

// ParseTime reads a time, or a day, which begins at midnight UTC. Its error says what it must be.
func ParseTime(text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, errors.New("must be a date such as 2026-03-31 or a time such as 2026-03-31T12:00:00Z")
}
