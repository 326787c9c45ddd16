package ollama

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"

	"iop/openai"
)

// Details are what a model is made of, as far as it is known.
type Details struct {
	ParentModel, Format, Family      string
	Families                         []string
	ParameterSize, QuantizationLevel string
}

// Model is one model of /api/tags. What is not known stays zero, and clients say "unknown" or nothing of it.
type Model struct {
	Name       string
	ModifiedAt time.Time // zero: clients say "Never"
	Size       int64     // bytes
	// Digest is the model's own. One that is shorter than clients print is replaced by a digest of the name, so that the
	// same name always has the same.
	Digest  string
	Details Details
	// Capabilities are in /api/tags where they are known, as newer servers have it.
	Capabilities []string
}

// Loaded is one model of /api/ps.
type Loaded struct {
	Model
	SizeVRAM      int64     // bytes of Size that are in the accelerators' memory
	ContextLength int64     // tokens
	ExpiresAt     time.Time // zero: nobody knows, and clients must not say that it is being stopped: far in the future
}

// never is when a model expires of which nobody knows it: clients take the zero time for "now".
var never = time.Date(2318, 1, 1, 0, 0, 0, 0, time.UTC)

// AppendTags appends the answer of /api/tags.
func AppendTags(dst []byte, models ...Model) []byte {
	dst = append(dst, `{"models":[`...)
	for i := range models {
		if i > 0 {
			dst = append(dst, ',')
		}
		m := &models[i]
		dst = appendModel(dst, m)
		dst = appendTime(append(dst, `,"modified_at":`...), m.ModifiedAt)
		if len(m.Capabilities) > 0 {
			dst = appendStrings(append(dst, `,"capabilities":`...), m.Capabilities)
		}
		dst = append(dst, '}')
	}
	return append(dst, `]}`...)
}

// AppendPS appends the answer of /api/ps.
func AppendPS(dst []byte, models ...Loaded) []byte {
	dst = append(dst, `{"models":[`...)
	for i := range models {
		if i > 0 {
			dst = append(dst, ',')
		}
		m := &models[i]
		expires := m.ExpiresAt
		if expires.IsZero() {
			expires = never
		}
		dst = appendModel(dst, &m.Model)
		dst = appendTime(append(dst, `,"expires_at":`...), expires)
		dst = strconv.AppendInt(append(dst, `,"size_vram":`...), m.SizeVRAM, 10)
		dst = strconv.AppendInt(append(dst, `,"context_length":`...), m.ContextLength, 10)
		dst = append(dst, '}')
	}
	return append(dst, `]}`...)
}

// appendModel appends what both lists say of a model, without the object's end.
func appendModel(dst []byte, m *Model) []byte {
	dst = openai.AppendString(append(dst, `{"name":`...), m.Name)
	dst = openai.AppendString(append(dst, `,"model":`...), m.Name)
	dst = strconv.AppendInt(append(dst, `,"size":`...), m.Size, 10)
	dst = openai.AppendString(append(dst, `,"digest":`...), digest(m))
	return appendDetails(append(dst, `,"details":`...), &m.Details)
}

// digest is what stands for the model's digest. The ollama command line cuts it to twelve characters and does not look
// whether it has as many.
func digest(m *Model) string {
	const printed = 12
	if len(m.Digest) >= printed {
		return m.Digest
	}
	sum := sha256.Sum256([]byte(m.Name))
	return hex.EncodeToString(sum[:])
}

// appendTime appends a time. Clients read the zero time as "never"; JSON has no year before 0 or after 9999.
func appendTime(dst []byte, t time.Time) []byte {
	return append(t.UTC().AppendFormat(append(dst, '"'), time.RFC3339Nano), '"')
}

func appendDetails(dst []byte, d *Details) []byte {
	dst = openai.AppendString(append(dst, `{"parent_model":`...), d.ParentModel)
	dst = openai.AppendString(append(dst, `,"format":`...), d.Format)
	dst = openai.AppendString(append(dst, `,"family":`...), d.Family)
	dst = appendStrings(append(dst, `,"families":`...), d.Families)
	dst = openai.AppendString(append(dst, `,"parameter_size":`...), d.ParameterSize)
	dst = openai.AppendString(append(dst, `,"quantization_level":`...), d.QuantizationLevel)
	return append(dst, '}')
}

func appendStrings(dst []byte, list []string) []byte {
	dst = append(dst, '[')
	for i, s := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = openai.AppendString(dst, s)
	}
	return append(dst, ']')
}

// Show is the answer of /api/show, as far as it is known.
type Show struct {
	Details                                 Details
	Modelfile, Parameters, Template, System string
	License                                 string
	Capabilities                            []string        // completion, tools, vision, thinking, embedding, insert
	ModelInfo                               json.RawMessage // a JSON object, or nil
	ModifiedAt                              time.Time
}

// ModelInfo returns what [Show] says of a model by that name: clients print the architecture, and fail where there is
// none. A contextLength of 0 is unknown, and so is an empty architecture.
func ModelInfo(architecture string, contextLength int64) json.RawMessage {
	if architecture == "" {
		architecture = "unknown"
	}
	info := openai.AppendString([]byte(`{"general.architecture":`), architecture)
	if contextLength > 0 {
		info = openai.AppendString(append(info, ','), architecture+".context_length")
		info = strconv.AppendInt(append(info, ':'), contextLength, 10)
	}
	return append(info, '}')
}

// AppendShow appends the answer of /api/show. ModelInfo that is no JSON object is left out.
func AppendShow(dst []byte, s Show) []byte {
	info := s.ModelInfo
	if !openai.IsObject(info) {
		info = json.RawMessage("{}")
	}
	dst = openai.AppendString(append(dst, `{"license":`...), s.License)
	dst = openai.AppendString(append(dst, `,"modelfile":`...), s.Modelfile)
	dst = openai.AppendString(append(dst, `,"parameters":`...), s.Parameters)
	dst = openai.AppendString(append(dst, `,"template":`...), s.Template)
	if s.System != "" {
		dst = openai.AppendString(append(dst, `,"system":`...), s.System)
	}
	dst = appendDetails(append(dst, `,"details":`...), &s.Details)
	dst = append(append(dst, `,"model_info":`...), info...)
	dst = appendStrings(append(dst, `,"capabilities":`...), s.Capabilities)
	dst = appendTime(append(dst, `,"modified_at":`...), s.ModifiedAt)
	return append(dst, '}')
}

// AppendVersion appends the answer of /api/version.
func AppendVersion(dst []byte, version string) []byte {
	return append(openai.AppendString(append(dst, `{"version":`...), version), '}')
}

// AppendLoaded appends the answer to a request that asks for the model to be loaded, or unloaded; see [ParseLoad].
func AppendLoaded(dst []byte, model string, at time.Time, generate, unload bool) []byte {
	dst = openai.AppendString(append(dst, `{"model":`...), model)
	dst = appendTime(append(dst, `,"created_at":`...), at)
	if generate {
		dst = append(dst, `,"response":""`...)
	} else {
		dst = append(dst, `,"message":{"role":"assistant","content":""}`...)
	}
	reason := "load"
	if unload {
		reason = "unload"
	}
	return append(append(append(dst, `,"done":true,"done_reason":"`...), reason...), `"}`...)
}
