package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// The goals, in bytes each and in parts of one core.
const (
	streamGoal  = 40 << 10
	nodeGoal    = 60 << 10
	nodeCPUGoal = 0.03
	creepGoal   = 50 << 10 // a minute, outside Go's heap, behind the warm-up
)

// options are what the command line says.
type options struct {
	n        int           // streams or Nodes
	hold     time.Duration // how long the load stands while it is measured
	gap      time.Duration // between two chunks of a stream
	iop      string        // binary; empty: build it
	profiles string        // directory for heap and goroutine profiles of the Edge at the plateau; empty: none

	// Of the mixed load.
	rate     float64       // requests a second
	kinds    string        // of load, with commas between; empty: all
	interval time.Duration // between two samples

	// Of the processes that this one starts.
	url, secret string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	modes := map[string]struct {
		f    func(context.Context, options) error
		n    int
		hold time.Duration
	}{
		"streams": {measureStreams, 2000, 30 * time.Second},
		"nodes":   {measureNodes, 1000, 90 * time.Second},
		"mixed":   {measureMixed, 0, time.Hour},
		// The load's side, each in a process of its own.
		"load-streams": {loadStreams, 0, 0},
		"load-nodes":   {loadNodes, 0, 0},
		"load-mixed":   {loadMixed, 0, 0},
	}
	if len(args) == 0 {
		return errors.New("want streams, nodes or mixed")
	}
	mode, ok := modes[args[0]]
	if !ok {
		return fmt.Errorf("%q is no measurement, want streams, nodes or mixed", args[0])
	}
	o := options{secret: os.Getenv(secretVariable)}
	fs := flag.NewFlagSet("scale "+args[0], flag.ContinueOnError)
	fs.IntVar(&o.n, "n", mode.n, "how many")
	fs.DurationVar(&o.hold, "hold", mode.hold, "how long the load stands while it is measured")
	fs.DurationVar(&o.gap, "gap", 500*time.Millisecond, "time between two chunks of a stream")
	fs.StringVar(&o.iop, "iop", "", "binary to measure; built from here without it")
	fs.StringVar(&o.profiles, "profiles", "", "directory for profiles of the Edge under load")
	fs.Float64Var(&o.rate, "rate", 20, "requests a second of the mixed load")
	fs.StringVar(&o.kinds, "kinds", "", "kinds of the mixed load, with commas between; all without it")
	fs.DurationVar(&o.interval, "interval", 30*time.Second, "time between two samples of the mixed load")
	fs.StringVar(&o.url, "url", "", "for the processes that this one starts")
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	return mode.f(ctx, o)
}

// verdict prints a measure beside its goal.
func verdict(what string, measured, goal float64, unit string) error {
	fmt.Printf("%-34s %8.1f %s, goal: at most %.0f\n", what, measured, unit, goal)
	if measured > goal {
		return fmt.Errorf("%s: %.1f %s, over %.0f", what, measured, unit, goal)
	}
	return nil
}
