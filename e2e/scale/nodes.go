package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"iop/execution"
	"iop/tunnel"
	"iop/tunnel/wire"
)

// measureNodes holds n connected Nodes without any run.
func measureNodes(ctx context.Context, o options) error {
	h, err := newHouse(ctx, o.iop)
	if err != nil {
		return err
	}
	defer h.close()
	e, err := h.startEdge(ctx)
	if err != nil {
		return err
	}
	base, err := e.process.resident()
	if err != nil {
		return err
	}
	began := time.Now()
	load, err := h.load("load-nodes", e.token, "-url", e.tunnel(), "-n", strconv.Itoa(o.n))
	if err != nil {
		return err
	}
	// The Edge itself is not asked meanwhile: a page of metrics about a thousand Nodes takes memory as well.
	for online := 0; online < o.n; {
		if err := load.line(ctx, time.Minute, &online); err != nil {
			return fmt.Errorf("%d Nodes are online: %w", online, err)
		}
	}
	joined := time.Since(began)
	p, err := e.watch(ctx, o.hold)
	if err != nil {
		return err
	}
	if err := e.profile(o.profiles); err != nil {
		return err
	}
	m, err := e.metrics()
	if err != nil {
		return err
	}
	if m["iop_nodes_online"] != float64(o.n) || m["iop_heartbeat_timeouts_total"] > 0 {
		return fmt.Errorf("%.0f Nodes are left of %d, and %.0f heartbeats were missed", m["iop_nodes_online"], o.n, m["iop_heartbeat_timeouts_total"])
	}
	each := p.report("Nodes", o.n, base)
	fmt.Printf("%-34s %8s\n", "all connected after", joined.Round(100*time.Millisecond))
	memory := verdict("Edge's memory for each Node", each/1024, nodeGoal/1024, "KiB")
	if err := verdict("Edge's CPU", 100*p.cores(), 100*nodeCPUGoal, "% of a core"); err != nil {
		return err
	}
	return memory
}

// idle is a Node that gets no runs.
type idle struct{}

func (idle) ServeRun(context.Context, *tunnel.NodeRun) {}

// loadNodes keeps n Nodes connected until it is told to end.
func loadNodes(ctx context.Context, o options) error {
	info := &tunnel.NodeInfo{
		Labels:    map[string]string{"site": "lab", "gpu": "h100"},
		Providers: []tunnel.ProviderInfo{{ID: "gpu0", Adapter: "vllm", Capacity: 64, Health: wire.Health_HEALTH_OK}},
		Models: []tunnel.ModelInfo{
			{Provider: "gpu0", ID: "meta-llama/Llama-3.3-70B-Instruct", OwnedBy: "vllm"},
			{Provider: "gpu0", ID: "Qwen/Qwen3-32B", OwnedBy: "vllm"},
		},
		Version: "scale",
	}
	var online atomic.Int64
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	var wg sync.WaitGroup
	for i := range o.n {
		s, err := tunnel.NewSupervisor(tunnel.SupervisorConfig{
			URL: o.url, Node: execution.NodeID(fmt.Sprintf("node-%04d", i)), Handler: idle{}, Logger: log,
			Describe: func() *tunnel.NodeInfo { return info },
			Token:    func() (string, error) { return o.secret, nil },
			OnStatus: func(st tunnel.SupervisorStatus) {
				if st.State == tunnel.StateOnline {
					fmt.Println(online.Add(1))
				}
			},
		})
		if err != nil {
			return err
		}
		wg.Go(func() { _ = s.Run(ctx) }) // it ends with ctx
	}
	wg.Wait()
	return nil
}
