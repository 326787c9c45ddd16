package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
)

func newRunsCommand() *cobra.Command {
	var follow, asJSON bool
	var query runQuery
	cmd := &cobra.Command{
		Use:   "runs",
		Short: "List active and recent runs; --follow prints each run as it ends",
		Long: `List the active runs and the most recent ended ones. With --follow it also prints
each run as it ends, until Ctrl-C. For runs that ended badly, STATE shows the code
that the client got, then the run's own code in brackets if it differs, and DETAIL
what the Node reported, which clients never see. A ~ marks TOKENS that
are estimated.`,
		Example: `  iop runs --limit 20
  iop runs --run-state active --node gpu-3
  iop runs --follow
  iop runs --follow --json | jq 'select(.outcome != "completed")'`,
		Args: exactly(),
	}
	o := bindOperator(cmd)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "print each run as it ends, until Ctrl-C")
	query.bind(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.load(); err != nil {
			return err
		}
		if query.limit < 0 {
			return usageError{fmt.Errorf("--limit must be 0 or more, not %d", query.limit)}
		}
		if follow {
			if isTerminal(cmd.ErrOrStderr()) {
				fmt.Fprintln(cmd.ErrOrStderr(), "each run is shown when it ends; press Ctrl-C to stop")
			}
			return o.followRuns(cmd, query.text()+"&follow", asJSON)
		}
		list := listing[admin.Run]{Data: []admin.Run{}}
		if err := o.call(cmd.Context(), "GET", "/runs?"+query.text(), nil, &list); err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), list)
		}
		var rows [][]string
		for i := range list.Data {
			rows = append(rows, runRow(&list.Data[i]))
		}
		return printTable(cmd.OutOrStdout(), runHeader, rows)
	}
	cmd.AddCommand(newRunShowCommand())
	return cmd
}

// runQuery are the flags that choose among runs.
type runQuery struct {
	limit                            int
	state, key, route, node, outcome string
}

func (q *runQuery) bind(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&q.limit, "limit", 20, "number of runs to show at first")
	f.StringVar(&q.state, "run-state", "", "only runs in this state: queued, active or ended")
	f.StringVar(&q.key, "key", "", "only runs of this key, by its name or id")
	f.StringVar(&q.route, "route", "", "only runs of this route")
	f.StringVar(&q.node, "node", "", "only runs on this Node")
	f.StringVar(&q.outcome, "outcome", "", "only runs with this outcome: completed, failed, cancelled or rejected")
}

// text is the query of the admin API.
func (q *runQuery) text() string {
	values := url.Values{"limit": {strconv.Itoa(q.limit)}}
	for name, value := range map[string]string{"state": q.state, "key": q.key, "route": q.route, "node": q.node, "outcome": q.outcome} {
		if value != "" {
			values.Set(name, value)
		}
	}
	return values.Encode()
}

func (o *operator) followRuns(cmd *cobra.Command, query string, asJSON bool) error {
	response, err := o.open(cmd.Context(), "GET", "/runs?"+query, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadBytes('\n')
		switch {
		case cmd.Context().Err() != nil:
			return nil // Ctrl-C is how this ends
		case err == io.EOF:
			return errors.New("the Edge stopped; run the same command again once it is back")
		case err != nil:
			return fmt.Errorf("the Edge's response was cut off: %w", err)
		}
		if err := printRunLine(cmd.OutOrStdout(), line, asJSON); err != nil {
			return err
		}
	}
}

func printRunLine(w io.Writer, line []byte, asJSON bool) error {
	if asJSON {
		_, err := w.Write(line)
		return err
	}
	var run admin.Run
	if err := json.Unmarshal(line, &run); err != nil {
		return fmt.Errorf("the response is not from an admin API of this version: %w", err)
	}
	v := viewRun(&run)
	_, err := fmt.Fprintf(w, "%s  %s  %-24s  %-12s  %-20s  %s/%s  queue %s  took %s  tokens %s  %s  %s\n",
		run.Started.Local().Format(time.TimeOnly), orDash(string(run.ID)), orDash(v.state), orDash(v.key), orDash(v.route), orDash(string(run.Node)),
		orDash(string(run.Provider)), v.queue, v.took, orDash(v.tokens), orDash(run.Reason), orDash(run.Detail))
	return err
}

// runView is what is shown of a run in words of its own.
type runView struct {
	state       string // with the code of a run that ended badly
	key         string // its name, or its id
	route       string // or the model, where there is none
	queue, took string
	tokens      string // input+output; empty: not known
}

func viewRun(r *admin.Run) runView {
	v := runView{
		state: r.State, key: cmp.Or(r.KeyName, string(r.Key)), route: cmp.Or(r.Route, r.Model),
		queue: brief(time.Duration(r.QueueMS) * time.Millisecond), took: briefMS(r.DurationMS),
	}
	switch {
	case r.State == "active":
		v.state = r.Phase
	case r.State == "ended" && r.Codes() == "":
		v.state = r.Outcome
	case r.State == "ended":
		v.state = r.Outcome + ": " + r.Codes()
	}
	if r.Usage != nil {
		v.tokens = fmt.Sprintf("%d+%d", r.Usage.Input, r.Usage.Output)
		if r.Usage.Estimated {
			v.tokens = "~" + v.tokens
		}
	}
	return v
}

// runHeader names the cells of runRow.
const runHeader = "RUN STATE KEY ROUTE NODE PROVIDER STARTED QUEUE TOOK TOKENS REASON DETAIL"

func runRow(r *admin.Run) []string {
	v := viewRun(r)
	return []string{string(r.ID), v.state, v.key, v.route, string(r.Node), string(r.Provider), ago(&r.Started), v.queue, v.took, v.tokens, r.Reason, r.Detail}
}

func newCancelCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "cancel RUN",
		Short: "Cancel a run: the Node ends its request to the provider",
		Long: `Cancel a run: the Node ends its request to the provider, and the client gets
run_cancelled. If the run has already ended, the exit status is 1.`,
		Example: "  iop cancel run_4x2k…",
		Args:    exactly("the run's id"),
	}
	o := bindOperator(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.load(); err != nil {
			return err
		}
		var answer any
		if err := o.call(cmd.Context(), "POST", "/runs/"+url.PathEscape(args[0])+"/cancel", nil, &answer); err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), answer)
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is being cancelled\n", args[0])
		return err
	}
	return cmd
}
