package main

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
)

// newViewCommand completes a command that shows a list which only the Edge knows. What is to follow the table is printed by
// after.
func newViewCommand[T any](cmd *cobra.Command, path, header string, rows func(*T) [][]string, after ...func(*cobra.Command, *operator) error) *cobra.Command {
	var asJSON bool
	o := bindOperator(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.Args = exactly()
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.load(); err != nil {
			return err
		}
		list := listing[T]{Data: []T{}}
		if err := o.call(cmd.Context(), "GET", path, nil, &list); err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), list)
		}
		var table [][]string
		for i := range list.Data {
			table = append(table, rows(&list.Data[i])...)
		}
		if len(table) == 0 {
			sayEmpty(cmd, path)
		}
		if err := printTable(cmd.OutOrStdout(), header, table); err != nil {
			return err
		}
		for _, print := range after {
			if err := print(cmd, o); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

// whenEmpty is how the first of a kind comes about, by the path of the admin API that lists it.
var whenEmpty = map[string]string{
	"/nodes":       "\"iop join-token create --node NAME\" creates the token that a Node needs to join",
	"/routes":      "each model that a Node offers becomes one, or define them in a file for \"iop edge --config\"",
	keysPath:       "\"iop key create --name NAME\" creates one",
	joinTokensPath: "\"iop join-token create --node NAME\" creates one",
	slotsPath:      "\"iop slot set NAME --profile PROFILE\" creates one",
	"/profiles":    "\"iop profile set NAME\" creates one",
}

// sayEmpty says on standard error that there is none, and how to get one.
func sayEmpty(cmd *cobra.Command, path string) {
	if step := whenEmpty[path]; step != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "none yet: %s\n", step)
	}
}

func newRoutesCommand() *cobra.Command {
	return newViewCommand(&cobra.Command{
		Use:   "routes",
		Short: "List the routes that clients can request and the targets that serve them",
		Long: `List the routes that clients can request and the targets that serve them, with
breaker, rest, load and weight of each target. With a file of routes it also lists
models that Nodes offer without a route, models that are served only through a
route, targets that no Node offers, and probable typing errors.`,
		Example: "  iop routes\n  iop routes --json",
	}, "/routes", "ROUTE POLICY WAITING GROUP NODE PROVIDER MODEL STATE LOAD WEIGHT LOADED", routeRows, showCoverage)
}

// showCoverage prints what the routes of the file miss of the fleet, and the fleet of them.
func showCoverage(cmd *cobra.Command, o *operator) error {
	var c admin.Configuration
	if err := o.call(cmd.Context(), "GET", "/config", nil, &c); err != nil || c.Path == "" {
		return err
	}
	return printCoverage(cmd.OutOrStdout(), c.AdvertisedModels, &c.Coverage)
}

// routeRows are a route's lines: one for each target, at least one for each group.
func routeRows(r *admin.Route) [][]string {
	head := []string{r.Name, r.Policy, strconv.Itoa(r.Waiting)}
	var rows [][]string
	for i, g := range r.Groups {
		group := strconv.Itoa(i + 1)
		if i > 0 {
			group += ", when " + g.When
		}
		if len(g.Targets) == 0 {
			rows = append(rows, append(append([]string{}, head...), group, "", "", "", "no target", "", "", ""))
		}
		for j := range g.Targets {
			t := &g.Targets[j]
			loaded := ""
			if t.Loaded {
				loaded = "yes"
			}
			rows = append(rows, append(append([]string{}, head...), group, string(t.Node), string(t.Provider), t.Model, targetState(t),
				fmt.Sprintf("%d/%d", t.InFlight, t.Capacity), strconv.Itoa(t.Weight), loaded))
		}
	}
	if len(rows) == 0 {
		rows = append(rows, append(head, "", "", "", "", "no target", "", "", ""))
	}
	return rows
}

// targetState says whether a target gets runs.
func targetState(t *admin.Target) string {
	rest := ""
	if t.RestingUntil != nil {
		rest = ", for " + brief(time.Until(*t.RestingUntil))
	}
	switch {
	case !t.InService:
		return "out of service"
	case t.Breaker == "open":
		return "breaker open" + rest
	case t.Breaker == "half_open":
		return "breaker half open"
	case t.Resting:
		return "resting" + rest
	}
	return "in service"
}

func newQueueCommand() *cobra.Command {
	return newViewCommand(&cobra.Command{
		Use:   "queue",
		Short: "List the queued requests by route and principal",
		Long: `List the queued requests: one line for each route and principal with requests that
no provider has capacity for.`,
		Example: "  iop queue\n  iop queue --json",
	}, "/queue", "ROUTE WAITING LIMIT OLDEST PACE PRINCIPAL THEIRS WEIGHT", queueRows)
}

// queueRows are a queue's lines: one for each principal, at least one.
func queueRows(q *admin.Queue) [][]string {
	pace := ""
	if q.IntervalMS > 0 {
		pace = "one in " + brief(time.Duration(q.IntervalMS)*time.Millisecond)
	}
	head := []string{q.Route, strconv.Itoa(q.Waiting), strconv.Itoa(q.Limit), brief(time.Duration(q.OldestMS) * time.Millisecond), pace}
	var rows [][]string
	for _, p := range q.Principals {
		rows = append(rows, append(append([]string{}, head...), cmp.Or(p.Name, p.Principal), strconv.Itoa(p.Waiting), strconv.Itoa(p.Weight)))
	}
	if len(rows) == 0 {
		rows = append(rows, append(head, "", "", ""))
	}
	return rows
}
