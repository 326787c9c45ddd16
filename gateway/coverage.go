package gateway

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"iop/gateway/admin"
	"iop/gateway/route"
	"iop/tunnel"
)

const (
	// coveragePoll is how often the routes are compared with what Nodes offer, where either has changed. What is logged was
	// the same at two looks: a Node that reconnects is no news.
	coveragePoll = 2 * time.Second
	// coverageCalm is the least time between two lines of the log about a changed fleet.
	coverageCalm = time.Minute
	// coverageStart is how long the first line waits for a Node after the Edge's start.
	coverageStart = 30 * time.Second
	// keysPatience bounds the reading of the keys or of the slots for a comparison.
	keysPatience = 5 * time.Second
)

// Coverage implements admin.Edge.
func (o operator) Coverage(table *route.Table) admin.Coverage {
	return coverageOf(table, newPlaces(o.s.reg.Nodes(), nil))
}

// coverageOf compares a table with the providers of the current sessions.
func coverageOf(table *route.Table, places *places) admin.Coverage {
	c := admin.Coverage{
		Unrouted: []string{}, Reserved: []admin.ReservedModel{}, Missing: []admin.MissingTarget{},
		Absent: []admin.AbsentPrincipal{}, Slots: []admin.AbsentSlot{}, Unknown: admin.UnknownParameters(table),
	}
	offered, selected := places.names(nil), map[string]bool{}
	for _, r := range table.Routes() {
		for i := range r.Groups {
			c.Missing = append(c.Missing, places.missing(r.Name, &r.Groups[i], offered)...)
			for _, t := range places.of(&r.Groups[i]) {
				selected[t.Model] = true
			}
		}
	}
	reserved := table.Reserved()
	for _, model := range offered {
		switch {
		case table.ReservedFor(model) != nil:
			reserved = append(reserved, model)
		case table.OwnedBy(model) != nil:
			c.Reserved = append(c.Reserved, admin.ReservedModel{Model: model, Route: table.OwnedBy(model).Name, Limits: []string{"its name"}})
		case !table.Names(model) && !table.Selects(model) && !selected[model]:
			c.Unrouted = append(c.Unrouted, model)
		}
	}
	slices.Sort(reserved)
	for _, model := range slices.Compact(reserved) {
		r := table.ReservedFor(model)
		c.Reserved = append(c.Reserved, admin.ReservedModel{Model: model, Route: r.Name, Limits: table.Limits(r)})
	}
	slices.SortFunc(c.Reserved, func(a, b admin.ReservedModel) int { return cmp.Compare(a.Model, b.Model) })
	return c
}

// missing lists the targets of a group that no current session offers.
func (ps *places) missing(name string, g *route.Group, offered []string) (list []admin.MissingTarget) {
	for i, spec := range admin.TargetSpecs(g) {
		if one := (route.Group{Targets: g.Targets[i : i+1]}); len(ps.of(&one)) > 0 {
			continue
		}
		m := admin.MissingTarget{Route: name, TargetSpec: spec}
		if k := slices.IndexFunc(offered, func(id string) bool { return id != spec.Model && route.SameModel(id, spec.Model) }); k >= 0 {
			m.Similar = offered[k]
		}
		list = append(list, m)
	}
	return list
}

// watchCoverage logs how the file's routes and what Nodes offer fit together: soon after the start, after each new file,
// and calmly as the fleet changes. It returns when the Server closes.
func (s *Server) watchCoverage() {
	if s.routing.watcher == nil {
		return // every model is its own route
	}
	ticker := time.NewTicker(coveragePoll)
	defer ticker.Stop()
	watch := coverageWatch{started: time.Now()}
	for {
		select {
		case <-ticker.C:
		case <-s.ended:
			return
		}
		table, models := s.routing.table.Load(), s.reg.Models()
		if watch.knows(table, models) {
			continue
		}
		places := newPlaces(s.reg.Nodes(), nil)
		c := coverageOf(table, places)
		c.Absent, c.Slots = s.absentPrincipals(table), s.absentSlots(table)
		if watch.due(table, &c, len(places.list) > 0, time.Now()) {
			s.logCoverage(table, &c)
		}
	}
}

// coverageWatch decides when a coverage is worth a line. Only watchCoverage's goroutine touches it.
type coverageWatch struct {
	started time.Time
	table   *route.Table       // of the last line; nil before the first
	logged  string             // what that line said
	at      time.Time          // when
	seen    string             // what the look before found
	models  []tunnel.ModelInfo // the registry's list at that look
}

// knows reports whether a look would find what the last line says. The registry makes a new list whenever Nodes change.
func (w *coverageWatch) knows(table *route.Table, models []tunnel.ModelInfo) bool {
	same := len(models) > 0 && len(w.models) > 0 && &models[0] == &w.models[0]
	w.models = models
	return same && w.table == table && w.seen == w.logged
}

// due reports whether c is to be logged now, and takes it as logged then.
func (w *coverageWatch) due(table *route.Table, c *admin.Coverage, nodes bool, now time.Time) bool {
	found := fmt.Sprint(*c)
	settled := found == w.seen
	w.seen = found
	switch {
	case w.table == nil && !nodes && now.Sub(w.started) < coverageStart:
		return false
	case !settled || w.table == table && (found == w.logged || now.Sub(w.at) < coverageCalm):
		return false
	}
	changed := found != w.logged
	w.table, w.logged, w.at = table, found, now
	return changed
}

func (s *Server) logCoverage(table *route.Table, c *admin.Coverage) {
	var attrs []any
	add := func(name string, list []string) {
		if len(list) > maxChangesLogged {
			list = append(slices.Clip(list[:maxChangesLogged]), fmt.Sprintf("and %d more", len(list)-maxChangesLogged))
		}
		if len(list) > 0 {
			attrs = append(attrs, name, list)
		}
	}
	fate := "served_without_route"
	if !table.ServesAdvertised() {
		fate = "refused_without_route"
	}
	add(fate, c.Unrouted)
	add("only_through_route", texts(c.Reserved))
	add("not_offered", texts(c.Missing))
	add("principals_without_key", texts(c.Absent))
	add("unknown_slots", texts(c.Slots))
	add("unknown_parameters", texts(c.Unknown))
	level := slog.LevelInfo
	if len(c.Absent)+len(c.Slots)+len(c.Unknown) > 0 {
		level = slog.LevelWarn // unlike a Node, these don't come by themselves
	}
	s.log.Log(s.background, level, "routes compared with the models that nodes offer", attrs...)
}

// absentPrincipals lists the principals of the table's routes that no live key has; none if the state can't be read, which others
// report.
func (s *Server) absentPrincipals(table *route.Table) []admin.AbsentPrincipal {
	if !slices.ContainsFunc(table.Routes(), func(r *route.Route) bool { return len(r.Principals) > 0 }) {
		return []admin.AbsentPrincipal{}
	}
	ctx, cancel := context.WithTimeout(s.background, keysPatience)
	defer cancel()
	keys, err := s.cfg.Store.Keys(ctx)
	if err != nil {
		return []admin.AbsentPrincipal{}
	}
	return admin.AbsentPrincipals(table, keys)
}

// absentSlots lists the slots of the table's targets that do not exist; none if the state can't be read.
func (s *Server) absentSlots(table *route.Table) []admin.AbsentSlot {
	if len(table.AbsentSlots(nil)) == 0 {
		return []admin.AbsentSlot{} // no target has one
	}
	ctx, cancel := context.WithTimeout(s.background, keysPatience)
	defer cancel()
	slots, err := s.cfg.Store.Slots(ctx)
	if err != nil {
		return []admin.AbsentSlot{}
	}
	return admin.AbsentSlots(table, slots)
}

func texts[T fmt.Stringer](list []T) (lines []string) {
	for _, x := range list {
		lines = append(lines, x.String())
	}
	return lines
}
