package openai

import (
	"errors"
	"strconv"
	"time"
)

// MaxModels is how many models of one list are read.
const MaxModels = 10_000

// Model is one entry of a model list.
type Model struct {
	ID      string
	Created int64  // Unix seconds, 0 if unknown
	OwnedBy string // empty if unknown
}

// ParseModelList reads a provider's list of models: OpenAI's `{"data":[{"id"}]}`, Ollama's `{"models":[{"name"}]}`
// (where a list has both, as llama.cpp's, data counts), or a bare array. An entry whose name could not be routed
// (see MaxModelLength) is left out, as are doubles and all after MaxModels. Bytes are scanned, not unmarshalled, so
// that a hostile list costs no more than its size.
func ParseModelList(body []byte) ([]Model, error) {
	if !wellFormed(body) {
		return nil, errors.New("the model list is not valid JSON")
	}
	list := body
	if s := (scanner{b: body}); is(body[s.space(0):], '{') {
		if list = member(body, "data"); !is(list, '[') {
			list = member(body, "models")
		}
		if list == nil {
			return nil, errors.New("the model list has neither data nor models")
		}
	}
	s := scanner{b: list}
	switch list = list[s.space(0):]; {
	case is(list, 'n'): // null is how some write an empty list
		return nil, nil
	case !is(list, '['):
		return nil, errors.New("the model list is not an array")
	}
	var models []Model
	seen := make(map[string]bool)
	for el := arrayElements(list); el.next() && len(models) < MaxModels; {
		m := parseModel(el.val)
		if modelFault(m.ID) == "" && !seen[m.ID] {
			seen[m.ID] = true
			models = append(models, m)
		}
	}
	return models, nil
}

func parseModel(obj []byte) (m Model) {
	var name, model string
	for it := objectMembers(obj); it.next(); {
		if len(it.val) > 6*MaxModelLength+2 {
			continue
		}
		switch string(it.key) {
		case "id":
			m.ID = text(it.val)
		case "name":
			name = text(it.val)
		case "model":
			model = text(it.val)
		case "owned_by":
			m.OwnedBy = text(it.val)
		case "created":
			m.Created = max(0, seconds(it.val))
		case "modified_at":
			if t, err := time.Parse(time.RFC3339Nano, text(it.val)); err == nil && m.Created == 0 {
				m.Created = max(0, t.Unix())
			}
		}
	}
	if m.ID == "" {
		m.ID = model
	}
	if m.ID == "" {
		m.ID = name
	}
	return m
}

func seconds(val []byte) int64 {
	n := int64(0)
	count(&n, val)
	return n
}

// AppendModelList appends the models as OpenAI's list.
func AppendModelList(dst []byte, models []Model) []byte {
	dst = append(dst, `{"object":"list","data":[`...)
	for i, m := range models {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendModel(dst, m)
	}
	return append(dst, `]}`...)
}

// AppendModel appends one model as OpenAI's model object.
func AppendModel(dst []byte, m Model) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, m.ID)
	dst = append(dst, `,"object":"model","created":`...)
	dst = strconv.AppendInt(dst, m.Created, 10)
	dst = append(dst, `,"owned_by":`...)
	dst = appendString(dst, m.OwnedBy)
	return append(dst, '}')
}
