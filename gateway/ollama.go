package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"iop/openai"
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
	answer func(s *Server, w http.ResponseWriter, r *http.Request, key *state.Key) (any, *openai.Error)
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
		var v any
		if v, e = doc.answer(s, w, r, key); e == nil {
			var err error
			if body, err = json.Marshal(v); err != nil {
				e = openai.Internal()
			}
		}
	}
	if e != nil {
		s.answer(w, r, e)
		return
	}
	writeJSON(w, body)
}

// ollamaModel is a model as /api/tags and /api/ps list it. What only one server could know of its file is zero.
type ollamaModel struct {
	Name      string        `json:"name"`
	Model     string        `json:"model"`
	Modified  *time.Time    `json:"modified_at,omitempty"`
	Size      int64         `json:"size"`
	Digest    string        `json:"digest"`
	Details   ollamaDetails `json:"details"`
	ExpiresAt *time.Time    `json:"expires_at,omitempty"`
	SizeVRAM  *int64        `json:"size_vram,omitempty"`
}

type ollamaDetails struct {
	ParentModel  string   `json:"parent_model"`
	Format       string   `json:"format"`
	Family       string   `json:"family"`
	Families     []string `json:"families"`
	Parameters   string   `json:"parameter_size"`
	Quantization string   `json:"quantization_level"`
}

// ollamaName is a model's name as Ollama writes it: with a tag, always.
func ollamaName(id string) string {
	if other := otherSpelling(id); strings.HasSuffix(other, latest) {
		return other
	}
	return id
}

// ollamaDigest stands for the hash of a model's file: clients cut it, and compare it. It is that of the name.
func ollamaDigest(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

func ollamaModelOf(m *openai.Model) ollamaModel {
	name := ollamaName(m.ID)
	return ollamaModel{Name: name, Model: name, Digest: ollamaDigest(name), Details: ollamaDetails{Families: []string{}}}
}

func (s *Server) ollamaTags(_ http.ResponseWriter, _ *http.Request, key *state.Key) (any, *openai.Error) {
	models := []ollamaModel{}
	for _, m := range s.modelsFor(key) {
		v := ollamaModelOf(&m)
		modified := time.Unix(m.Created, 0).UTC()
		v.Modified = &modified
		models = append(models, v)
	}
	return map[string]any{"models": models}, nil
}

func (s *Server) ollamaLoaded(_ http.ResponseWriter, _ *http.Request, key *state.Key) (any, *openai.Error) {
	loaded := map[string]bool{}
	for _, m := range s.reg.Models() {
		loaded[m.ID] = m.Loaded
	}
	models, expires, none := []ollamaModel{}, time.Now().Add(time.Hour).UTC(), int64(0) // when, only its Node knows
	for _, m := range s.modelsFor(key) {
		if s.routeLoaded(m.ID, loaded) {
			v := ollamaModelOf(&m)
			v.ExpiresAt, v.SizeVRAM = &expires, &none
			models = append(models, v)
		}
	}
	return map[string]any{"models": models}, nil
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

func (s *Server) ollamaShow(w http.ResponseWriter, r *http.Request, key *state.Key) (any, *openai.Error) {
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
			return map[string]any{
				"modelfile": "", "parameters": "", "template": "", "details": ollamaModelOf(&m).Details,
				"model_info":   map[string]any{"general.architecture": "", "general.basename": name},
				"capabilities": []string{"completion", "tools", "vision", "thinking"}, // what is refused, the run is told
				"modified_at":  time.Unix(m.Created, 0).UTC(),
			}, nil
		}
	}
	return nil, openai.ModelNotFound(name)
}

func (s *Server) ollamaVersion(http.ResponseWriter, *http.Request, *state.Key) (any, *openai.Error) {
	return map[string]string{"version": ollamaVersion}, nil
}
