package nodeagent

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"iop/execution"
	"iop/openai"
	"iop/tunnel/reach"
	"iop/tunnel/wire"
)

// Examined is what one look at a provider found, without a Node that runs.
type Examined struct {
	ID       execution.ProviderID
	URL      string // without what may be a secret
	Engine   Engine // empty: it does not tell
	Version  string // of the engine, as it tells; or empty
	Capacity int    // runs at once
	// Default: neither the specification nor the engine says the Capacity.
	Default bool
	Models  []string
	// Missing are models of the specification that the provider does not list; Listed is what it lists then. Both are nil where it
	// lists none, or all of them.
	Missing, Listed []string
	// Refused says that the question for its models got 401 or 403, although the specification names them: runs may get the same.
	Refused *reach.Finding
	// Operations are the names of the operations whose path it was found to have; nil where it can't be told.
	Operations []string
	// Listless is set, with Err, where it answers, but lists no models.
	Listless bool
	// Unreachable is set, with Err, where nothing can have got the question.
	Unreachable bool
	// Err is why it would get no runs, or nil. It holds no key.
	Err error
	// Finding says the same for people, and what to do; nil without Err, and where the specification itself is wrong.
	Finding *reach.Finding
}

// Examine looks once at each of the providers, as a Node does before it offers them. It waits a few seconds for each that
// does not answer.
func Examine(ctx context.Context, specs []ProviderSpec) []Examined {
	all := make([]Examined, 0, len(specs))
	for _, spec := range specs {
		p, err := newProvider(spec)
		if err != nil {
			all = append(all, Examined{ID: spec.ID, URL: spec.URL, Err: err})
			continue
		}
		all = append(all, examine(ctx, p))
		p.closeIdle()
	}
	return all
}

// Search looks once for the engines of this machine, as a Node without providers does.
func Search(ctx context.Context) (found []Examined) {
	for _, t := range engines {
		if t.port == "" {
			continue
		}
		if p := lookAt(ctx, port{t.port, t.engine}); p != nil {
			found = append(found, examine(ctx, p))
			p.closeIdle()
		}
	}
	return found
}

// examine asks what a probe asks.
func examine(ctx context.Context, p *provider) Examined {
	b := &prober{p: p, log: slog.New(slog.DiscardHandler), changed: func() {}, first: make(chan struct{})}
	attempt := p.attempt()
	asking, cancel := context.WithTimeout(attempt.Watch(ctx), askTimeout)
	defer cancel()
	id, err := b.identify(asking)
	var list modelList
	if err == nil {
		list, err = p.askModels(asking)
	}
	listless := errors.Is(err, errNoList)
	if listless && p.leased() {
		list, err = modelList{loaded: loadedModels{all: true}}, nil
	}
	l, health := learned{id: id, list: list, err: err, attempt: attempt}, wire.Health_HEALTH_GONE
	if err == nil || listless {
		health = wire.Health_HEALTH_OK
		l.matrix, l.explored = b.explore(ctx, id)
	}
	b.note(asking, health, l)

	info, models := p.describe()
	e := Examined{
		ID: p.spec.ID, URL: p.base.Redacted(), Engine: Engine(info.Engine), Version: info.EngineVersion, Capacity: info.Capacity,
		Listless: listless && len(models) == 0,
	}
	if info.OperationsKnown {
		e.Operations = info.Operations
	}
	for _, m := range models {
		e.Models = append(e.Models, m.ID)
	}
	e.Default = p.spec.Capacity == 0 && id.capacity <= 0
	if err == nil && !listless {
		e.Missing, e.Listed = missing(p.spec.Models, list.models)
	}
	if none, ok := errors.AsType[*noList](l.err); ok && !e.Listless && (none.answer.status == http.StatusUnauthorized || none.answer.status == http.StatusForbidden) {
		finding := p.finding(l)
		e.Refused = &finding
	}
	if err != nil && (!listless || e.Listless) {
		e.Unreachable = unreachable(err)
		e.Err = errors.New(p.key.Load().mask(err.Error()))
		finding := p.finding(l)
		e.Finding = &finding
	}
	return e
}

// missing returns those of the models that an operator names which are not among those that the provider lists, and the latter.
// Ollama's tag "latest" may be left out.
func missing(named []string, listed []openai.Model) (absent, all []string) {
	for _, m := range listed {
		all = append(all, m.ID)
	}
	for _, name := range named {
		if !slices.Contains(all, name) && !slices.Contains(all, name+":latest") && !slices.Contains(all, strings.TrimSuffix(name, ":latest")) {
			absent = append(absent, name)
		}
	}
	if absent == nil {
		return nil, nil
	}
	return absent, all
}
