package route

import (
	"slices"
	"strings"

	"iop/execution"
	"iop/gateway/spelling"
	"iop/openai"
	"iop/state"
)

// UnknownParameter is a default or a cap of a route that no operation or engine is known to have.
type UnknownParameter struct {
	Route   string
	Path    string // parameters.defaults.NAME or parameters.caps.NAME
	Similar string // the name that was probably meant, or empty
}

// UnknownParameters lists the defaults and caps that are probably mistyped: they are in force, and do nothing. They are no faults, as
// an engine may have parameters of its own.
func (t *Table) UnknownParameters() (list []UnknownParameter) {
	known := openai.KnownParameters()
	for _, r := range t.routes {
		check := func(kind, name string) {
			if !slices.Contains(known, name) {
				list = append(list, UnknownParameter{r.Name, "parameters." + kind + "." + name, spelling.Nearest(name, known)})
			}
		}
		for _, d := range r.Parameters.Defaults {
			check("defaults", d.Name)
		}
		for _, c := range r.Parameters.Caps {
			check("caps", c.Name)
		}
	}
	return list
}

// AbsentSlot is a slot of a route's target that does not exist: each of its runs fails.
type AbsentSlot struct {
	Route   string
	Slot    execution.SlotName
	Similar string // the slot that was probably meant, or empty
}

// AbsentSlots lists the slots of targets that are none of those given: they may be set later, or the names are mistyped.
func (t *Table) AbsentSlots(slots []execution.SlotName) (list []AbsentSlot) {
	names := make([]string, len(slots))
	for i, slot := range slots {
		names[i] = string(slot)
	}
	for _, r := range t.routes {
		for i := range r.Groups {
			for j := range r.Groups[i].Targets {
				slot := r.Groups[i].Targets[j].Slot
				absent := AbsentSlot{r.Name, slot, spelling.Nearest(string(slot), names)}
				if slot != "" && !slices.Contains(slots, slot) && !slices.Contains(list, absent) {
					list = append(list, absent)
				}
			}
		}
	}
	return list
}

// AbsentPrincipal is a pattern of a route's principals that no live key matches.
type AbsentPrincipal struct {
	Route   string
	Pattern string
	Key     string // the principal of the key whose name the pattern is, which does not count; or empty
	Similar string // a principal that was probably meant, or empty
}

// AbsentPrincipals lists the principals of routes that no live key has: their keys may come later, or the names are mistyped. Without any
// key it says nothing.
func (t *Table) AbsentPrincipals(live []state.Key) (list []AbsentPrincipal) {
	if len(live) == 0 {
		return nil
	}
	principals := make([]string, len(live))
	for i := range live {
		principals[i] = live[i].Principal()
	}
	for _, r := range t.routes {
		for _, pattern := range r.Principals {
			if slices.ContainsFunc(principals, func(p string) bool { return state.MatchGlob(pattern, p) }) {
				continue
			}
			absent := AbsentPrincipal{Route: r.Name, Pattern: pattern}
			if i := slices.IndexFunc(live, func(k state.Key) bool { return k.Name == strings.TrimPrefix(pattern, "key:") }); i >= 0 {
				absent.Key = principals[i]
			} else if similar := spelling.Models(pattern, principals, 1); len(similar) > 0 {
				absent.Similar = similar[0]
			}
			list = append(list, absent)
		}
	}
	return list
}
