package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"iop/gateway/admin"
)

// ollamaData is the part of a Node's page that lists the models of one Ollama.
type ollamaData struct {
	Node, Provider string
	Models         []ollamaModel
	Fault          string // why they are not known
}

// ollamaModel is one model that an Ollama has.
type ollamaModel struct {
	Name     string    `json:"name"`
	Size     int64     `json:"size"` // bytes
	Modified time.Time `json:"modified_at"`
	Details  struct {
		Parameters   string `json:"parameter_size"`
		Quantization string `json:"quantization_level"`
	} `json:"details"`

	Loaded bool  `json:"-"`
	VRAM   int64 `json:"size_vram"` // bytes, of a loaded one
}

// ollamaPath is the API's path of an operation, and the query that names the provider.
func ollamaPath(node, provider, operation string) string {
	path := "/nodes" + seg(node) + "/ollama/" + operation
	if provider != "" {
		path += "?" + url.Values{"provider": {provider}}.Encode()
	}
	return path
}

// ollamaModels lists the models of one Ollama, for the Node's page.
func (c *console) ollamaModels(w http.ResponseWriter, r *http.Request) error {
	data := ollamaData{Node: r.PathValue("node"), Provider: r.URL.Query().Get("provider")}
	var all, loaded []ollamaModel
	err := c.ollamaList(r, &data, "tags", &all)
	if err == nil {
		err = c.ollamaList(r, &data, "ps", &loaded)
	}
	if refused, ok := errors.AsType[*apiError](err); ok {
		data.Fault = refused.Body.Message
	} else if err != nil {
		return err
	}
	for _, m := range all {
		for i := range loaded {
			if loaded[i].Name == m.Name {
				m.Loaded, m.VRAM = true, loaded[i].VRAM
			}
		}
		data.Models = append(data.Models, m)
	}
	c.pages.part(w, "node", "node-ollama", data)
	return nil
}

func (c *console) ollamaList(r *http.Request, data *ollamaData, operation string, into *[]ollamaModel) error {
	var result admin.OllamaResult
	if err := c.api.post(r.Context(), ollamaPath(data.Node, data.Provider, operation), nil, &result); err != nil {
		return err
	}
	var list struct {
		Models []ollamaModel `json:"models"`
	}
	if err := json.Unmarshal(result.Result, &list); err != nil {
		return &apiError{http.StatusBadGateway, admin.ErrorBody{Message: "The provider's model list is not in Ollama's format: " + err.Error()}}
	}
	*into = list.Models
	return nil
}

// deleteModel deletes a model from an Ollama.
func (c *console) deleteModel(w http.ResponseWriter, r *http.Request) error {
	f, err := formOf(r)
	if err != nil {
		return err
	}
	body := map[string]string{"model": f.text("model")}
	if err := c.api.post(r.Context(), ollamaPath(r.PathValue("node"), f.text("provider"), "delete"), body, nil); err != nil {
		if fault := refusedForm(err); fault != nil {
			return c.showNode(w, r, http.StatusUnprocessableEntity, nodeData{Fault: fault})
		}
		return err
	}
	return done(w, r, "/admin/nodes"+seg(r.PathValue("node")), "model-deleted")
}

// progressType is what a page that shows the progress of a pull accepts.
const progressType = "application/x-ndjson"

// pullModel pulls a model into an Ollama. A script that asks for the progress gets it as it comes, and ends the pull by
// going away; a plain form waits for the end.
func (c *console) pullModel(w http.ResponseWriter, r *http.Request) error {
	f, err := formOf(r)
	if err != nil {
		return err
	}
	live := r.Header.Get("Accept") == progressType
	body, err := json.Marshal(map[string]string{"model": f.text("model")})
	if err != nil {
		return err
	}
	path := "/admin/v1" + ollamaPath(r.PathValue("node"), f.text("provider"), "pull")
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.RemoteAddr = "console"
	req.Header.Set("Content-Type", "application/json")
	if live {
		c.parts.API.ServeHTTP(w, req)
		return nil
	}
	end := &pullEnd{header: http.Header{}}
	c.parts.API.ServeHTTP(end, req)
	if message := end.fault(); message != "" {
		fault := faultOf("model", message)
		return c.showNode(w, r, http.StatusUnprocessableEntity, nodeData{Fault: fault, Filled: f.filled()})
	}
	return done(w, r, "/admin/nodes"+seg(r.PathValue("node")), "model-pulled")
}

// maxPullLine bounds what is kept of a pull: real lines have 200 bytes.
const maxPullLine = 64 << 10

// pullEnd reads the progress of a pull for its last line alone.
type pullEnd struct {
	header http.Header
	status int
	line   []byte
	ended  bool // the line is whole
}

func (p *pullEnd) Header() http.Header { return p.header }
func (p *pullEnd) FlushError() error   { return nil }
func (p *pullEnd) WriteHeader(status int) {
	if p.status == 0 {
		p.status = status
	}
}

// Write implements io.Writer; a line that is too long ends the pull.
func (p *pullEnd) Write(data []byte) (int, error) {
	for line := range bytes.Lines(data) {
		if p.ended {
			p.line = p.line[:0]
		}
		if p.ended = bytes.HasSuffix(line, []byte("\n")); len(p.line)+len(line) > maxPullLine {
			return 0, io.ErrShortBuffer
		}
		p.line = append(p.line, line...)
	}
	return len(data), nil
}

// fault says why the model was not pulled; empty: it was.
func (p *pullEnd) fault() string {
	if p.status >= http.StatusMultipleChoices {
		var refused struct {
			Error admin.ErrorBody `json:"error"`
		}
		if json.Unmarshal(p.line, &refused) == nil && refused.Error.Message != "" {
			return refused.Error.Message
		}
		return fmt.Sprintf("the pull was refused with status %d", p.status)
	}
	var last struct{ Status, Error string }
	switch err := json.Unmarshal(p.line, &last); {
	case err == nil && last.Error != "":
		return "The model was not pulled: " + last.Error
	case err != nil || last.Status != "success":
		return "The model was not pulled: the provider's progress ended early. Pull it again to continue where it stopped."
	}
	return ""
}
