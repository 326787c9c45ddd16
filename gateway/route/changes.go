package route

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"iop/state"
)

// Change is one difference between two Tables, for the operator who decides whether it is intended.
type Change struct {
	Route string     // whose it is; empty: the whole file's
	Kind  ChangeKind // closed set
	// Detail says in a few words what changed.
	Detail string
	// Opens: the change grants access, or raises or removes a limit.
	Opens bool
}

// ChangeKind is what kind of difference a Change is.
type ChangeKind string

// The kinds of change.
const (
	RouteAdded     ChangeKind = "added"      // a name that meant nothing, or an advertised model
	RouteRemoved   ChangeKind = "removed"    // a name that means nothing any more, or an advertised model
	AccessOpened   ChangeKind = "opened"     // more principals may use it
	AccessLimited  ChangeKind = "limited"    // fewer principals may use it
	CapRaised      ChangeKind = "cap_raised" // or taken away
	CapLowered     ChangeKind = "cap_lowered"
	MembersOpened  ChangeKind = "members_opened"  // requests may have members that were refused
	MembersLimited ChangeKind = "members_limited" // members are refused that requests could have
	RouteChanged   ChangeKind = "changed"         // anything else: targets, policy, timeouts
	AdvertisedRule ChangeKind = "advertised"      // what becomes of the models that no route names
)

// String is the change in a line, as logs and `iop edge --check-config` show it.
func (c Change) String() string {
	if c.Route == "" {
		return c.Detail
	}
	return c.Route + ": " + c.Detail
}

// Changes lists what differs between the Table in force and the one that is to follow it: what opens something first, then
// by route. It is empty where clients can see no difference.
func Changes(old, next *Table) []Change {
	var list []Change
	if old.advertised != next.advertised {
		c := Change{Kind: AdvertisedRule, Detail: "models that no route names are refused from now on"}
		if next.advertised {
			c.Detail, c.Opens = "models that no route names are served from now on, to everyone", true
		}
		list = append(list, c)
	}
	if old.advertised && next.advertised {
		base := changed(&old.base, &next.base)
		for i := range base {
			base[i].Route = ""
			base[i].Detail = "models that no route names: " + base[i].Detail
		}
		list = append(list, base...)
	}
	for _, name := range names(old, next) {
		list = append(list, changesOf(name, old, next)...)
	}
	list = append(list, reservations(old, next)...)
	slices.SortStableFunc(list, func(a, b Change) int {
		if a.Opens != b.Opens {
			if a.Opens {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Route, b.Route)
	})
	return list
}

// names are all names of both Tables, ordered.
func names(tables ...*Table) []string {
	var all []string
	for _, t := range tables {
		for name := range t.byName {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// changesOf lists what becomes of one name. An alias has only what its route does not say already.
func changesOf(name string, old, next *Table) []Change {
	was, is := old.byName[name], next.byName[name]
	switch {
	case was == nil:
		return []Change{addedOf(name, old, is)}
	case is == nil:
		return []Change{removedOf(name, was, next)}
	case name != was.Name && name != is.Name && was.Name == is.Name:
		return nil // the route's own name has it
	}
	list := changed(was, is)
	for i := range list {
		list[i].Route = name
	}
	if was.Name != is.Name {
		list = append(list, Change{Route: name, Kind: RouteChanged, Detail: fmt.Sprintf("now means the route %s, previously %s", is.Name, was.Name)})
	}
	return list
}

// reservations lists the models that no route names and that were, or are now, reached only through a route.
func reservations(old, next *Table) (list []Change) {
	if old.advertised != next.advertised {
		return nil // the rule for all of them says it
	}
	both := slices.Concat(old.Reserved(), next.Reserved())
	slices.Sort(both)
	for _, model := range slices.Compact(both) {
		was, is := old.ReservedFor(model), next.ReservedFor(model)
		switch {
		case old.byName[model] != nil || next.byName[model] != nil: // changesOf has it
		case is == nil:
			list = append(list, Change{Route: model, Kind: AccessOpened, Opens: true,
				Detail: "served to everyone where a Node advertises it, previously only through the route " + was.Name})
		case was == nil:
			list = append(list, Change{Route: model, Kind: AccessLimited, Detail: next.reservation(is)})
		}
	}
	return list
}

// reservation says why a model that no route names is not served under its own name.
func (t *Table) reservation(r *Route) string {
	return fmt.Sprintf("only through the route %s, which limits it (%s)", r.Name, strings.Join(t.Limits(r), ", "))
}

func addedOf(name string, old *Table, is *Route) Change {
	c := Change{Route: name, Kind: RouteAdded, Detail: "new, for " + audience(is.Principals)}
	if name != is.Name {
		c.Detail = "new, an alias of " + is.Name + ", for " + audience(is.Principals)
	}
	c.Opens = !old.servesAdvertised(name) // else everyone could use a model of this name already
	return c
}

func removedOf(name string, was *Route, next *Table) Change {
	c := Change{Route: name, Kind: RouteRemoved, Detail: "removed"}
	if is := next.ReservedFor(name); is != nil {
		c.Detail = "removed; a model with this name is reached " + next.reservation(is)
	}
	if !next.servesAdvertised(name) {
		return c
	}
	c.Detail = "removed; a model with this name that a Node advertises is served to everyone"
	c.Opens = len(was.limits(&next.base)) > 0
	return c
}

// changed lists the differences of two routes of one name.
func changed(was, is *Route) []Change {
	list := slices.Concat(access(was, is), caps(was, is), members(was, is))
	var others []string
	for _, part := range []struct {
		name     string
		old, new any
	}{
		{"targets", was.Groups, is.Groups}, {"policy", was.Policy, is.Policy}, {"retry", was.Retry, is.Retry}, {"timeouts", was.Timeouts, is.Timeouts},
		{"queue_limit", was.QueueLimit, is.QueueLimit}, {"defaults", was.Parameters.Defaults, is.Parameters.Defaults}, {"rename_model", was.RenameModel, is.RenameModel},
	} {
		if !reflect.DeepEqual(part.old, part.new) {
			others = append(others, part.name)
		}
	}
	if len(others) > 0 {
		list = append(list, Change{Route: is.Name, Kind: RouteChanged, Detail: "changed: " + strings.Join(others, ", ")})
	}
	return list
}

// access compares who may use a route. A pattern that an old one covers opens nothing.
func access(was, is *Route) []Change {
	old, now := slices.Clone(was.Principals), slices.Clone(is.Principals)
	slices.Sort(old)
	slices.Sort(now)
	if slices.Equal(slices.Compact(old), slices.Compact(now)) || everyone(old) && everyone(now) {
		return nil
	}
	c := Change{Route: is.Name, Kind: AccessLimited, Detail: fmt.Sprintf("now for %s, previously for %s", audience(is.Principals), audience(was.Principals))}
	if !covers(old, now) {
		c.Kind, c.Opens = AccessOpened, true
	}
	return []Change{c}
}

// covers reports whether every principal of the patterns in now is certainly one of those in old; none means everyone.
func covers(old, now []string) bool {
	if everyone(old) || everyone(now) {
		return everyone(old)
	}
	return !slices.ContainsFunc(now, func(pattern string) bool { return !covered(old, pattern) })
}

func everyone(principals []string) bool {
	return len(principals) == 0 || slices.Contains(principals, "*")
}

func covered(old []string, pattern string) bool {
	if slices.Contains(old, pattern) {
		return true
	}
	one := !strings.ContainsAny(pattern, "*?") // else it could match more than what it is compared with
	return one && slices.ContainsFunc(old, func(o string) bool { return state.MatchGlob(o, pattern) })
}

func audience(principals []string) string {
	if len(principals) == 0 {
		return "everyone"
	}
	return strings.Join(principals, ", ")
}

// caps compares the greatest values of parameters.
func caps(was, is *Route) (list []Change) {
	now := map[string]float64{}
	for _, c := range is.Parameters.Caps {
		now[c.Name] = c.Max
	}
	for _, c := range was.Parameters.Caps {
		most, capped := now[c.Name]
		delete(now, c.Name)
		switch {
		case !capped:
			list = append(list, Change{Route: is.Name, Kind: CapRaised, Opens: true, Detail: fmt.Sprintf("no cap of %s, previously %v", c.Name, c.Max)})
		case most > c.Max:
			list = append(list, Change{Route: is.Name, Kind: CapRaised, Opens: true, Detail: fmt.Sprintf("cap of %s is %v, previously %v", c.Name, most, c.Max)})
		case most < c.Max:
			list = append(list, Change{Route: is.Name, Kind: CapLowered, Detail: fmt.Sprintf("cap of %s is %v, previously %v", c.Name, most, c.Max)})
		}
	}
	for _, c := range is.Parameters.Caps {
		if most, added := now[c.Name]; added {
			list = append(list, Change{Route: is.Name, Kind: CapLowered, Detail: fmt.Sprintf("cap of %s is %v, previously none", c.Name, most)})
		}
	}
	return list
}

// members compares which members of a request are allowed and refused.
func members(was, is *Route) (list []Change) {
	note := func(names []string, kind ChangeKind, what string) {
		if len(names) > 0 {
			list = append(list, Change{Route: is.Name, Kind: kind, Opens: kind == MembersOpened, Detail: what + ": " + strings.Join(names, ", ")})
		}
	}
	old, next := &was.Parameters, &is.Parameters
	note(without(next.Allow, old.Allow), MembersOpened, "now allows the members")
	note(without(old.Refuse, next.Refuse), MembersOpened, "no longer refuses the members")
	note(without(old.Allow, next.Allow), MembersLimited, "no longer allows the members")
	note(without(next.Refuse, old.Refuse), MembersLimited, "now refuses the members")
	return list
}

// without returns the names in list that are not in others.
func without(list, others []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(name string) bool { return slices.Contains(others, name) })
}
