package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
)

// usageFlags are the flags of `iop usage`.
type usageFlags struct {
	reportFlags
	by                          []string
	key, principal, route, node string
	records                     bool
}

func newUsageCommand() *cobra.Command {
	var flags usageFlags
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "Show usage: runs, tokens and times by key, model, day and more",
		Long: `Show usage: runs, tokens and times by key, model, day and more.

Without --from or --since it covers the last 30 days. Days start at midnight UTC.
A ~ marks tokens of which some are estimated.
With --records it writes one record per run instead, oldest first: JSON Lines, or
CSV. In CSV, values that a spreadsheet would read as a formula start with an
apostrophe.`,
		Example: `  iop usage --by key,model --since 7d
  iop usage --by day --key alice --from 2026-03-01 --to 2026-04-01
  iop usage --records --csv --since 30d > usage.csv`,
		Args: exactly(),
	}
	o := bindOperator(cmd)
	flags.bind(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.load(); err != nil {
			return err
		}
		query, err := flags.query(time.Now())
		if err != nil {
			return usageError{err}
		}
		if flags.records {
			return o.exportUsage(cmd, query)
		}
		var usage admin.Usage
		if err := o.call(cmd.Context(), "GET", "/usage?"+query.Encode(), nil, &usage); err != nil {
			return err
		}
		if usageTotal(usage.Data).Runs == 0 {
			warn(cmd, flags.doubts(cmd.Context(), o))
		}
		switch {
		case flags.asJSON:
			return printJSON(cmd.OutOrStdout(), usage)
		case flags.asCSV:
			return printUsageCSV(cmd.OutOrStdout(), &usage)
		}
		return printUsage(cmd.OutOrStdout(), &usage)
	}
	return cmd
}

func (u *usageFlags) bind(cmd *cobra.Command) {
	u.reportFlags.bind(cmd)
	f := cmd.Flags()
	f.StringSliceVar(&u.by, "by", nil, "what to group by: some of "+strings.Join(admin.Dimensions, ", "))
	f.StringVar(&u.key, "key", "", "only usage of this key, by its name or id")
	f.StringVar(&u.principal, "principal", "", "only usage of this principal, as --by principal prints it: an owner, or key:NAME")
	f.StringVar(&u.route, "route", "", "only this route")
	f.StringVar(&u.node, "node", "", "only usage on this Node")
	f.BoolVar(&u.records, "records", false, "write one record per run")
}

// query is what the admin API is asked. Its error is wrong use.
func (u *usageFlags) query(now time.Time) (url.Values, error) {
	values, err := u.reportFlags.query(now)
	switch {
	case err != nil:
		return nil, err
	case u.records && len(u.by) > 0:
		return nil, errors.New("--records and --by can't be combined")
	case u.since > 0 && u.to != "":
		return nil, errors.New("--since counts back from now: use --from with --to")
	}
	for _, name := range u.by {
		if !slices.Contains(admin.Dimensions, name) {
			return nil, fmt.Errorf("--by takes some of %s, not %q", strings.Join(admin.Dimensions, ", "), name)
		}
	}
	for _, t := range []struct{ name, text string }{{"from", u.from}, {"to", u.to}} {
		if t.text == "" {
			continue
		}
		if _, err := admin.ParseTime(t.text); err != nil {
			return nil, fmt.Errorf("--%s %w", t.name, err)
		}
	}
	setGiven(values, map[string]string{
		"by": strings.Join(u.by, ","), "key": u.key, "principal": u.principal, "route": u.route, "node": u.node,
	})
	if u.records && u.asCSV {
		values.Set("format", "csv")
	}
	return values, nil
}

// exportUsage passes the records on as they come.
func (o *operator) exportUsage(cmd *cobra.Command, query url.Values) error {
	response, err := o.open(cmd.Context(), "GET", "/usage/records?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(cmd.OutOrStdout(), response.Body); err != nil {
		return fmt.Errorf("the export was cut off and is incomplete: %w", err)
	}
	return nil
}

// usageHeader names the columns, after those of the dimensions.
var usageHeader = []string{"RUNS", "COMPLETED", "FAILED", "CANCELLED", "REJECTED", "INPUT", "CACHED", "OUTPUT", "REASONING", "QUEUE", "TTFT", "TOOK"}

func printUsage(w io.Writer, usage *admin.Usage) error {
	fmt.Fprintf(w, "from %s to %s\n\n", usage.From.UTC().Format(time.RFC3339), usage.To.UTC().Format(time.RFC3339))
	by := usage.By
	if len(by) == 0 {
		by = []string{""}
	}
	header := make([]string, 0, len(by)+len(usageHeader))
	for _, name := range by {
		header = append(header, strings.ToUpper(name))
	}
	var rows [][]string
	if len(usage.By) > 0 {
		shared := sharedNames(usage.Data)
		for i := range usage.Data {
			row := usage.Data[i]
			row.Key, row.Principal = named(row.KeyName, row.Key, shared), cmp.Or(row.PrincipalName, row.Principal)
			rows = append(rows, append(groupOf(&row, by), usageCells(&row)...))
		}
	}
	sum := usageTotal(usage.Data)
	total := make([]string, len(by))
	total[0] = "total"
	rows = append(rows, append(total, usageCells(&sum)...))
	return printNumbers(w, append(header, usageHeader...), len(by), rows)
}

// sharedNames are the names that several keys of the rows have: a name may be used again once its key is revoked.
func sharedNames(rows []admin.UsageRow) map[string]bool {
	ids, shared := map[string]string{}, map[string]bool{}
	for i := range rows {
		name, id := rows[i].KeyName, rows[i].Key
		if other, seen := ids[name]; seen && other != id {
			shared[name] = true
		}
		ids[name] = id
	}
	return shared
}

// named is a key by its name, and its id where that does not tell it from another one.
func named(name, id string, shared map[string]bool) string {
	switch {
	case name == "":
		return id
	case shared[name]:
		return name + " (" + id + ")"
	}
	return name
}

// groupOf is what the row is grouped by.
func groupOf(r *admin.UsageRow, by []string) []string {
	values := map[string]string{
		"key": r.Key, "principal": r.Principal, "route": r.Route, "model": r.Model, "node": r.Node, "provider": r.Provider,
		"outcome": r.Outcome, "day": r.Day, "month": r.Month, "session": r.Session,
	}
	cells := make([]string, len(by))
	for i, name := range by {
		cells[i] = values[name]
	}
	return cells
}

func usageCells(r *admin.UsageRow) []string {
	var cells []string
	for i, n := range usageCounts(r) {
		cell := strconv.FormatInt(n, 10)
		if name := usageHeader[i]; r.Estimated > 0 && (name == "INPUT" || name == "OUTPUT") {
			cell = "~" + cell
		}
		cells = append(cells, cell)
	}
	for _, ms := range usageTimes(r) {
		cell := ""
		if ms > 0 {
			cell = briefMS(ms)
		}
		cells = append(cells, cell)
	}
	return cells
}

// usageTotal sums rows up. The mean time to the first token has no total: how many runs had one is not told.
func usageTotal(rows []admin.UsageRow) (sum admin.UsageRow) {
	for i := range rows {
		r := &rows[i]
		sum.Runs += r.Runs
		sum.Completed += r.Completed
		sum.Failed += r.Failed
		sum.Cancelled += r.Cancelled
		sum.Rejected += r.Rejected
		sum.Input += r.Input
		sum.Cached += r.Cached
		sum.Output += r.Output
		sum.Reasoning += r.Reasoning
		sum.Estimated += r.Estimated
		sum.QueueMS += r.QueueMS * float64(r.Runs)
		sum.DurationMS += r.DurationMS * float64(r.Runs)
	}
	if sum.Runs > 0 {
		sum.QueueMS /= float64(sum.Runs)
		sum.DurationMS /= float64(sum.Runs)
	}
	if len(rows) == 1 {
		sum.FirstTokenMS = rows[0].FirstTokenMS
	}
	return sum
}

func printUsageCSV(w io.Writer, usage *admin.Usage) error {
	header := append(slices.Clone(usage.By), "runs", "completed", "failed", "cancelled", "rejected", "input_tokens", "cached_tokens",
		"output_tokens", "reasoning_tokens", "queue_ms", "first_token_ms", "duration_ms")
	header = append(append(header, nameColumns(usage.By)...), "estimated_runs")
	return printCSV(w, header, func(yield func([]string) bool) {
		for i := range usage.Data {
			if !yield(usageLine(&usage.Data[i], usage.By)) {
				return
			}
		}
	})
}

// nameColumns are the last columns of the CSV: the names of what is grouped by and has one.
func nameColumns(by []string) (columns []string) {
	for _, name := range by {
		if name == "key" || name == "principal" {
			columns = append(columns, name+"_name")
		}
	}
	return columns
}

// usageLine is a row of the CSV.
func usageLine(r *admin.UsageRow, by []string) []string {
	row := groupOf(r, by)
	for i := range row {
		row[i] = admin.NoFormula(row[i])
	}
	for _, n := range usageCounts(r) {
		row = append(row, strconv.FormatInt(n, 10))
	}
	for _, ms := range usageTimes(r) {
		row = append(row, strconv.FormatFloat(ms, 'f', -1, 64))
	}
	for _, column := range nameColumns(by) {
		row = append(row, admin.NoFormula(map[string]string{"key_name": r.KeyName, "principal_name": r.PrincipalName}[column]))
	}
	return append(row, strconv.FormatInt(r.Estimated, 10))
}

// usageCounts are the numbers of a row, in the order of the columns.
func usageCounts(r *admin.UsageRow) []int64 {
	return []int64{r.Runs, r.Completed, r.Failed, r.Cancelled, r.Rejected, r.Input, r.Cached, r.Output, r.Reasoning}
}

// usageTimes are the mean times of a row in milliseconds, in the order of the columns, which they end.
func usageTimes(r *admin.UsageRow) []float64 {
	return []float64{r.QueueMS, r.FirstTokenMS, r.DurationMS}
}
