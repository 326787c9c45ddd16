package gateway

import (
	"strings"

	"iop/execution/safetext"
	"iop/gateway/route"
	"iop/gateway/spelling"
	"iop/openai"
	"iop/state"
)

// latest is the tag of an Ollama model whose name has none.
const latest = ":latest"

// routeFor finds the route of the model that a client names, and the name that the Edge goes by from then on: the client's
// own, or Ollama's other spelling of it. The key's models, the route, its limits and what the provider is asked for follow
// from that name alone.
//
// The client's spelling comes first where a route of the file has it, or where something in service offers it; then the
// other one, if that is in service, or is known and the client's is not.
func (s *Server) routeFor(key *state.Key, fam openai.Family, model string) (name string, r *route.Route, e *openai.Error) {
	table := s.routing.table.Load()
	exact := routeOf(table, key, model)
	if exact != nil && (!exact.Advertised || s.adm.Serves(exact)) {
		return model, exact, nil
	}
	if other := route.OtherSpelling(model); other != "" {
		o := routeOf(table, key, other)
		if o != nil && (s.adm.Serves(o) || s.adm.Knows(o) && (exact == nil || !s.adm.Knows(exact))) {
			return other, o, nil
		}
	}
	switch {
	case exact != nil:
		return model, exact, nil
	case key.AllowsModel(model): // also if it is there, for others: who may not use it learns nothing of it
		e = openai.ModelNotFound(model)
	default:
		e = openai.ModelNotAllowed(model)
	}
	s.suggest(e, key, fam, model)
	return model, nil, e
}

// routeOf is the route of that very name if the key may use it, else nil.
func routeOf(table *route.Table, key *state.Key, name string) *route.Route {
	if r := table.Resolve(name); r != nil && mayUse(key, r, name) {
		return r
	}
	return nil
}

// maxSuggested is how many names a client is shown that it may have meant.
const maxSuggested = 3

// suggest adds to e, which refuses the model, what the caller may have meant, of the models that the key may use, and where
// their list is. It says nothing of any other model.
func (s *Server) suggest(e *openai.Error, key *state.Key, fam openai.Family, model string) {
	if r := s.routing.table.Load().ReservedFor(model); r != nil && mayUse(key, r, r.Name) {
		e.Message += " Its name here is '" + safetext.Escape(r.Name) + "'."
		return
	}
	list := s.modelsFor(key)
	if len(list) == 0 {
		e.Message += " No model that this API key may use is in service right now."
		return
	}
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].ID
	}
	for i, name := range spelling.Models(model, names, maxSuggested) {
		e.Message += [...]string{" Did you mean '", "' or '", "' or '"}[i] + safetext.Escape(safetext.MaskKeys(name))
	}
	if !strings.HasSuffix(e.Message, ".") {
		e.Message += "'?"
	}
	e.Message += " GET " + listPath(fam) + " lists the models that this API key may use."
}

// listPath is where the family's clients list models.
func listPath(fam openai.Family) string {
	if fam == openai.FamilyOllama {
		return "/api/tags"
	}
	return modelsPath
}
