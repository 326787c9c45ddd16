package web

import (
	"net/http"
	"strings"

	"iop/gateway/admin"
)

// nodesData is what the page of the Nodes shows.
type nodesData struct {
	Nodes   []nodeRow
	Refused []admin.RefusedNode
	Tokens  []admin.JoinToken // that can be used
	Managed bool
	Outcome string
	Fault   *formFault
	Filled  map[string]string // what the refused form had
	// Join is a join token that was just made, which is shown this once, with the command that uses it.
	Join *joining
}

// nodeRow is a Node and the sums over its current session.
type nodeRow struct {
	admin.Node
	Current *admin.Session
	InUse   int
	Places  int
	Models  int
}

// joining is how a Node joins.
type joining struct {
	Token admin.JoinToken
	Edge  string // the address that it dials
	Name  string // as it was asked for
}

func rowOf(n admin.Node) nodeRow {
	row := nodeRow{Node: n}
	row.InUse, row.Places = placesOf(&n)
	for i := range n.Sessions {
		if s := &n.Sessions[i]; s.Current {
			row.Current = s
			for _, p := range s.Providers {
				row.Models += len(p.Models)
			}
		}
	}
	return row
}

func (c *console) nodes(w http.ResponseWriter, r *http.Request) error {
	return c.showNodes(w, r, http.StatusOK, nodesData{Outcome: outcome(r)})
}

func (c *console) showNodes(w http.ResponseWriter, r *http.Request, status int, data nodesData) error {
	var nodes listOf[admin.Node]
	var tokens listOf[admin.JoinToken]
	var identity admin.Identity
	var edge admin.Status
	if err := c.api.get(r.Context(), "/nodes", nil, &nodes); err != nil {
		return err
	}
	if err := c.api.get(r.Context(), "/join-tokens", nil, &tokens); err != nil {
		return err
	}
	if err := c.api.get(r.Context(), "/identity", nil, &identity); err != nil {
		return err
	}
	if err := c.api.get(r.Context(), "/status", nil, &edge); err != nil {
		return err
	}
	data.Managed, data.Refused = identity.Managed, edge.Refused
	for _, n := range nodes.Data {
		data.Nodes = append(data.Nodes, rowOf(n))
	}
	for _, t := range tokens.Data {
		if t.Revoked == nil {
			data.Tokens = append(data.Tokens, t)
		}
	}
	if isPart(r) {
		c.pages.part(w, "nodes", "nodes-live", data)
		return nil
	}
	c.pages.show(w, r, status, "nodes", data)
	return nil
}

// joinTTL is how long a token that the console makes can be used first, in seconds.
const joinTTL = 24 * 60 * 60

// createJoinToken makes a join token and shows the command that uses it.
func (c *console) createJoinToken(w http.ResponseWriter, r *http.Request) error {
	f, err := formOf(r)
	if err != nil {
		return err
	}
	base, err := c.base(r)
	if err != nil {
		return err
	}
	join := &joining{Name: f.text("node"), Edge: tunnelURL(base)}
	body := map[string]any{"ttl_seconds": joinTTL}
	if join.Name != "" {
		body["node"] = join.Name
	}
	if err := c.api.post(r.Context(), "/join-tokens", body, &join.Token); err != nil {
		fault := refusedForm(err)
		if fault == nil {
			return err
		}
		return c.showNodes(w, r, http.StatusUnprocessableEntity, nodesData{Fault: fault, Filled: f.filled()})
	}
	return c.showNodes(w, r, http.StatusOK, nodesData{Join: join})
}

// tunnelURL is where a Node dials, of the public base.
func tunnelURL(base string) string {
	return strings.Replace(base, "http", "ws", 1) + "/tunnel/v1"
}

func (c *console) revokeJoinToken(w http.ResponseWriter, r *http.Request) error {
	if err := c.api.post(r.Context(), "/join-tokens"+seg(r.PathValue("id"))+"/revoke", nil, nil); err != nil {
		return err
	}
	return done(w, r, "/admin/nodes", "token-revoked")
}
