package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
)

// drainPoll is how often `iop drain --wait` asks whether the last run has ended.
const drainPoll = 500 * time.Millisecond

// drain is a call of `iop drain`.
type drain struct {
	*operator
	node   string
	resume bool
	wait   bool
	within time.Duration // 0: as long as it takes
	asJSON bool
	out    io.Writer
}

func newDrainCommand() *cobra.Command {
	d := &drain{}
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Stop sending new runs to a Node; open runs finish",
		Long: `Stop sending new runs to a Node; open runs finish. This lasts until --resume, or
until the Node's process restarts.

With --wait the command returns when the last run has ended. With exit status 0 the
Node can be stopped without interrupting a run. With exit status 1 it can't:
--timeout passed, the Node disconnected, or it was resumed. After a timeout or
Ctrl-C the Node stays drained.`,
		Example: "  iop drain gpu-3 --wait\n  iop drain gpu-3 --wait --timeout 10m --json\n  iop drain gpu-3 --resume",
		Args:    exactly("the Node's name"),
	}
	d.operator = bindOperator(cmd)
	cmd.Flags().BoolVar(&d.resume, "resume", false, "send it runs again")
	cmd.Flags().BoolVar(&d.wait, "wait", false, "wait until its last run has ended")
	cmd.Flags().DurationVar(&d.within, "timeout", 0, "with --wait: maximum time to wait; 0: no limit")
	jsonFlag(cmd, &d.asJSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case d.resume && d.wait:
			return usageError{errors.New("--resume and --wait can't be combined")}
		case d.within != 0 && !d.wait:
			return usageError{errors.New("--timeout is for --wait")}
		case d.within < 0:
			return usageError{errors.New("--timeout must not be negative")}
		}
		if err := d.load(); err != nil {
			return err
		}
		d.node, d.out = args[0], cmd.OutOrStdout()
		return d.run(cmd.Context(), cmd.ErrOrStderr())
	}
	return cmd
}

func (d *drain) run(ctx context.Context, progress io.Writer) error {
	action, word := "drain", "gets no new runs"
	if d.resume {
		action, word = "resume", "gets runs again"
	}
	var answer any
	if err := d.call(ctx, "POST", "/nodes/"+url.PathEscape(d.node)+"/"+action, nil, &answer); err != nil {
		return d.nextStep(ctx, d.node, err)
	}
	switch {
	case d.wait:
		return d.drained(ctx, progress)
	case d.asJSON:
		return printJSON(d.out, answer)
	}
	_, err := fmt.Fprintf(d.out, "%s %s\n", d.node, word)
	return err
}

// drained waits until the Node's last run has ended.
func (d *drain) drained(ctx context.Context, terminal io.Writer) error {
	if d.within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.within)
		defer cancel()
	}
	line := newProgress(terminal)
	node, err := d.follow(ctx, line)
	line.clear()
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		err = fmt.Errorf("%s still has %s after %s", d.node, counted(node.OpenRuns, "open run"), d.within)
	}
	if d.asJSON && node.Node != "" {
		err = errors.Join(err, printJSON(d.out, map[string]any{"node": node.Node, "state": node.State, "open_runs": node.OpenRuns}))
	} else if err == nil {
		_, err = fmt.Fprintf(d.out, "%s is drained: it has no runs\n", d.node)
	}
	return err
}

// follow asks for the Node until it is drained, and returns what it was like last. The error says why it can't be drained.
func (d *drain) follow(ctx context.Context, line *progress) (node admin.Node, err error) {
	d.progress = nil // the line is ours
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for {
		var now admin.Node
		if err := d.call(ctx, "GET", "/nodes/"+url.PathEscape(d.node), nil, &now); err != nil {
			return node, d.nextStep(ctx, d.node, err)
		}
		switch node = now; {
		case node.State == "drained":
			return node, nil
		case node.State == "offline":
			return node, fmt.Errorf("%s disconnected before its runs ended: %s", d.node, onTerminal(node.LastCause))
		case !node.Drain:
			return node, fmt.Errorf("%s is no longer draining: it was resumed, or its process restarted", d.node)
		}
		line.show(fmt.Sprintf("%s: %s open", d.node, counted(node.OpenRuns, "run")))
		select {
		case <-ctx.Done():
			return node, ctx.Err()
		case <-tick.C:
		}
	}
}
