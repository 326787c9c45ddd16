package web

import (
	"net/http"
	"net/url"
	"strconv"

	"iop/gateway/admin"
)

// overviewData is what the overview shows.
type overviewData struct {
	Status admin.Status
	Nodes  []admin.Node
	Runs   []admin.Run // the newest
	InUse  int         // places, of the Nodes that are online
	Places int
	Base   string // of the public API
	HasKey bool
}

// recentRuns is how many runs the overview shows.
const recentRuns = 8

func (c *console) overview(w http.ResponseWriter, r *http.Request) error {
	var data overviewData
	var nodes listOf[admin.Node]
	var runs listOf[admin.Run]
	var keys listOf[admin.Key]
	if err := c.api.get(r.Context(), "/status", nil, &data.Status); err != nil {
		return err
	}
	if err := c.api.get(r.Context(), "/nodes", nil, &nodes); err != nil {
		return err
	}
	if err := c.api.get(r.Context(), "/runs", url.Values{"limit": {strconv.Itoa(recentRuns)}}, &runs); err != nil {
		return err
	}
	if err := c.api.get(r.Context(), "/keys", nil, &keys); err != nil {
		return err
	}
	data.Base = publicBase(r.Host, c.parts.Listen(), data.Status.Certificate)
	data.Nodes, data.Runs, data.HasKey = nodes.Data, runs.Data, len(keys.Data) > 0
	for i := range data.Nodes {
		used, places := placesOf(&data.Nodes[i])
		data.InUse, data.Places = data.InUse+used, data.Places+places
	}
	if isPart(r) {
		c.pages.part(w, "overview", "overview-live", data)
		return nil
	}
	c.pages.show(w, r, http.StatusOK, "overview", data)
	return nil
}

// placesOf are a Node's places that are taken, and all of them, in its current session.
func placesOf(n *admin.Node) (used, places int) {
	for _, s := range n.Sessions {
		if !s.Current {
			continue
		}
		for _, p := range s.Providers {
			used, places = used+p.InFlight, places+p.Capacity
		}
	}
	return used, places
}
