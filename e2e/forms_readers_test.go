package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// typedBody is a body and its content type: what a client sends, or what a provider gets.
type typedBody struct {
	Type string `json:"type"`
	Body []byte `json:"body"`
}

// readPart is one part of a form as a reader found it: field or file, its name, and its content in base64.
type readPart [3]string

// reading is what one reader found: the parts of a form in order, of JSON the model, or why it found nothing.
type reading struct {
	Parts []readPart
	Model string
	Error string
}

func (r *reading) UnmarshalJSON(data []byte) error {
	switch data[0] {
	case '[':
		err := json.Unmarshal(data, &r.Parts)
		r.sort()
		return err
	case '"':
		return json.Unmarshal(data, &r.Error)
	}
	var answer struct{ Model string }
	err := json.Unmarshal(data, &answer)
	r.Model = answer.Model
	return err
}

func (r *reading) sort() {
	slices.SortFunc(r.Parts, func(a, b readPart) int { return slices.Compare(a[:], b[:]) })
}

// models are the values that some server might take for that of the field model: case and brackets are ignored.
func (r *reading) models() (values []string) {
	for _, part := range r.Parts {
		name, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(part[1])), "[")
		if content, _ := base64.StdEncoding.DecodeString(part[2]); name == "model" {
			values = append(values, part[0]+" "+string(content))
		}
	}
	return values
}

// readers read bodies, each in the way of one server.
type readers struct {
	t       *testing.T
	scripts [][]string
}

// newReaders are those of Python and Node.js, which `make sdk` installs, and Go's.
func newReaders(t *testing.T) *readers {
	dir, scripts := sdkDir(t), filepath.Join("sdk", "forms")
	return &readers{t, [][]string{
		{filepath.Join(dir, "forms", "bin", "python"), filepath.Join(scripts, "readers.py")},
		{"node", filepath.Join(scripts, "readers.mjs"), filepath.Join(dir, "forms-node")},
	}}
}

// read returns for each body what each reader found.
func (rs *readers) read(bodies []typedBody) []map[string]reading {
	rs.t.Helper()
	found := make([]map[string]reading, len(bodies))
	for i, b := range bodies {
		found[i] = map[string]reading{}
		if strings.HasPrefix(b.Type, "multipart/") {
			found[i]["Go"] = readInGo(b)
		}
	}
	all := make([][]map[string]reading, len(rs.scripts))
	var scripts sync.WaitGroup
	for i, command := range rs.scripts {
		scripts.Go(func() { all[i] = rs.run(bodies, command) })
	}
	scripts.Wait()
	for _, readings := range all {
		for i := range readings {
			for name, r := range readings[i] {
				found[i][name] = r
			}
		}
	}
	return found
}

// run has one script read all bodies.
func (rs *readers) run(bodies []typedBody, command []string) (found []map[string]reading) {
	var in bytes.Buffer
	for to := json.NewEncoder(&in); len(bodies) > 0; bodies = bodies[1:] {
		_ = to.Encode(bodies[0]) // into memory
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(cleanEnv(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONUTF8=1")
	cmd.Stdin, cmd.Stderr = &in, os.Stderr
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		rs.t.Error(err)
		return nil
	}
	watchdog := time.AfterFunc(5*time.Minute, func() { _ = cmd.Process.Kill() })
	defer watchdog.Stop()
	if err := cmd.Wait(); err != nil {
		rs.t.Errorf("%s: %v", command[1], err)
	}
	for from := json.NewDecoder(&out); ; {
		var readings map[string]reading
		if err := from.Decode(&readings); errors.Is(err, io.EOF) {
			return found
		} else if err != nil {
			rs.t.Errorf("%s: %v", command[1], err)
			return found
		}
		found = append(found, readings)
	}
}

// readInGo reads a form with the standard library.
func readInGo(b typedBody) (r reading) {
	_, params, err := mime.ParseMediaType(b.Type)
	if err != nil {
		return reading{Error: err.Error()}
	}
	for from := multipart.NewReader(bytes.NewReader(b.Body), params["boundary"]); ; {
		part, err := from.NextPart()
		if errors.Is(err, io.EOF) {
			r.sort()
			return r
		}
		if err != nil {
			return reading{Error: err.Error()}
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return reading{Error: err.Error()}
		}
		kind := "field"
		if part.FileName() != "" {
			kind = "file"
		}
		r.Parts = append(r.Parts, readPart{kind, part.FormName(), base64.StdEncoding.EncodeToString(content)})
	}
}
