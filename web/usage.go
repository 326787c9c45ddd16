package web

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"time"

	"iop/gateway/admin"
)

// usageDimensions are what the page can sum up by.
var usageDimensions = []string{"key", "model", "node", "route", "principal", "day"}

// usageFilters are what the page can narrow it to.
var usageFilters = []string{"key", "route", "node", "principal"}

// usageData is what the page of the usage shows.
type usageData struct {
	By         string
	Dimensions []string
	From, To   string // days
	Filter     map[string]string
	Rows       []usageRow
	Total      admin.UsageRow
	Days       []admin.UsageRow // for the chart, the oldest first
	CSV        string           // the address of the records
	Fault      *formFault
	Names      map[string]string // of keys, by id
}

// usageRow is a row and what it is the sum of.
type usageRow struct {
	admin.UsageRow
	Name string
}

func (c *console) usage(w http.ResponseWriter, r *http.Request) error {
	now := time.Now().UTC()
	given := r.URL.Query()
	data := usageData{
		By: "model", Dimensions: usageDimensions, Filter: map[string]string{}, Names: map[string]string{},
		From: now.AddDate(0, 0, -29).Format(time.DateOnly), To: now.Format(time.DateOnly),
	}
	if slices.Contains(usageDimensions, given.Get("by")) {
		data.By = given.Get("by")
	}
	if from := given.Get("from"); from != "" {
		data.From = from
	}
	if to := given.Get("to"); to != "" {
		data.To = to
	}
	query := url.Values{"from": {data.From}}
	for _, name := range usageFilters {
		if value := given.Get(name); value != "" {
			query.Set(name, value)
			data.Filter[name] = value
		}
	}
	// The API's end is exclusive, the page's a day that counts.
	if last, err := time.Parse(time.DateOnly, data.To); err == nil && last.Before(now.Truncate(24*time.Hour)) {
		query.Set("to", last.AddDate(0, 0, 1).Format(time.DateOnly))
	} else if err != nil {
		query.Set("to", data.To)
	}
	records := url.Values{"format": {"csv"}}
	for name, values := range query {
		records[name] = values
	}
	data.CSV = "/admin/usage/records?" + records.Encode()
	err := c.fillUsage(r, &data, query)
	status := http.StatusOK
	if err != nil {
		if data.Fault = refusedForm(err); data.Fault == nil {
			return err
		}
		status = http.StatusUnprocessableEntity
	}
	c.pages.show(w, r, status, "usage", data)
	return nil
}

// fillUsage asks for the sums.
func (c *console) fillUsage(r *http.Request, data *usageData, query url.Values) error {
	var keys listOf[admin.Key]
	if err := c.api.get(r.Context(), "/keys", nil, &keys); err != nil {
		return err
	}
	for _, k := range keys.Data {
		data.Names[string(k.ID)] = k.Name
	}
	var total, days, rows admin.Usage
	if err := c.api.get(r.Context(), "/usage", query, &total); err != nil {
		return err
	}
	if len(total.Data) > 0 {
		data.Total = total.Data[0]
	}
	query.Set("by", "day")
	if err := c.api.get(r.Context(), "/usage", query, &days); err != nil {
		return err
	}
	data.Days = days.Data
	slices.SortFunc(data.Days, func(a, b admin.UsageRow) int { return compare(a.Day, b.Day) })
	query.Set("by", data.By)
	if err := c.api.get(r.Context(), "/usage", query, &rows); err != nil {
		return err
	}
	for _, row := range rows.Data {
		data.Rows = append(data.Rows, usageRow{row, data.nameOf(&row)})
	}
	return nil
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// nameOf is what a row is the sum of.
func (d *usageData) nameOf(row *admin.UsageRow) string {
	switch d.By {
	case "key":
		if row.KeyName != "" {
			return row.KeyName + " (" + row.Key + ")"
		}
		return row.Key
	case "model":
		return row.Model
	case "node":
		return row.Node
	case "route":
		return row.Route
	case "principal":
		return cmp.Or(row.PrincipalName, row.Principal)
	}
	return row.Day
}

// usageRecords passes the API's records on, as a file.
func (c *console) usageRecords(w http.ResponseWriter, r *http.Request) error {
	req := r.Clone(r.Context())
	req.Method = http.MethodGet
	req.URL = &url.URL{Path: "/admin/v1/usage/records", RawQuery: r.URL.RawQuery}
	req.Body, req.ContentLength, req.Header = http.NoBody, 0, http.Header{}
	c.parts.API.ServeHTTP(&attachment{ResponseWriter: w}, req)
	return nil
}

// attachment has a browser save what is answered, unless that is a fault.
type attachment struct {
	http.ResponseWriter
	begun bool
}

// WriteHeader implements http.ResponseWriter.
func (a *attachment) WriteHeader(status int) {
	if !a.begun && status == http.StatusOK {
		a.Header().Set("Content-Disposition", `attachment; filename="iop-usage.csv"`)
	}
	a.begun = true
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *attachment) Write(data []byte) (int, error) {
	if !a.begun {
		a.WriteHeader(http.StatusOK)
	}
	return a.ResponseWriter.Write(data)
}

// Unwrap is for http.ResponseController.
func (a *attachment) Unwrap() http.ResponseWriter { return a.ResponseWriter }
