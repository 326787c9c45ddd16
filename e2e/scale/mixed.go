package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// measureMixed holds a steady load of every kind and fits a line through what is resident.
func measureMixed(ctx context.Context, o options) error {
	h, err := newHouse(ctx, o.iop)
	if err != nil {
		return err
	}
	defer h.close()
	m := &mixed{house: h, options: o}
	if err := m.start(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	operating := make(chan error, 1)
	go func() { operating <- m.operate(ctx) }()
	defer func() { stop(); <-operating }()
	return m.sample(ctx)
}

// mixed is an Edge under a load of every kind.
type mixed struct {
	options
	*house
	edge *edge
	load *process
	sim  string // its URL
}

const mixedRoutes = `advertised_models: serve
routes:
  - model: near
    policy: prefix_affinity
    targets: [{model: sim-small}]
  - model: soon
    aliases: [sooner]
    policy: lowest_wait
    rename_model: true
    parameters: {defaults: {temperature: 0.3}, caps: {max_tokens: 500}}
    targets: [{model: sim-small}]
`

func (m *mixed) routes(n int) error {
	text := fmt.Sprintf("# Version %d.\n%s", n, mixedRoutes)
	return os.WriteFile(filepath.Join(m.dir, "iop.yaml"), []byte(text), 0o600)
}

func (m *mixed) start(ctx context.Context) (err error) {
	if err := m.routes(0); err != nil {
		return err
	}
	if m.edge, err = m.startEdge(ctx, "--config", "iop.yaml"); err != nil {
		return err
	}
	sim, err := m.house.start("sim", m.house.iop, nil, "sim", "--listen", "127.0.0.1:0", "--slots", "64", "--prefix-cache", "100000", "--json")
	if err != nil {
		return err
	}
	var ready struct{ URL string }
	if err := sim.line(ctx, 20*time.Second, &ready); err != nil {
		return err
	}
	m.sim = ready.URL
	if _, err := m.startNode("steady"); err != nil {
		return err
	}
	if err := m.edge.gauge(ctx, "iop_nodes_online", 1, 20*time.Second); err != nil {
		return err
	}
	m.load, err = m.house.load("load-mixed", m.edge.key, "-url", m.edge.url, "-rate", fmt.Sprint(m.rate), "-kinds", m.kinds)
	return err
}

func (m *mixed) startNode(name string) (*process, error) {
	env := []string{"IOP_NODE_EDGE=" + m.edge.tunnel(), "IOP_NODE_NAME=" + name, "IOP_NODE_JOIN_TOKEN=" + m.edge.token}
	return m.house.start(name, m.house.iop, env, "node", "--provider", "sim:openai="+m.sim+",capacity=32")
}

// has reports whether the load has that kind.
func (o *options) has(kind string) bool {
	return o.kinds == "" || slices.Contains(strings.Split(o.kinds, ","), kind)
}

// operate does what operators do, until ctx ends: it reads what the admin API has, reloads the routes, makes and revokes
// keys, and restarts a Node.
func (m *mixed) operate(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	var restless *process
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var errs []error
		if m.has("admin") {
			errs = append(errs, m.poll())
		}
		if m.has("reload") && n%4 == 0 {
			errs = append(errs, m.routes(n))
		}
		if m.has("keys") && n%6 == 0 {
			errs = append(errs, m.changeKeys(ctx))
		}
		if m.has("nodes") && n%6 == 3 {
			if restless != nil {
				restless.stop()
				m.procs = slices.DeleteFunc(m.procs, func(p *process) bool { return p == restless })
			}
			var err error
			restless, err = m.startNode("restless")
			errs = append(errs, err)
		}
		if err := errors.Join(errs...); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "operating:", err)
		}
	}
}

// poll reads what a dashboard does.
func (m *mixed) poll() error {
	var errs []error
	for _, path := range []string{
		"/metrics", "/admin/v1/status", "/admin/v1/nodes", "/admin/v1/runs", "/admin/v1/routes", "/admin/v1/keys",
		"/admin/v1/usage?by=key", "/admin/v1/usage?by=route", "/admin/v1/audit",
	} {
		resp, err := m.edge.operate(path)
		if err == nil {
			err = drainBody(resp)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (m *mixed) changeKeys(ctx context.Context) error {
	env := []string{"IOP_EDGE_STATE=sqlite://" + filepath.Join(m.dir, "iop.db"), "IOP_ADMIN_URL=" + m.edge.admin}
	var made struct{ ID string }
	if err := m.run(ctx, env, &made, "key", "create", "--name", fmt.Sprint("passing ", time.Now().UnixNano()), "--json"); err != nil {
		return err
	}
	var ended any
	return m.run(ctx, env, &ended, "key", "revoke", made.ID, "--json")
}

// moment is one sample.
type moment struct {
	at       time.Duration
	values   []float64 // by columns; bytes in KiB
	requests float64
}

// columns are RSS and its parts (see residence); of Go's heap the objects, what of it has objects, and what is free and not given
// back; stacks; the runtime's own books as far as they are mapped; threads and goroutines; and the files of the state.
var columns = []string{"RSS", "goheap", "program", "shared", "rest", "alloc", "inuse", "idle", "stacks", "gosys", "threads", "gorout", "wal", "db"}

func (m *mixed) look(began time.Time) (s moment, err error) {
	r, err := m.edge.residence()
	if err != nil {
		return s, err
	}
	g, err := m.edge.metrics()
	if err != nil {
		return s, err
	}
	idle := g["go_memstats_heap_idle_bytes"] - g["go_memstats_heap_released_bytes"]
	books := g["go_memstats_mspan_sys_bytes"] + g["go_memstats_mcache_sys_bytes"] + g["go_memstats_buck_hash_sys_bytes"] + g["go_memstats_gc_sys_bytes"] + g["go_memstats_other_sys_bytes"]
	s.at, s.requests = time.Since(began), g["iop_requests_accepted_total"]
	for _, bytes := range []float64{float64(r.total), float64(r.heap), float64(r.program), float64(r.shared), float64(r.rest),
		g["go_memstats_heap_alloc_bytes"], g["go_memstats_heap_inuse_bytes"], idle, g["go_memstats_stack_inuse_bytes"], books} {
		s.values = append(s.values, bytes/1024)
	}
	s.values = append(s.values, g["go_threads"], g["go_goroutines"], m.fileSize("iop.db-wal"), m.fileSize("iop.db"))
	return s, nil
}

func (m *mixed) fileSize(name string) float64 {
	info, err := os.Stat(filepath.Join(m.dir, name))
	if err != nil {
		return 0
	}
	return float64(info.Size()) / 1024
}

// sample looks at each interval, prints what it sees, and the slopes behind the warm-up, which is a quarter of the time.
func (m *mixed) sample(ctx context.Context) error {
	began := time.Now()
	fmt.Printf("%8s", "seconds")
	for _, c := range columns {
		fmt.Printf(" %8s", c)
	}
	fmt.Printf(" %9s\n", "requests")
	var all []moment
	for time.Since(began) < m.hold {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(m.interval):
		}
		s, err := m.look(began)
		if err != nil {
			return err
		}
		fmt.Printf("%8.0f", s.at.Seconds())
		for _, v := range s.values {
			fmt.Printf(" %8.0f", v)
		}
		fmt.Printf(" %9.0f\n", s.requests)
		all = append(all, s)
	}
	if err := m.edge.profile(m.profiles); err != nil {
		return err
	}
	return m.report(ctx, all)
}

// report prints how much each column rises, and what became of the load's requests.
func (m *mixed) report(ctx context.Context, all []moment) error {
	settled := all[len(all)/4:]
	if len(settled) < 3 {
		return errors.New("too few samples for a line: more -hold, or less -interval")
	}
	first, last := settled[0], settled[len(settled)-1]
	fmt.Printf("%8s", "a minute")
	for i := range columns {
		fmt.Printf(" %8.1f", slope(settled, i))
	}
	fmt.Printf(" %9.0f\n", (last.requests-first.requests)/(last.at-first.at).Minutes())
	var said mixedTally
	for said.Sent == 0 || len(m.load.lines) > 0 { // what it says last
		if err := m.load.line(ctx, time.Minute, &said); err != nil {
			return err
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(said.By)) {
		fmt.Printf("%-34s %8d\n", kind, said.By[kind])
	}
	return verdict("memory outside Go's heap, rise", slope(settled, slices.Index(columns, "rest")), creepGoal/1024, "KiB a minute")
}

// slope is how much a column rises in a minute, by least squares.
func slope(samples []moment, column int) float64 {
	n := float64(len(samples))
	var sum, sumX, sumXX, sumXY float64
	for _, s := range samples {
		x, y := s.at.Minutes(), s.values[column]
		sum, sumX, sumXX, sumXY = sum+y, sumX+x, sumXX+x*x, sumXY+x*y
	}
	return (n*sumXY - sumX*sum) / (n*sumXX - sumX*sumX)
}
