package route

import (
	"iter"
	"slices"
	"strings"
)

// limits names what a Route denies its callers that the same model under its own name would give them: the principals it
// is for, caps, refused members, the total time, the length of the queue. base is a route without settings of its own. Defaults are no
// limits: a caller overrides them.
func (r *Route) limits(base *Route) (names []string) {
	if !everyone(r.Principals) {
		names = append(names, "principals")
	}
	if len(r.Parameters.Caps) > 0 {
		names = append(names, "caps")
	}
	if len(r.Parameters.Refuse) > 0 {
		names = append(names, "refuse")
	}
	if tighter(int64(r.Timeouts.Total), int64(base.Timeouts.Total)) {
		names = append(names, "timeouts.total")
	}
	if tighter(int64(r.QueueLimit), int64(base.QueueLimit)) {
		names = append(names, "queue_limit")
	}
	return names
}

// tighter compares two limits of which 0 is none, or one of the Edge's that the file does not know.
func tighter(limit, base int64) bool { return limit > 0 && (base == 0 || limit < base) }

// SameModel reports whether two names differ only in what ReservedFor does not tell apart.
func SameModel(a, b string) bool { return sameModel(a) == sameModel(b) }

// sameModel is one key for all spellings that a provider may take for one model: Ollama ignores case, and reads a name
// without a tag as the tag "latest".
func sameModel(name string) string {
	return strings.TrimSuffix(strings.ToLower(name), latest)
}

// latest is the tag of an Ollama model whose name has none.
const latest = ":latest"

// OtherSpelling is Ollama's other name of the same model, with the tag "latest" or without it; empty if there is none.
func OtherSpelling(model string) string {
	if name, ok := strings.CutSuffix(model, latest); ok {
		if OtherSpelling(name) != model {
			return "" // a tag is behind another one
		}
		return name
	}
	if strings.Contains(model[strings.LastIndexByte(model, '/')+1:], ":") {
		return ""
	}
	return model + latest
}

// ModelAt returns the name under which a provider is asked for the target's model: its own, or Ollama's other spelling of it where
// the provider offers that alone. ok is false where it offers neither.
func (t *Target) ModelAt(offers func(model string) bool) (model string, ok bool) {
	if offers(t.Model) {
		return t.Model, true
	}
	other := OtherSpelling(t.Model)
	return other, other != "" && offers(other)
}

// reserve finds the models that are reached only through their routes. It runs once the Table has all routes.
func (t *Table) reserve() {
	t.selected, t.reserved, t.owned = map[string]bool{}, map[string]*Route{}, map[string]*Route{}
	for _, r := range t.routes {
		for _, name := range slices.Concat([]string{r.Name}, r.Aliases) {
			if other := OtherSpelling(name); other != "" && !r.isAny(name) {
				t.owned[other] = r
			}
		}
		bound := len(r.limits(&t.base)) > 0
		r.limited = len(t.Limits(r)) > 0
		for target := range r.targets() {
			t.selected[target.Model] = true
			// Under its own name the model would be called without the credential that the target is for.
			if key := sameModel(target.Model); (bound || target.Slot != "") && t.reserved[key] == nil {
				t.reserved[key] = r
			}
		}
	}
}

// isAny reports whether the route is for whatever offers the model of that name.
func (r *Route) isAny(name string) bool {
	for target := range r.targets() {
		if !SameModel(target.Model, name) || target.Node != "" || target.Provider != "" || len(target.Labels) > 0 || target.Slot != "" {
			return false
		}
	}
	return true
}

// OwnedBy returns the route of the file that a model's name means, although the file has Ollama's other spelling of it alone:
// Ollama's clients know each route by its name with a tag, and a Node that offers a model of that name must not get what is for the
// route's targets. It returns nil where there is none, where the file has the name itself, and for a route that is for
// whatever offers the model.
func (t *Table) OwnedBy(model string) *Route {
	if t.byName[model] != nil {
		return nil
	}
	return t.owned[model]
}

// targets yields the targets of all groups.
func (r *Route) targets() iter.Seq[*Target] {
	return func(yield func(*Target) bool) {
		for _, g := range r.Groups {
			for i := range g.Targets {
				if !yield(&g.Targets[i]) {
					return
				}
			}
		}
	}
}

// Names reports whether a route of the file has this name or alias.
func (t *Table) Names(model string) bool { return t.byName[model] != nil }

// Selects reports whether a target of some route of the file has this model's name.
func (t *Table) Selects(model string) bool { return t.selected[model] }

// ReservedFor returns the route through which alone clients reach a model that no route names: a route with limits has a
// target of that name, and the name itself would be a way around them. It returns nil where there is none or advertised
// models are refused anyway, and the first of several. A second spelling of the model (":latest", another case) is the same model.
func (t *Table) ReservedFor(model string) *Route {
	if !t.advertised || t.byName[model] != nil {
		return nil
	}
	return t.reserved[sameModel(model)]
}

// Limits names the settings that make r keep its targets' models to itself, in the words of the file; none where it does
// not. r must be of this Table.
func (t *Table) Limits(r *Route) []string {
	names := r.limits(&t.base)
	for target := range r.targets() {
		if target.Slot != "" {
			return append(names, "slot")
		}
	}
	return names
}

// Reserved lists the models of targets that ReservedFor keeps from being served under their own names, in order.
func (t *Table) Reserved() (names []string) {
	for model := range t.selected {
		if t.ReservedFor(model) != nil {
			names = append(names, model)
		}
	}
	slices.Sort(names)
	return names
}

// servesAdvertised reports whether a model that no route names is served under its own name.
func (t *Table) servesAdvertised(model string) bool {
	return t.advertised && t.ReservedFor(model) == nil && t.OwnedBy(model) == nil
}
