package nodeagent

import (
	"context"
	"maps"
	"net"
	"strings"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

const (
	// searchInterval is the time between two searches for local engines.
	searchInterval = 5 * time.Second
	// searchTimeout bounds the questions to one port: whoever is on it may never answer.
	searchTimeout = 3 * time.Second
	// forgetAfter is how long a found engine may be gone before its port is free for another.
	forgetAfter = time.Minute
)

// discovery finds the engines of this machine by the ports that they listen on unless told otherwise. All its fields
// belong to the goroutine of run.
type discovery struct {
	agent *Agent
	ports []port
	found map[string]*finding // by port
	first chan struct{}       // closed after the first search
}

type port struct {
	number string
	likely Engine
}

// finding is an engine that was found, and how to stop looking after it.
type finding struct {
	p    *provider
	stop context.CancelFunc
}

func newDiscovery(a *Agent) *discovery {
	d := &discovery{agent: a, found: map[string]*finding{}, first: make(chan struct{})}
	for _, t := range engines {
		if t.port != "" && !ownListener(t.port, a.cfg.Skip) {
			d.ports = append(d.ports, port{t.port, t.engine})
		}
	}
	return d
}

// ownListener reports whether a port of the loopback address is one of the process's own listeners.
func ownListener(port string, skip []string) bool {
	for _, address := range skip {
		host, p, err := net.SplitHostPort(address)
		if err != nil || p != port {
			continue
		}
		ip := net.ParseIP(host)
		if host == "" || host == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified()) {
			return true
		}
	}
	return false
}

// run searches until ctx ends.
func (d *discovery) run(ctx context.Context) {
	ticker := time.NewTicker(searchInterval)
	defer ticker.Stop()
	d.search(ctx)
	close(d.first)
	if len(d.found) == 0 {
		d.agent.log.Info("no local inference server found yet, still looking", "ports", d.portList(), "do", "start one on its default port, or add one with --provider id=URL")
	}
	for {
		select {
		case <-ctx.Done():
			for _, f := range d.found {
				f.stop()
			}
			return
		case <-ticker.C:
			d.search(ctx)
		}
	}
}

// portList is where is looked, for people.
func (d *discovery) portList() string {
	names := make([]string, len(d.ports))
	for i, p := range d.ports {
		names[i] = p.number + " (" + string(p.likely) + ")"
	}
	return strings.Join(names, ", ")
}

// search looks once at each port where no engine is known, all at the same time.
func (d *discovery) search(ctx context.Context) {
	type result struct {
		port port
		p    *provider
	}
	results := make(chan result)
	asked := 0
	for _, pt := range d.ports {
		if f := d.found[pt.number]; f != nil && !d.forgotten(pt.number, f) {
			continue
		}
		asked++
		go func() { results <- result{pt, lookAt(ctx, pt)} }()
	}
	for range asked {
		if r := <-results; r.p != nil {
			d.add(ctx, r.port, r.p)
		}
	}
}

// lookAt returns the engine behind a port, nil if there is none that serves models.
func lookAt(ctx context.Context, pt port) *provider {
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	address := net.JoinHostPort("127.0.0.1", pt.number)
	p, err := newProvider(ProviderSpec{ID: "unnamed", URL: "http://" + address})
	if err != nil {
		return nil
	}
	defer p.closeIdle()
	id, err := p.identify(ctx, pt.likely)
	if err != nil {
		return nil
	}
	p.mu.Lock()
	p.setEngineLocked(id.engine, id.capacity)
	p.mu.Unlock()
	// Whatever else listens on such a port (a web application under development) has no list of models.
	if _, err := p.askModels(ctx); err != nil {
		return nil
	}
	name := string(id.engine)
	if id.engine.traits().port != pt.number {
		name += "-" + pt.number
	}
	p.spec.ID = execution.ProviderID(name)
	return p
}

func (d *discovery) add(ctx context.Context, pt port, p *provider) {
	ctx, stop := context.WithCancel(ctx)
	d.found[pt.number] = &finding{p, stop}
	d.agent.change(func(providers map[execution.ProviderID]*provider) { providers[p.spec.ID] = p })
	d.agent.log.Info("found a local inference server", "provider", p.spec.ID, "engine", p.engine(), "url", p.base.String())
	select {
	case <-d.agent.probe(ctx, p):
	case <-ctx.Done():
	}
}

// forgotten removes an engine that has been gone for long.
func (d *discovery) forgotten(number string, f *finding) bool {
	f.p.mu.Lock()
	state := f.p.state
	f.p.mu.Unlock()
	if state.health != wire.Health_HEALTH_GONE || time.Since(state.goneFrom) < forgetAfter {
		return false
	}
	f.stop()
	delete(d.found, number)
	d.agent.change(func(providers map[execution.ProviderID]*provider) { delete(providers, f.p.spec.ID) })
	d.agent.log.Info("a local inference server is gone", "provider", f.p.spec.ID)
	return true
}

// change replaces the set of providers and tells the Edge.
func (a *Agent) change(edit func(map[execution.ProviderID]*provider)) {
	a.mu.Lock()
	providers := maps.Clone(*a.providers.Load())
	edit(providers)
	a.providers.Store(&providers)
	a.mu.Unlock()
	a.refresh()
}
