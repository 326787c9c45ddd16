package gateway

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"

	"iop/openai"
	"iop/openai/anthropic"
	"iop/state"
	"iop/tunnel"
)

// serveModels lists what can be run now, of what the key may use.
func (s *Server) serveModels(w http.ResponseWriter, r *http.Request) {
	fam := familyOfRequest(r)
	key, e := s.authenticate(w, r, fam)
	var body []byte
	switch {
	case e != nil:
	case fam == openai.FamilyAnthropic:
		body, e = anthropicModels(s.modelsFor(key), r.URL.Query())
	default:
		body = openai.AppendModelList(nil, s.modelsFor(key))
	}
	if e != nil {
		s.answer(w, r, e)
		return
	}
	writeJSON(w, fam, body)
}

// modelsFor returns the routes that have a target in service and that the key may use, by their names and aliases, and
// the advertised models where they are routes of their own. It is ordered by id.
func (s *Server) modelsFor(key *state.Key) []openai.Model {
	table := s.routing.table.Load()
	var list []openai.Model
	for _, r := range table.Routes() {
		if !s.adm.Serves(r) {
			continue
		}
		for _, name := range append([]string{r.Name}, r.Aliases...) {
			if mayUse(key, r, name) {
				list = append(list, openai.Model{ID: name, OwnedBy: routeOwner})
			}
		}
	}
	if table.ServesAdvertised() {
		all := s.reg.Models()
		list = slices.Grow(list, len(all))
		for i := range all {
			if r := table.Resolve(all[i].ID); r != nil && r.Advertised && mayUse(key, r, all[i].ID) {
				list = append(list, modelOf(&all[i]))
			}
		}
	}
	slices.SortFunc(list, func(a, b openai.Model) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// routeOwner owns the models that are routes of the file: who owns what is behind them is not told.
const routeOwner = "iop"

// serveModel tells of one model. Its id may hold slashes and colons.
func (s *Server) serveModel(w http.ResponseWriter, r *http.Request, id string) {
	fam := familyOfRequest(r)
	key, e := s.authenticate(w, r, fam)
	var m *openai.Model
	if e == nil {
		m, e = s.modelFor(key, fam, id)
	}
	if e != nil {
		s.answer(w, r, e)
		return
	}
	body := openai.AppendModel(nil, *m)
	if fam == openai.FamilyAnthropic {
		body = anthropic.AppendModel(nil, m)
	}
	writeJSON(w, fam, body)
}

// modelFor is the entry of the list of models that a client's name means.
func (s *Server) modelFor(key *state.Key, fam openai.Family, id string) (*openai.Model, *openai.Error) {
	name, r, e := s.routeFor(key, fam, id)
	if e != nil {
		return nil, e
	}
	list := s.modelsFor(key)
	i, ok := slices.BinarySearchFunc(list, name, func(m openai.Model, id string) int { return cmp.Compare(m.ID, id) })
	if !ok && s.adm.Knows(r) { // a run would wait for it
		return nil, openai.ModelAway(id, listPath(fam))
	}
	if !ok {
		e = openai.ModelNotFound(id)
		s.suggest(e, key, fam, id)
		return nil, e
	}
	return &list[i], nil
}

func modelOf(m *tunnel.ModelInfo) openai.Model {
	return openai.Model{ID: m.ID, Created: m.Created, OwnedBy: m.OwnedBy}
}

// writeJSON answers a request that is no run.
func writeJSON(w http.ResponseWriter, fam openai.Family, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	id := newRequestID()
	h.Set("X-Request-Id", id)
	if fam == openai.FamilyAnthropic {
		h.Set("Request-Id", id)
	}
	_, _ = w.Write(body)
}
