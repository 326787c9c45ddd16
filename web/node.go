package web

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"iop/gateway/admin"
)

// nodePatience is how long a page waits for what the Node itself says; without it the rest is shown.
const nodePatience = 2 * time.Second

// nodeData is what the page of one Node shows.
type nodeData struct {
	Node    nodeRow
	Runs    []admin.Run
	Outcome string
	Fault   *formFault
	Filled  map[string]string // what the refused form of a pull had

	// What the Node says of itself, and the session from both its ends; nil where it did not say.
	Says      *admin.NodeCapabilities
	Paths     []pathRow
	Transport []transportRow
	Silent    string // why it did not

	Ollamas []string // its providers that are an Ollama
	Known   string   // the same, as an address has them
}

// pathRow says which of the Node's providers have an operation, in their order: "yes", "no", "unknown".
type pathRow struct {
	Operation string
	Has       []string
}

// transportRow is one line of the session's two views.
type transportRow struct{ Name, Edge, Node string }

func (c *console) oneNode(w http.ResponseWriter, r *http.Request) error {
	return c.showNode(w, r, http.StatusOK, nodeData{Outcome: outcome(r)})
}

func (c *console) showNode(w http.ResponseWriter, r *http.Request, status int, data nodeData) error {
	var node admin.Node
	var runs listOf[admin.Run]
	name := r.PathValue("node")
	if err := c.api.get(r.Context(), "/nodes"+seg(name), nil, &node); err != nil {
		return err
	}
	if err := c.api.get(r.Context(), "/runs", url.Values{"node": {name}, "limit": {"20"}}, &runs); err != nil {
		return err
	}
	data.Node, data.Runs = rowOf(node), runs.Data
	if data.Node.Current != nil {
		if err := c.ask(r.Context(), name, &data); err != nil {
			return err
		}
	}
	if !isPart(r) {
		c.pages.show(w, r, status, "node", data)
		return nil
	}
	// The forms of an Ollama stand outside of the part, so that nothing that was typed is lost: one that is new needs the page.
	known := r.URL.Query()["ollama"]
	if slices.ContainsFunc(data.Ollamas, func(id string) bool { return !slices.Contains(known, id) }) {
		w.Header().Set("Hx-Refresh", "true")
	}
	c.pages.part(w, "node", "node-live", data)
	return nil
}

// ask asks the Node what it has and how its connection fares.
func (c *console) ask(ctx context.Context, name string, data *nodeData) error {
	ctx, cancel := context.WithTimeout(ctx, nodePatience)
	defer cancel()
	var says admin.NodeCapabilities
	var transport admin.NodeTransport
	err := c.api.get(ctx, "/nodes"+seg(name)+"/capabilities", nil, &says)
	if err == nil {
		err = c.api.get(ctx, "/nodes"+seg(name)+"/transport", nil, &transport)
	}
	if err != nil {
		refused, ok := errors.AsType[*apiError](err)
		if !ok {
			return err
		}
		data.Silent = refused.Body.Message
		return nil
	}
	data.Says, data.Paths, data.Transport = &says, pathsOf(says.Providers), transportRows(&transport)
	known := url.Values{}
	for i := range says.Providers {
		p := &says.Providers[i]
		slices.SortFunc(p.Models, func(a, b admin.CapabilityModel) int { return compare(a.ID, b.ID) })
		if p.Engine == "ollama" || p.Engine == "" && p.Adapter == "ollama" {
			data.Ollamas = append(data.Ollamas, string(p.ID))
			known.Add("ollama", string(p.ID))
		}
	}
	if data.Known = known.Encode(); data.Known != "" {
		data.Known = "?" + data.Known
	}
	return nil
}

// pathsOf are the operations that any of the providers has.
func pathsOf(providers []admin.Capability) []pathRow {
	seen := map[string]bool{}
	for i := range providers {
		for _, name := range providers[i].Operations {
			seen[name] = true
		}
	}
	rows := make([]pathRow, 0, len(seen))
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		row := pathRow{Operation: name}
		for i := range providers {
			has := "no"
			switch {
			case !providers[i].OperationsKnown:
				has = "unknown"
			case slices.Contains(providers[i].Operations, name):
				has = "yes"
			}
			row.Has = append(row.Has, has)
		}
		rows = append(rows, row)
	}
	return rows
}

// transportRows are the two views side by side.
func transportRows(t *admin.NodeTransport) []transportRow {
	row := func(name string, of func(*admin.Transport) string) transportRow {
		return transportRow{name, of(&t.Edge), of(&t.AtNode)}
	}
	since := func(ms int64) string { return span(time.Duration(ms) * time.Millisecond) }
	rows := []transportRow{
		row("Session uptime", func(v *admin.Transport) string { return since(v.UptimeMS) }),
		row("Heartbeat round trip", func(v *admin.Transport) string { return milliseconds(v.HeartbeatRTTMS) }),
		row("Last heartbeat reply", func(v *admin.Transport) string { return since(v.LastAckAgeMS) + " ago" }),
		row("Draining", func(v *admin.Transport) string { return map[bool]string{true: "yes", false: "no"}[v.Draining] }),
		row("Open runs", func(v *admin.Transport) string { return count(v.OpenRuns) }),
		row("Stalled runs", func(v *admin.Transport) string { return count(v.StalledRuns) }),
		row("Queued", func(v *admin.Transport) string { return byteCount(int64(v.QueuedBytes)) }),
		row("Window in use", func(v *admin.Transport) string {
			return byteCount(int64(v.SessionInFlight)) + " of " + byteCount(int64(v.SessionWindow))
		}),
		row("Frames sent, received", func(v *admin.Transport) string { return count(v.FramesSent) + ", " + count(v.FramesReceived) }),
		row("Bytes sent, received", func(v *admin.Transport) string {
			return byteCount(int64(v.BytesSent)) + ", " + byteCount(int64(v.BytesReceived))
		}),
	}
	if of := t.AtNode.Reconnects; of != nil {
		rows = append(rows, transportRow{"Previous sessions", "", count(*of)})
	}
	if of := t.AtNode.ProcessUptimeMS; of != nil {
		rows = append(rows, transportRow{"Process uptime", "", since(*of)})
	}
	return rows
}

// switchNode returns a handler that drains a Node or ends that.
func (c *console) switchNode(what string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		path := seg(r.PathValue("node"))
		if err := c.api.post(r.Context(), "/nodes"+path+"/"+what, nil, nil); err != nil {
			return err
		}
		return done(w, r, "/admin/nodes"+path, map[string]string{"drain": "node-drained", "resume": "node-resumed"}[what])
	}
}
