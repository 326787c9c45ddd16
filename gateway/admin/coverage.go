package admin

import (
	"fmt"
	"strings"
	"time"

	"iop/execution"
	"iop/gateway/route"
	"iop/state"
)

// Coverage says how a table of routes, what Nodes offer now and the live API keys fit together.
type Coverage struct {
	// Unrouted are models that Nodes offer and no route names or selects. What becomes of them is the file's
	// advertised_models.
	Unrouted []string        `json:"unrouted"`
	Reserved []ReservedModel `json:"reserved"` // empty where advertised models are refused anyway
	Missing  []MissingTarget `json:"missing"`
	// Absent are principals of routes that no live key has. Empty where there are no keys yet.
	Absent []AbsentPrincipal `json:"absent"`
	// Slots are those of targets that do not exist.
	Slots []AbsentSlot `json:"absent_slots"`
	// Unknown are defaults and caps that no operation or engine is known to have.
	Unknown []UnknownParameter `json:"unknown"`
}

// AbsentPrincipal is a pattern of a route's principals that no live key matches.
type AbsentPrincipal struct {
	Route     string `json:"route"`
	Principal string `json:"principal"`
	Key       string `json:"key"`     // the principal of the key whose name the pattern is, or empty
	Similar   string `json:"similar"` // a principal that was probably meant, or empty
}

// String is the principal in a line.
func (p AbsentPrincipal) String() string {
	line := p.Route + ": " + p.Principal
	switch {
	case p.Key != "":
		return line + "; the principal of the key with this name is " + p.Key
	case p.Similar != "":
		return line + "; did you mean " + p.Similar + "?"
	}
	return line
}

// AbsentPrincipals lists the principals of a table's routes that none of the keys has, as far as they are live.
func AbsentPrincipals(table *route.Table, keys []state.Key) []AbsentPrincipal {
	live, now, list := []state.Key{}, time.Now(), []AbsentPrincipal{}
	for i := range keys {
		if k := &keys[i]; k.RevokedAt.IsZero() && (k.Expires.IsZero() || k.Expires.After(now)) {
			live = append(live, *k)
		}
	}
	for _, p := range table.AbsentPrincipals(live) {
		list = append(list, AbsentPrincipal{Route: p.Route, Principal: p.Pattern, Key: p.Key, Similar: p.Similar})
	}
	return list
}

// AbsentSlot is a slot of a route's target that does not exist.
type AbsentSlot struct {
	Route   string             `json:"route"`
	Slot    execution.SlotName `json:"slot"`
	Similar string             `json:"similar"` // the slot that was probably meant, or empty
}

// String is the slot in a line.
func (s AbsentSlot) String() string {
	if s.Similar != "" {
		return fmt.Sprintf("%s: %s; did you mean %s?", s.Route, s.Slot, s.Similar)
	}
	return fmt.Sprintf("%s: %s", s.Route, s.Slot)
}

// AbsentSlots lists the slots of a table's targets that are none of those of the state.
func AbsentSlots(table *route.Table, slots []state.Slot) []AbsentSlot {
	names, list := make([]execution.SlotName, len(slots)), []AbsentSlot{}
	for i := range slots {
		names[i] = slots[i].Name
	}
	for _, s := range table.AbsentSlots(names) {
		list = append(list, AbsentSlot(s))
	}
	return list
}

// UnknownParameter is a default or a cap of a route that no operation or engine is known to have.
type UnknownParameter struct {
	Route   string `json:"route"`
	Path    string `json:"path"`    // e.g. "parameters.caps.max_token"
	Similar string `json:"similar"` // the name that was probably meant, or empty
}

// String is the parameter in a line.
func (p UnknownParameter) String() string {
	if p.Similar != "" {
		return fmt.Sprintf("%s: %s; did you mean %s?", p.Route, p.Path, p.Similar)
	}
	return p.Route + ": " + p.Path
}

// UnknownParameters lists the probably mistyped defaults and caps of a table.
func UnknownParameters(table *route.Table) []UnknownParameter {
	list := []UnknownParameter{}
	for _, p := range table.UnknownParameters() {
		list = append(list, UnknownParameter(p))
	}
	return list
}

// ReservedModel is a model that is not served under its own name, because a route with limits has it as a target.
type ReservedModel struct {
	Model  string   `json:"model"`
	Route  string   `json:"route"`
	Limits []string `json:"limits"` // of the route, as the file names them
}

// String is the reservation in a line.
func (m ReservedModel) String() string {
	return fmt.Sprintf("%s: %s (%s)", m.Model, m.Route, strings.Join(m.Limits, ", "))
}

// MissingTarget is a target of a route that no connected Node offers.
type MissingTarget struct {
	Route string `json:"route"`
	TargetSpec
	Similar string `json:"similar"` // an offered model whose name differs only in case or in ":latest", or empty
}

// String is the target in a line.
func (m MissingTarget) String() string {
	where := ""
	if m.Node != "" {
		where += " on " + m.Node
	}
	if m.Provider != "" {
		where += " at " + m.Provider
	}
	if m.Similar != "" {
		where += ", but " + m.Similar
	}
	return fmt.Sprintf("%s: %s%s", m.Route, m.TargetSpec.Model, where)
}
