package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"
)

// What a pull looks like: one layer of so many bytes, in so many steps.
const (
	pullBytes = 4661211424
	pullSteps = 40
)

// missingPrefix begins the names of models that are in no registry.
const missingPrefix = "missing"

// decodeOllamaPull reads POST /api/pull: a model comes in steps, over the time that the configuration says, and is known
// from then on.
func decodeOllamaPull(x *exchange, body []byte) (*ask, error) {
	name, stream, err := ollamaModelName(body)
	if err != nil {
		return nil, err
	}
	if name == "" {
		return nil, &requestError{"model", "model is required"}
	}
	return &ask{anyModel: true, n: 1, stream: stream, serve: func(x *exchange, _ *ask) error {
		return x.pull(name, stream)
	}}, nil
}

func ollamaModelName(body []byte) (name string, stream bool, err error) {
	var in struct {
		Model  string `json:"model"`
		Name   string `json:"name"` // as it was called before
		Stream *bool  `json:"stream"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return "", false, err
	}
	if in.Model == "" {
		in.Model = in.Name
	}
	return strings.TrimSpace(in.Model), in.Stream == nil || *in.Stream, nil
}

func (x *exchange) pull(name string, stream bool) error {
	say := func(v map[string]any) error {
		if !stream {
			return nil
		}
		x.writeHead(http.StatusOK, ndjsonType, unset)
		return x.line(marshal(v))
	}
	if err := say(map[string]any{"status": "pulling manifest"}); err != nil {
		return err
	}
	if strings.HasPrefix(name, missingPrefix) {
		return x.pullMissing(stream)
	}
	sum := sha256.Sum256([]byte(name))
	digest := hex.EncodeToString(sum[:])
	begun := time.Now()
	for i := range pullSteps + 1 {
		if err := x.waitUntil(begun.Add(x.s.config.Pull * time.Duration(i) / pullSteps)); err != nil {
			return err
		}
		progress := map[string]any{"status": "pulling " + digest[:12], "digest": "sha256:" + digest, "total": pullBytes}
		if i > 0 {
			progress["completed"] = pullBytes * i / pullSteps
		}
		if err := say(progress); err != nil {
			return err
		}
	}
	for _, status := range []string{"verifying sha256 digest", "writing manifest"} {
		if err := say(map[string]any{"status": status}); err != nil {
			return err
		}
	}
	x.s.addModel(name)
	if !stream {
		return x.deliver("application/json", marshal(map[string]any{"status": "success"}))
	}
	return say(map[string]any{"status": "success"})
}

// pullMissing says so as Ollama does: in a stream that has begun, or as a status.
func (x *exchange) pullMissing(stream bool) error {
	const message = "pull model manifest: file does not exist"
	if !stream {
		return x.refuse(apiError{status: http.StatusInternalServerError, message: message})
	}
	if err := x.line(marshal(map[string]any{"error": message})); err != nil {
		return err
	}
	return errFault
}

// addModel adds a model to those that the server knows.
func (s *Server) addModel(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.models, name) {
		s.models = append(slices.Clone(s.models), name)
	}
}

// decodeOllamaDelete reads DELETE /api/delete.
func decodeOllamaDelete(_ *exchange, body []byte) (*ask, error) {
	name, _, err := ollamaModelName(body)
	if err != nil {
		return nil, err
	}
	return &ask{model: name, n: 1, serve: func(x *exchange, a *ask) error {
		x.s.removeModel(a.model)
		return x.whole(http.StatusOK, "", nil)
	}}, nil
}

func (s *Server) removeModel(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.models = slices.DeleteFunc(slices.Clone(s.models), func(m string) bool { return m == name || m+":latest" == name })
}
