package gateway

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"iop/gateway/spelling"
	"iop/openai"
)

// withoutSlash gives a client of the API whose base URL ends in a slash too many the path that it meant. It stands before
// everything that decides by the path. No other spelling is mended: what a proxy in front takes for one path must not be
// another one here.
func withoutSlash(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path, ok := strings.CutSuffix(r.URL.Path, "/"); ok && path != "" && r.URL.RawPath == "" && isAPI(path) {
			inner := new(http.Request)
			*inner = *r
			inner.URL = &url.URL{Path: path, RawQuery: r.URL.RawQuery}
			inner.RequestURI = inner.URL.RequestURI()
			r = inner
		}
		next.ServeHTTP(w, r)
	})
}

// isAPI reports whether the path is one that SDKs call, none of the Nodes' or of the Edge's own.
func isAPI(path string) bool {
	return operations[path] != nil || ollamaDocuments[path] != nil || path == modelsPath ||
		strings.HasPrefix(path, modelPrefix) && len(path) > len(modelPrefix) && !strings.HasSuffix(path, "/")
}

// noPath answers a path at which nothing is served: it says which one was meant, as far as that can be told, and what base
// URL leads there. The error has the form of the family that was meant.
func (s *Server) noPath(w http.ResponseWriter, r *http.Request) {
	shown, path := withoutKey(r.URL.Path), r.URL.Path
	e := openai.UnknownPath(shown)
	fam := familyOf(path)
	if len(r.Header["Anthropic-Version"]) > 0 && fam == openai.FamilyOpenAI {
		fam = openai.FamilyAnthropic
	}
	if right := meant(path); right != "" {
		fam = familyOf(right)
		e.Message += " Use " + right + "." + baseFor(right)
	} else {
		e.Message += adviceOn(path)
	}
	hurryBody(w, r)
	openai.WriteError(w, fam, newRequestID(), e)
}

// baseOf says what the base URL of a family's clients is.
var baseOf = map[openai.Family]string{
	openai.FamilyOpenAI:    "The base URL for OpenAI SDKs is this server's address followed by /v1, once, with no slash or path behind it.",
	openai.FamilyAnthropic: "The base URL for Anthropic SDKs is this server's address without /v1 or any other path: the SDK adds it.",
	openai.FamilyOllama:    "The base URL for Ollama clients (OLLAMA_HOST) is this server's address without /api or any other path: the client adds it.",
}

// baseFor is what leads to a path. Some of the API's lie outside of what SDKs take for their base.
func baseFor(path string) string {
	fam := familyOf(path)
	if fam == openai.FamilyOpenAI && !strings.HasPrefix(path, "/v1/") {
		return ""
	}
	return " " + baseOf[fam]
}

// operatorsOllama are paths of Ollama's that change or move models.
var operatorsOllama = []string{"/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs"}

// adviceOn is what else can be said about a path at which nothing is served.
func adviceOn(path string) string {
	path = "/" + strings.Trim(path, "/")
	first, _, _ := strings.Cut(path[1:], "/")
	switch {
	case slices.ContainsFunc(operatorsOllama, func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") }):
		return " The operator of this server pulls, creates and deletes models."
	case first != "tunnel" && (path == "/v1" || strings.HasSuffix(path, "/v1")):
		return " Requests go to a path below a base URL, such as /v1/chat/completions. " + baseOf[openai.FamilyOpenAI]
	case path == "/api" || strings.HasSuffix(path, "/api"):
		return " Requests go to a path below a base URL, such as /api/chat. " + baseOf[openai.FamilyOllama]
	case strings.HasPrefix(path, "/v1/v1/"), strings.HasPrefix(path, "/api/v1/"):
	case first == "v1" || first == "api" || first == "iop" || first == "tunnel":
		return "" // the base URL was right
	}
	return " The base URL is this server's address: followed by /v1 for OpenAI SDKs, alone for Anthropic SDKs and Ollama clients."
}

const (
	// maxMeant bounds the length of a path that is looked into, in bytes, and maxMeantParts its parts.
	maxMeant      = 256
	maxMeantParts = 12
	// someModel stands for a model's name in a path that is shown: the client's own may be anything.
	someModel = modelPrefix + "{model}"
)

// meant is the path of the API that another path was meant for, empty if there is none: the longest end of it that is one, or
// that would be with what the base URL lacks. It holds nothing that the client wrote.
func meant(path string) string {
	if len(path) > maxMeant {
		return ""
	}
	parts := strings.FieldsFunc(strings.ToLower(path), func(r rune) bool { return r == '/' })
	if len(parts) > maxMeantParts {
		return ""
	}
	for i := range parts {
		end := "/" + strings.Join(parts[i:], "/")
		switch {
		case operations[end] != nil, ollamaDocuments[end] != nil, end == modelsPath:
			return end
		case strings.HasPrefix(end, modelPrefix), strings.HasPrefix("/v1"+end, modelPrefix):
			return someModel
		}
		if full := "/v1" + end; operations[full] != nil || full == modelsPath {
			return full
		}
		if full := "/api" + end; i == 0 && (operations[full] != nil || ollamaDocuments[full] != nil) {
			return full
		}
	}
	return misspelt("/" + strings.Join(parts, "/"))
}

// misspelt is the path of the API that another one is, but for one letter: a plural is the usual mistake.
func misspelt(path string) string {
	const limit = 2 // of slips: /api/push is not /api/ps
	for _, right := range apiPaths {
		if spelling.Distance(path, right, limit) < limit || spelling.Distance("/v1"+path, right, limit) < limit {
			return right
		}
	}
	return ""
}

// apiPaths are all paths of isAPI but those of single models, in order.
var apiPaths = slices.Sorted(maps.Keys(func() map[string]bool {
	all := map[string]bool{modelsPath: true}
	for path := range operations {
		all[path] = true
	}
	for path := range ollamaDocuments {
		all[path] = true
	}
	return all
}()))

// noMethod answers a path that takes another method.
func (s *Server) noMethod(w http.ResponseWriter, r *http.Request, method string) {
	path := r.URL.Path
	e := openai.MethodNotAllowed(withoutKey(path), method)
	switch {
	case path == "/":
		e.Message += " Requests go to paths such as /v1/chat/completions. " + baseOf[openai.FamilyOpenAI]
	case method == http.MethodPost && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		// net/http's client, curl -L, requests and others turn a POST into a GET where a 301 or 302 leads on.
		e.Message += " If the client sent a POST, a redirect on the way, such as from http:// to https://, made it a " + r.Method +
			": use the URL that the redirect leads to."
	}
	s.answer(w, r, e)
}
