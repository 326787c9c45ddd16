package web

import (
	"net/http"
	"net/url"

	"iop/gateway/admin"
	"iop/state"
)

// auditFilters are what the page can look for.
var auditFilters = []string{"action", "actor", "source", "key", "slot", "node", "run"}

// auditData is what the page of the audit shows.
type auditData struct {
	Actions []string
	Entries []admin.AuditEntry
	Next    string // the address of the next page; empty: there is none
	Filter  map[string]string
	Fault   *formFault
}

func (c *console) audit(w http.ResponseWriter, r *http.Request) error {
	query, data := url.Values{"limit": {"100"}}, auditData{Actions: state.AuditActions(), Filter: map[string]string{}}
	for _, name := range append(auditFilters, "before") {
		if value := r.URL.Query().Get(name); value != "" {
			query.Set(name, value)
			data.Filter[name] = value
		}
	}
	var page admin.AuditPage
	if err := c.api.get(r.Context(), "/audit", query, &page); err != nil {
		if data.Fault = refusedForm(err); data.Fault == nil {
			return err
		}
		c.pages.show(w, r, http.StatusUnprocessableEntity, "audit", data)
		return nil
	}
	data.Entries = page.Data
	if page.Next != "" {
		query.Del("limit")
		query.Set("before", page.Next)
		data.Next = "/admin/audit?" + query.Encode()
	}
	c.pages.show(w, r, http.StatusOK, "audit", data)
	return nil
}
