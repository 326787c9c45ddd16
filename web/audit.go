package web

import (
	"net/http"
	"net/url"

	"iop/gateway/admin"
)

// auditFilters are what the page can look for.
var auditFilters = []string{"action", "actor", "slot", "node", "run"}

// auditActions are the actions that there are, as GET /admin/v1/audit names them.
var auditActions = []string{
	"lease_issued", "lease_refused", "lease_revoked", "slot_set", "slot_rotated", "slot_enabled", "slot_disabled", "slot_revoked",
	"slot_deleted", "slot_raised", "slot_rewrapped", "profile_set", "profile_deleted", "node_allowed", "node_disallowed",
	"node_denied", "node_undenied", "model_pulled", "model_deleted",
}

// auditData is what the page of the audit shows.
type auditData struct {
	Actions []string
	Entries []admin.AuditEntry
	Next    string // the address of the next page; empty: there is none
	Filter  map[string]string
	Fault   *formFault
}

func (c *console) audit(w http.ResponseWriter, r *http.Request) error {
	query, data := url.Values{"limit": {"100"}}, auditData{Actions: auditActions, Filter: map[string]string{}}
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
