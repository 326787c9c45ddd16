package gateway

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"iop/openai"
	"iop/openai/ollama"
	"iop/state"
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
	case ollamaDocuments[path] != nil, path == "/":
		s.serveOllama(w, inner, path)
	default:
		hurryBody(w, r)
		openai.WriteError(w, openai.FamilyOllama, newRequestID(), openai.UnknownPath(path))
	}
}

// serveOllama answers one of Ollama's paths that are no runs.
func (s *Server) serveOllama(w http.ResponseWriter, r *http.Request, path string) {
	if path == "/" { // `ollama` and others ask whether there is a server at all
		if s.allow(w, r, http.MethodGet) {
			plain(w, http.StatusOK, "Ollama is running")
		}
		return
	}
	doc := ollamaDocuments[path]
	if !s.allow(w, r, doc.method) {
		return
	}
	key, e := s.authenticate(r, openai.FamilyOllama)
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
	if other := otherSpelling(id); strings.HasSuffix(other, latest) {
		return other
	}
	return id
}

// ollamaModel is a model as it is listed. What only one server could know of its file stays unknown.
func ollamaModel(m *openai.Model) ollama.Model {
	v := ollama.Model{Name: ollamaName(m.ID)}
	if m.Created > 0 {
		v.ModifiedAt = time.Unix(m.Created, 0)
	}
	return v
}

func (s *Server) ollamaTags(_ http.ResponseWriter, _ *http.Request, key *state.Key) ([]byte, *openai.Error) {
	list := s.modelsFor(key)
	models := make([]ollama.Model, len(list))
	for i := range list {
		models[i] = ollamaModel(&list[i])
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
			models = append(models, ollama.Loaded{Model: ollamaModel(&m)})
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
			if loaded[g.Targets[i].Model] {
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
		return nil, openai.InvalidRequest("", "the request body must be a JSON object that names a model")
	}
	name := ask.Model
	if name == "" {
		name = ask.Name // what it was called once
	}
	if name == "" {
		return nil, openai.ModelRequired()
	}
	name = s.routedName(openai.FamilyOllama, key, name)
	if _, e := s.routeFor(key, name); e != nil {
		return nil, e
	}
	for _, m := range s.modelsFor(key) {
		if m.ID == name {
			return ollama.AppendShow(nil, ollama.Show{
				Capabilities: ollamaCapabilities, ModifiedAt: ollamaModel(&m).ModifiedAt,
				ModelInfo: json.RawMessage(`{"general.architecture":"unknown"}`), // `ollama show` fails without it
			}), nil
		}
	}
	return nil, openai.ModelNotFound(name)
}

// ollamaCapabilities are what clients may try: what a model's provider can't do, the run is told.
var ollamaCapabilities = []string{"completion", "tools", "vision", "thinking"}

func (s *Server) ollamaVersion(http.ResponseWriter, *http.Request, *state.Key) ([]byte, *openai.Error) {
	return ollama.AppendVersion(nil, ollamaVersion), nil
}
