package web

import (
	"net/http"

	"iop/gateway/admin"
)

// overviewData is what the overview shows.
type overviewData struct{ Status admin.Status }

func (c *console) overview(w http.ResponseWriter, r *http.Request) error {
	var data overviewData
	if err := c.api.get(r.Context(), "/status", nil, &data.Status); err != nil {
		return err
	}
	if isPart(r) {
		c.pages.part(w, "overview", "overview-live", data)
		return nil
	}
	c.pages.show(w, r, http.StatusOK, "overview", data)
	return nil
}
