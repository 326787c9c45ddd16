package sim

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// memory knows which models the engine holds, and loads them.
type memory struct {
	load time.Duration
	most int // 0: all

	mu     sync.Mutex
	models []resident // the latest used last
}

// resident is a model in memory, or on its way there.
type resident struct {
	name  string
	ready time.Time
}

// newMemory returns the memory of an engine at its start.
func newMemory(c Config) *memory {
	m := &memory{load: c.Load, most: c.MaxLoaded}
	names := c.Loaded
	switch {
	case len(names) > 0, c.Flavour == Ollama, c.Flavour == LMStudio && c.Load > 0:
	default:
		names = c.Models
	}
	m.set(names)
	return m
}

// set makes these models, and no others, the ones in memory. The first of more than fit stay out.
func (m *memory) set(names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.models = nil
	for _, name := range names {
		m.models = append(m.models, resident{name: name})
	}
	m.evictLocked()
}

// use returns when the model is in memory: in the past if it is, else its load begins, or goes on.
func (m *memory) use(model string, now time.Time) time.Time {
	model = residentName(model)
	m.mu.Lock()
	defer m.mu.Unlock()
	r := resident{model, now.Add(m.load)}
	if i := m.indexLocked(model); i >= 0 {
		r = m.models[i]
		m.models = slices.Delete(m.models, i, i+1)
	}
	m.models = append(m.models, r)
	m.evictLocked()
	return r.ready
}

// holds reports whether the model is in memory.
func (m *memory) holds(model string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.indexLocked(residentName(model))
	return i >= 0 && !now.Before(m.models[i].ready)
}

func (m *memory) indexLocked(model string) int {
	return slices.IndexFunc(m.models, func(r resident) bool { return r.name == model })
}

func (m *memory) evictLocked() {
	if m.most > 0 && len(m.models) > m.most {
		m.models = slices.Delete(m.models, 0, len(m.models)-m.most)
	}
}

// residentName is a model without the tag that Ollama takes for granted.
func residentName(model string) string { return strings.TrimSuffix(model, ":latest") }

// load lets the request wait for its model. What answers to any name has one, which is there.
func (x *exchange) load(a *ask) {
	if !x.s.knows(a.model) {
		return
	}
	if ready := x.s.memory.use(a.model, x.begun); ready.After(x.begun) {
		x.begun = ready
	}
}

// Loaded returns the ids of the models that are in memory now.
func (s *Server) Loaded() []string {
	now := time.Now()
	return slices.DeleteFunc(s.Models(), func(m string) bool { return !s.memory.holds(m, now) })
}

// SetLoaded replaces what is in memory: the named models, of those that the server knows.
func (s *Server) SetLoaded(models []string) error {
	for _, m := range models {
		if !s.knows(m) {
			return errUnknownModel(m)
		}
	}
	names := make([]string, len(models))
	for i, m := range models {
		names[i] = residentName(m)
	}
	s.memory.set(names)
	return nil
}
