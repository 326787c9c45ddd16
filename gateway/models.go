package gateway

import (
	"net/http"
	"sort"
	"strconv"

	"iop/openai"
	"iop/tunnel"
)

// serveModels lists what can be run now, of what the key may use.
func (s *Server) serveModels(w http.ResponseWriter, r *http.Request) {
	key, e := s.authenticate(r, openai.FamilyOpenAI)
	if e != nil {
		s.answer(w, r, e)
		return
	}
	all := s.reg.Models()
	list := make([]openai.Model, 0, len(all))
	for i := range all {
		if key.AllowsModel(all[i].ID) {
			list = append(list, modelOf(&all[i]))
		}
	}
	writeJSON(w, openai.AppendModelList(nil, list))
}

// serveModel tells of one model. Its id may hold slashes and colons.
func (s *Server) serveModel(w http.ResponseWriter, r *http.Request, id string) {
	key, e := s.authenticate(r, openai.FamilyOpenAI)
	if e != nil {
		s.answer(w, r, e)
		return
	}
	all := s.reg.Models()
	i := sort.Search(len(all), func(i int) bool { return all[i].ID >= id })
	switch {
	case !key.AllowsModel(id):
		s.answer(w, r, openai.ModelNotAllowed(id))
	case i == len(all) || all[i].ID != id:
		s.answer(w, r, openai.ModelNotFound(id))
	default:
		writeJSON(w, openai.AppendModel(nil, modelOf(&all[i])))
	}
}

func modelOf(m *tunnel.ModelInfo) openai.Model {
	return openai.Model{ID: m.ID, Created: m.Created, OwnedBy: m.OwnedBy}
}

func writeJSON(w http.ResponseWriter, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("X-Request-Id", newRequestID())
	_, _ = w.Write(body)
}
