package gateway

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"iop/gateway/route"
	"iop/openai"
	"iop/openai/ollama"
	"iop/state"
	"iop/tunnel"
)

const (
	// keyPrefix is before the key in the paths of clients that can't send a header: /k/{key}/api/chat.
	keyPrefix = "/k/"
	// ollamaVersion is the version of Ollama whose API is spoken: clients ask for it to know what they may use.
	ollamaVersion = "0.14.0"
	// maxShowBody bounds a request that names a model and no more.
	maxShowBody = 64 << 10
)

// ollamaDocument answers one of Ollama's paths that is no run, for a caller who was let in.
type ollamaDocument struct {
	method string
	answer func(s *Server, w http.ResponseWriter, r *http.Request, key *state.Key) ([]byte, *openai.Error)
}

// ollamaDocuments are by path. They speak of all Nodes at once, as far as the key may use what they serve.
var ollamaDocuments = map[string]*ollamaDocument{
	"/api/tags":    {http.MethodGet, (*Server).ollamaTags},
	"/api/ps":      {http.MethodGet, (*Server).ollamaLoaded},
	"/api/show":    {http.MethodPost, (*Server).ollamaShow},
	"/api/version": {http.MethodGet, (*Server).ollamaVersion},
}

// serveKeyed serves Ollama's paths to a client that has no header to put its key into: rest is the key and the path
// behind it. The key goes where all others are, and the path with it nowhere.
func (s *Server) serveKeyed(w http.ResponseWriter, r *http.Request, rest string) {
	key, path, _ := strings.Cut(rest, "/")
	path = "/" + path
	if p, ok := strings.CutSuffix(path, "/"); ok && r.URL.RawPath == "" && isAPI(p) {
		path = p
	}
	inner := new(http.Request)
	*inner = *r
	inner.URL = &url.URL{Path: path, RawQuery: r.URL.RawQuery}
	inner.RequestURI = inner.URL.RequestURI()
	inner.Header = r.Header.Clone()
	inner.Header.Add("Authorization", "Bearer "+key) // beside another one it is no key, as it is not clear which is meant
	op := operations[path]
	switch {
	case op != nil && familyOf(path) == openai.FamilyOllama:
		if s.allow(w, inner, op.Method) {
			s.serveOperation(w, inner, op)
		}
	case path == "/":
		s.serveRunning(w, inner)
	case ollamaDocuments[path] != nil:
		s.serveOllama(w, inner, path)
	default:
		s.noKeyedPath(w, r, path)
	}
}

// noKeyedPath answers a path behind a key at which nothing is served: only Ollama's paths are, as other clients have a header.
func (s *Server) noKeyedPath(w http.ResponseWriter, r *http.Request, path string) {
	e := openai.UnknownPath(withoutKey(path))
	if right := meant(path); right != "" && familyOf(right) != openai.FamilyOllama {
		e.Message += " A key in the path is for Ollama's paths only; send it in the header 'Authorization: Bearer <key>'." + baseFor(right)
	} else if right != "" {
		e.Message += " Use " + right + " directly behind the key."
	} else {
		e.Message += adviceOn(path)
	}
	hurryBody(w, r)
	openai.WriteError(w, openai.FamilyOllama, newRequestID(), e)
}

// serveRunning tells Ollama's clients, which ask first, that there is a server.
func (s *Server) serveRunning(w http.ResponseWriter, r *http.Request) {
	if s.allow(w, r, http.MethodGet) {
		plain(w, http.StatusOK, "Ollama is running")
	}
}

// serveOllama answers one of Ollama's paths that are no runs.
func (s *Server) serveOllama(w http.ResponseWriter, r *http.Request, path string) {
	doc := ollamaDocuments[path]
	if !s.allow(w, r, doc.method) {
		return
	}
	key, e := s.authenticate(w, r, openai.FamilyOllama)
	var body []byte
	if e == nil {
		body, e = doc.answer(s, w, r, key)
	}
	if e != nil {
		s.answer(w, r, e)
		return
	}
	writeJSON(w, openai.FamilyOllama, body)
}

// ollamaName is a model's name as Ollama writes it: with a tag, always.
func ollamaName(id string) string {
	if other := route.OtherSpelling(id); strings.HasSuffix(other, latest) {
		return other
	}
	return id
}

// ollamaModel is a model as it is listed. What no Node tells of its file stays unknown.
func (s *Server) ollamaModel(m *openai.Model) ollama.Model {
	v := ollama.Model{Name: ollamaName(m.ID), ModifiedAt: ollamaTime(m.Created)}
	d := s.detailsOf(m.ID)
	if d == nil {
		return v
	}
	v.Size, v.Digest, v.Capabilities = d.Size, d.Digest, d.Capabilities
	v.Details = ollama.Details{Family: d.Family, ParameterSize: d.ParameterSize, QuantizationLevel: d.Quantization}
	if d.Family != "" {
		v.Details.Families = []string{d.Family}
	}
	if d.Modified > 0 {
		v.ModifiedAt = ollamaTime(d.Modified)
	}
	return v
}

// ollamaTime is a time in Unix seconds; zero where it is unknown, and where it can't be written: JSON's years have four
// digits.
func ollamaTime(seconds int64) time.Time {
	if t := time.Unix(seconds, 0).UTC(); seconds > 0 && t.Year() > 0 && t.Year() < 10_000 {
		return t
	}
	return time.Time{}
}

// detailsOf is what Nodes say of the model's file, or nil. Of a route that stands for something else it is not told what
// is behind it.
func (s *Server) detailsOf(name string) *tunnel.ModelDetails {
	r := s.routing.table.Load().Resolve(name)
	if r == nil || !meansItsName(r) {
		return nil
	}
	models := s.reg.Models()
	at := func(id string) (int, bool) {
		return slices.BinarySearchFunc(models, id, func(m tunnel.ModelInfo, id string) int { return cmp.Compare(m.ID, id) })
	}
	i, ok := at(r.Name) // the name may be an alias
	if !ok && !r.Advertised {
		i, ok = at(route.OtherSpelling(r.Name))
	}
	if !ok {
		return nil
	}
	return models[i].Details
}

// meansItsName reports whether the route is the model of its name, wherever that is served.
func meansItsName(r *route.Route) bool {
	if r.Advertised {
		return true
	}
	if len(r.Groups) != 1 || len(r.Groups[0].Targets) != 1 {
		return false
	}
	t := &r.Groups[0].Targets[0]
	return t.Model == r.Name && t.Node == "" && t.Provider == "" && len(t.Labels) == 0 && t.Slot == ""
}

func (s *Server) ollamaTags(_ http.ResponseWriter, _ *http.Request, key *state.Key) ([]byte, *openai.Error) {
	list := s.modelsFor(key)
	models := make([]ollama.Model, len(list))
	for i := range list {
		models[i] = s.ollamaModel(&list[i])
	}
	return ollama.AppendTags(nil, models...), nil
}

func (s *Server) ollamaLoaded(_ http.ResponseWriter, _ *http.Request, key *state.Key) ([]byte, *openai.Error) {
	loaded := map[string]bool{}
	for _, m := range s.reg.Models() {
		loaded[m.ID] = m.Loaded
	}
	var models []ollama.Loaded
	for _, m := range s.modelsFor(key) {
		if s.routeLoaded(m.ID, loaded) {
			models = append(models, ollama.Loaded{Model: s.ollamaModel(&m)})
		}
	}
	return ollama.AppendPS(nil, models...), nil
}

// routeLoaded reports whether some Node has the model, or one of the targets of its route, in memory.
func (s *Server) routeLoaded(name string, loaded map[string]bool) bool {
	r := s.routing.table.Load().Resolve(name)
	if r == nil || r.Advertised || len(r.Groups) == 0 {
		return loaded[name]
	}
	for _, g := range r.Groups {
		for i := range g.Targets {
			model, ok := g.Targets[i].ModelAt(func(model string) bool { _, offered := loaded[model]; return offered })
			if ok && loaded[model] {
				return true
			}
		}
	}
	return false
}

func (s *Server) ollamaShow(w http.ResponseWriter, r *http.Request, key *state.Key) ([]byte, *openai.Error) {
	bodyWithin(w, r, operatorBody)
	var ask struct{ Model, Name string }
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxShowBody)).Decode(&ask); err != nil {
		return nil, openai.InvalidRequest("", "the request body must be a JSON object with a model")
	}
	name := ask.Model
	if name == "" {
		name = ask.Name // what it was called once
	}
	if name == "" {
		return nil, openai.ModelRequired()
	}
	m, e := s.modelFor(key, openai.FamilyOllama, name)
	if e != nil {
		return nil, e
	}
	return s.showModel(m), nil
}

func (s *Server) showModel(m *openai.Model) []byte {
	v, contextLength := s.ollamaModel(m), int64(0)
	if d := s.detailsOf(m.ID); d != nil {
		contextLength = d.ContextLength
	}
	capabilities := v.Capabilities
	if len(capabilities) == 0 {
		capabilities = ollamaCapabilities
	}
	return ollama.AppendShow(nil, ollama.Show{
		Details: v.Details, Capabilities: capabilities, ModifiedAt: v.ModifiedAt, ModelInfo: ollama.ModelInfo(v.Details.Family, contextLength),
	})
}

// ollamaCapabilities are what clients may try where nobody says what the model can do: what it can't, the run is told.
var ollamaCapabilities = []string{"completion", "tools", "vision", "thinking"}

func (s *Server) ollamaVersion(http.ResponseWriter, *http.Request, *state.Key) ([]byte, *openai.Error) {
	return ollama.AppendVersion(nil, ollamaVersion), nil
}
