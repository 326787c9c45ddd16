package nodeagent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"iop/openai"
	"iop/tunnel"
	"iop/tunnel/reach"
	"iop/tunnel/wire"
)

// How often and how patiently a provider is looked at. The question is always its list of models: the answer is
// needed anyway, and every engine gives it without touching its scheduler.
const (
	// pollRemote is for https, where somebody else's service answers.
	pollRemote = 30 * time.Second
	// pollMinimum keeps failing runs from turning the probe into a flood.
	pollMinimum = 250 * time.Millisecond
	// askTimeout is how long a provider may take to answer a question.
	askTimeout = 5 * time.Second
	// missesIdle and missesBusy are the questions in a row that must stay unanswered before a provider is hung:
	// without runs, and with runs of which no byte arrives. While bytes arrive it is busy, not hung.
	missesIdle = 2
	missesBusy = 6
	// askAgain is how often a provider is asked what it is and how much it can do, which changes with a restart.
	askAgain = time.Minute
)

// prober looks after one provider. All its fields belong to the goroutine that runs it.
type prober struct {
	p       *provider
	log     *slog.Logger
	changed func() // called when what the Edge should know has changed; must return at once

	misses     int
	keyFault   bool           // the key's file could not be read
	identified time.Time      // when the provider last told what it is; zero if it must be asked
	weighed    time.Time      // when it was last asked what it holds in memory
	detailed   time.Time      // when it was last asked of its models' files
	listed     []openai.Model // what it listed then
	mapped     time.Time      // when its paths were last looked for; zero if they must be
	mappedAs   nature         // what it was then
	hinted     string         // what was last said of an Ollama's capacity
	first      chan struct{}  // closed by the first look
	looked     bool
	said       reach.Repeat // of the findings
}

// watch looks at the provider until ctx ends.
func (b *prober) watch(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-b.p.wake:
			if wait := pollMinimum - time.Since(last); wait > 0 {
				timer.Reset(wait)
				continue
			}
		}
		last = time.Now()
		b.look(ctx)
		if !b.looked {
			b.looked = true
			close(b.first)
		}
		timer.Reset(b.p.pollInterval())
	}
}

// pollInterval is the time between two looks.
func (p *provider) pollInterval() time.Duration {
	if p.base.Scheme == "https" {
		return pollRemote
	}
	return p.engine().traits().poll
}

// look asks the provider once and takes note of what it says.
func (b *prober) look(parent context.Context) {
	b.refreshKey()
	before := b.p.activity.Load()
	attempt := b.p.attempt()
	ctx, cancel := context.WithTimeout(attempt.Watch(parent), askTimeout)
	defer cancel()
	id, err := b.identify(ctx)
	var list modelList
	if err == nil {
		list, err = b.p.askModels(ctx)
	}
	if b.p.leased() && errors.Is(err, errNoList) {
		// It lives, and refuses who has no key. What it offers is written in its specification.
		list, err = modelList{loaded: loadedModels{all: true}}, nil
	}
	if parent.Err() != nil {
		return // the Node is stopping: nothing was learned
	}
	health := b.judge(err, b.p.activity.Load() != before)
	if health == wire.Health_HEALTH_GONE || health == wire.Health_HEALTH_HUNG {
		b.identified, b.mapped = time.Time{}, time.Time{} // whatever answers next may be another program
	}
	l := learned{id: id, list: list, err: err, attempt: attempt}
	if health == wire.Health_HEALTH_OK {
		l.matrix, l.explored = b.explore(parent, id)
	}
	b.note(ctx, health, l)
}

// learned is what the answers of a look said.
type learned struct {
	id   nature
	list modelList
	err  error // why it is not known

	attempt *reach.Attempt // that brought it

	matrix   matrix
	explored bool // matrix is news
}

// weigh asks what the provider holds in memory, if it is time to. The former answer stands where there is no new one.
func (b *prober) weigh(ctx context.Context, l learned) (loaded loadedModels, ok bool) {
	if l.err != nil || l.id.engine == "" && time.Since(b.weighed) < loadedAgain {
		return loaded, false
	}
	b.weighed = time.Now()
	return b.p.askLoaded(ctx, l.list.loaded)
}

// refreshKey takes a key whose file has changed. A file that can't be read leaves the key as it is.
func (b *prober) refreshKey() {
	if b.p.spec.KeyFile == "" {
		return
	}
	key, err := readKeyFile(b.p.spec.KeyFile)
	if err != nil {
		if !b.keyFault {
			b.log.Warn("can't reload the provider's key; keeping the previous one", "provider", string(b.p.spec.ID), "error", err)
		}
		b.keyFault = true
		return
	}
	b.keyFault = false
	if c := b.p.key.Load(); c == nil || c.key.Reveal() != key.Reveal() {
		b.p.key.Store(newCredential(b.p.engine(), key))
	}
}

// identify asks what the provider is, where that is not known or may have changed.
func (b *prober) identify(ctx context.Context) (nature, error) {
	engine := b.p.engine()
	if !b.identified.IsZero() && time.Since(b.identified) < askAgain {
		return nature{}, nil
	}
	var id nature
	var err error
	if b.p.spec.Engine == "" {
		id, err = b.p.identify(ctx, engine)
	} else {
		id, err = b.p.askItself(ctx)
	}
	if err != nil {
		return nature{}, err
	}
	b.identified = time.Now()
	b.hint(id)
	return id, nil
}

// askItself asks a provider of a given kind how much it can do, and which version it is.
func (p *provider) askItself(ctx context.Context) (id nature, err error) {
	switch p.spec.Engine {
	case LlamaCPPEngine:
		id, _, err = p.askLlamaCPP(ctx)
	case VLLMEngine:
		id, _, err = p.askVLLM(ctx)
	case SGLangEngine:
		id, _, err = p.askSGLang(ctx)
	case OllamaEngine:
		id, _, err = p.askOllama(ctx)
	}
	id.engine = p.spec.Engine
	return id, err
}

// judge turns one answer, or its absence, into a state of health. flowing says that bytes of a run arrived meanwhile.
func (b *prober) judge(err error, flowing bool) wire.Health {
	switch {
	case err == nil, errors.Is(err, errNoList), flowing:
		b.misses = 0
		return wire.Health_HEALTH_OK
	case unreachable(err):
		b.misses = 0
		return wire.Health_HEALTH_GONE
	}
	b.misses++
	patience := missesIdle
	if b.p.inUse.Load() > 0 {
		patience = missesBusy
	}
	if b.misses < patience {
		return wire.Health_HEALTH_UNSPECIFIED // no judgement yet: the former one stands
	}
	return wire.Health_HEALTH_HUNG
}

// note writes down what a look brought, and tells whoever must know.
func (b *prober) note(ctx context.Context, health wire.Health, l learned) {
	p := b.p
	p.mu.Lock()
	before := p.snapshotLocked()
	if l.id.engine != "" {
		p.setEngineLocked(l.id.engine, l.id.capacity)
		p.state.version = l.id.version
	}
	if l.explored {
		p.state.matrix = l.matrix
	}
	p.mu.Unlock()
	loaded, weighed := b.weigh(ctx, l)
	details, detailed := b.detail(ctx, l)

	p.mu.Lock()
	switch {
	case l.err == nil:
		p.setModelsLocked(keepCreated(sortModels(l.list.models), p.state.models), true)
	case errors.Is(l.err, errNoList) && !p.state.known:
		p.setModelsLocked(nil, false)
	}
	if weighed {
		p.state.loaded = loaded
	}
	if detailed {
		p.state.details = details
	}
	if health != wire.Health_HEALTH_UNSPECIFIED {
		p.state.health = health
	}
	switch {
	case p.state.health != wire.Health_HEALTH_GONE:
		p.state.goneFrom = time.Time{}
	case p.state.goneFrom.IsZero():
		p.state.goneFrom = time.Now()
	}
	after := p.snapshotLocked()
	p.mu.Unlock()

	if before.equal(after) {
		b.remind(after, l)
		return
	}
	b.report(before, after, l)
	b.changed()
}

// attempt is a question for the models.
func (p *provider) attempt() *reach.Attempt {
	return &reach.Attempt{URL: p.endpoint(pathModels), Peer: reach.Provider, Roots: p.spec.CAFile}
}

// finding says why a look brought no list of models, and what to do about it. l.err is not nil.
func (p *provider) finding(l learned) reach.Finding {
	key := p.key.Load()
	if none, ok := errors.AsType[*noList](l.err); ok {
		return l.attempt.List(none.answer.status, none.answer.header, none.answer.body, key != nil)
	}
	f := l.attempt.Failed(l.err)
	f.Found = key.mask(f.Found)
	return f
}

// remind logs a fault that goes on, now and then.
func (b *prober) remind(now snapshot, l learned) {
	switch {
	case l.err == nil:
		b.said = reach.Repeat{}
	case now.health == wire.Health_HEALTH_OK && (len(b.p.spec.Models) > 0 || !errors.Is(l.err, errNoList)):
		// The list is not needed, or one question was missed, which is no fault yet.
	default:
		f := b.p.finding(l)
		left, ok := b.said.Due(f.Found, time.Now())
		if !ok {
			return
		}
		log := b.log.With("provider", string(b.p.spec.ID), "found", f.Found, "do", f.Do)
		if left > 0 {
			log = log.With("left_out", left)
		}
		log.Warn("provider is not usable")
	}
}

func (b *prober) report(before, after snapshot, l learned) {
	err := l.err
	log := b.log.With("provider", string(b.p.spec.ID), "engine", string(after.engine), "health", tunnel.HealthName(after.health),
		"models", len(after.models), "capacity", after.capacity, "operations", len(after.matrix.names()))
	if err == nil {
		b.said = reach.Repeat{}
		log = log.With("capacity_from", b.p.capacityFrom(l.id.capacity))
	} else {
		f := b.p.finding(l)
		b.said.Due(f.Found, time.Now())
		log = log.With("found", f.Found, "do", f.Do, "error", b.p.key.Load().mask(err.Error()))
	}
	switch {
	case errors.Is(err, errNoList):
		log.Warn("provider answers, but does not list its models")
	case after.health == before.health && before.equal(after.holding(before.loaded)):
		log.Debug("provider loaded or unloaded models")
	case after.health == before.health:
		log.Info("provider changed")
	case after.health == wire.Health_HEALTH_OK:
		log.Info("provider is ready")
	default:
		log.Warn("provider is not ready")
	}
}

// snapshot is what the Edge is told of a provider.
type snapshot struct {
	engine   Engine
	health   wire.Health
	capacity int64
	models   []openai.Model
	loaded   loadedModels
	details  modelDetails
	version  string
	matrix   matrix
}

// holding is s with other models in memory.
func (s snapshot) holding(l loadedModels) snapshot {
	s.loaded = l
	return s
}

func (p *provider) snapshotLocked() snapshot {
	return snapshot{p.state.engine, p.state.health, p.capacity.Load(), p.state.models, p.state.loaded, p.state.details, p.state.version, p.state.matrix}
}

func (s snapshot) equal(t snapshot) bool {
	return s.engine == t.engine && s.version == t.version && s.matrix == t.matrix && s.health == t.health && s.capacity == t.capacity &&
		slices.Equal(s.models, t.models) && s.loaded.equal(t.loaded) && s.details.equal(t.details)
}

// sortModels brings a list into one order and drops what may not be offered.
func sortModels(models []openai.Model) []openai.Model {
	models = slices.DeleteFunc(models, func(m openai.Model) bool { return !validModel(m.ID) })
	slices.SortStableFunc(models, func(a, b openai.Model) int { return strings.Compare(a.ID, b.ID) })
	models = slices.CompactFunc(models, func(a, b openai.Model) bool { return a.ID == b.ID })
	return models[:min(len(models), maxListed)]
}

// keepCreated leaves a model's date as it was first told: vLLM and llama.cpp say "now" each time they are asked.
func keepCreated(models, known []openai.Model) []openai.Model {
	for i := range models {
		k, found := slices.BinarySearchFunc(known, models[i].ID, func(m openai.Model, id string) int { return strings.Compare(m.ID, id) })
		if found {
			models[i].Created = known[k].Created
		}
	}
	return models
}
