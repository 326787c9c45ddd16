package gateway

import (
	"slices"
	"strings"

	"iop/gateway/admin"
	"iop/gateway/route"
	"iop/gateway/spelling"
	"iop/state"
)

// Unmatched implements admin.Edge.
func (o operator) Unmatched(patterns []string) []admin.UnmatchedModel {
	if len(patterns) == 0 {
		return nil
	}
	table := o.s.routing.table.Load()
	names := o.s.servedNames(table)
	if len(names) == 0 {
		return nil // Nodes are still to come
	}
	var list []admin.UnmatchedModel
	for _, pattern := range patterns {
		if slices.ContainsFunc(names, func(name string) bool { return state.MatchGlob(pattern, name) }) || o.s.knowsModel(table, pattern) {
			continue
		}
		m := admin.UnmatchedModel{Pattern: pattern}
		if r := table.ReservedFor(pattern); r != nil {
			m.Similar = r.Name
		} else if similar := spelling.Models(pattern, names, 1); len(similar) > 0 {
			m.Similar = similar[0]
		}
		list = append(list, m)
	}
	return list
}

// servedNames are the names that clients may use, of routes of the file and of models that connected Nodes offer.
func (s *Server) servedNames(table *route.Table) (names []string) {
	for _, r := range table.Routes() {
		names = append(append(names, r.Name), r.Aliases...)
	}
	for _, m := range s.reg.Models() {
		if r := table.Resolve(m.ID); r != nil && r.Advertised {
			names = append(names, m.ID)
		}
	}
	return names
}

// knowsModel reports whether a name without a pattern is a model that some Node has offered.
func (s *Server) knowsModel(table *route.Table, name string) bool {
	r := table.Resolve(name)
	return r != nil && !strings.ContainsAny(name, "*?") && s.adm.Knows(r)
}
