package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
	"iop/state"
)

// auditPage is how many entries are asked for at once.
const auditPage = 1000

// auditFlags are the flags of `iop audit`.
type auditFlags struct {
	since                                     span
	from, to, actor, slot, profile, node, run string
	lease                                     string
	actions                                   []string
	limit                                     int
	asJSON, asCSV                             bool
}

func newAuditCommand() *cobra.Command {
	var flags auditFlags
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show who changed slots, profiles and Nodes, and each lease",
		Long: `Show who changed slots, profiles and Nodes, and each lease: who, what, when, for
which run and Node, and how it ended; the newest first, and never a value.`,
		Example: `  iop audit --since 1d
  iop audit --slot openai-main --action lease_issued,lease_refused
  iop audit --node gpu-3 --limit 0 --csv > audit.csv`,
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
		list := listing[admin.AuditEntry]{Data: []admin.AuditEntry{}}
		if list.Data, err = o.auditEntries(cmd.Context(), query, flags.limit, list.Data); err != nil {
			return err
		}
		switch {
		case flags.asJSON:
			return printJSON(cmd.OutOrStdout(), list)
		case flags.asCSV:
			return printAuditCSV(cmd.OutOrStdout(), list.Data)
		}
		return printAudit(cmd.OutOrStdout(), list.Data)
	}
	return cmd
}

func (a *auditFlags) bind(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(&a.since, "since", "how far back to look, e.g. 7d, in place of --from")
	f.StringVar(&a.from, "from", "", "a day such as 2026-03-01, or a time such as 2026-03-01T12:00:00Z")
	f.StringVar(&a.to, "to", "", "the same, exclusive; default: now")
	f.StringSliceVar(&a.actions, "action", nil, "only these actions, such as slot_set, lease_issued, node_denied")
	f.StringVar(&a.actor, "actor", "", "only what this one did")
	f.StringVar(&a.slot, "slot", "", "only this slot")
	f.StringVar(&a.profile, "profile", "", "only this profile")
	f.StringVar(&a.node, "node", "", "only this Node")
	f.StringVar(&a.run, "run", "", "only this run")
	f.StringVar(&a.lease, "lease", "", "only this lease")
	f.IntVar(&a.limit, "limit", 100, "how many entries; 0: all")
	f.BoolVar(&a.asCSV, "csv", false, "print CSV, for spreadsheets")
	jsonFlag(cmd, &a.asJSON)
}

// query is what the admin API is asked. Its error is wrong use.
func (a *auditFlags) query(now time.Time) (url.Values, error) {
	values := url.Values{}
	switch {
	case a.asCSV && a.asJSON:
		return nil, errors.New("--csv and --json exclude each other")
	case a.limit < 0:
		return nil, errors.New("--limit must be 0 or more")
	case a.since < 0:
		return nil, errors.New("--since must not be negative, for example --since 7d")
	case a.since > 0 && a.from != "":
		return nil, errors.New("--since and --from exclude each other")
	case a.since > 0:
		values.Set("from", now.Add(-time.Duration(a.since)).UTC().Format(time.RFC3339))
	}
	for name, value := range map[string]string{
		"from": a.from, "to": a.to, "action": strings.Join(a.actions, ","), "actor": a.actor, "slot": a.slot, "profile": a.profile, "node": a.node,
		"run": a.run, "lease": a.lease,
	} {
		if value != "" {
			values.Set(name, value)
		}
	}
	if _, err := admin.AuditQuery(values); err != nil {
		return nil, fmt.Errorf("--%w", err)
	}
	return values, nil
}

// auditEntries adds up to limit entries to a list, page by page; 0: all.
func (o *operator) auditEntries(ctx context.Context, query url.Values, limit int, entries []admin.AuditEntry) ([]admin.AuditEntry, error) {
	gather := func(next func() (admin.AuditPage, error)) error {
		for {
			size := auditPage
			if limit > 0 {
				size = min(size, limit-len(entries))
			}
			query.Set("limit", strconv.Itoa(size))
			page, err := next()
			if err != nil {
				return err
			}
			entries = append(entries, page.Data...)
			if page.Next == "" || limit > 0 && len(entries) >= limit {
				return nil
			}
			query.Set("before", page.Next)
		}
	}
	err := o.reach(ctx, false, func() error {
		return gather(func() (page admin.AuditPage, err error) {
			return page, o.call(ctx, "GET", "/audit?"+query.Encode(), nil, &page)
		})
	}, func(store *state.Store) error {
		return gather(func() (admin.AuditPage, error) {
			q, err := admin.AuditQuery(query)
			if err != nil {
				return admin.AuditPage{}, err
			}
			found, next, err := store.AuditEntries(ctx, q)
			return admin.AuditPageView(found, next), err
		})
	})
	return entries, err
}

func printAudit(w io.Writer, entries []admin.AuditEntry) error {
	var rows [][]string
	for i := range entries {
		e := &entries[i]
		outcome := e.Outcome
		if e.Reason != "" {
			outcome += ": " + e.Reason
		}
		subject := e.Subject
		for _, part := range []struct{ what, name string }{{"slot", string(e.Slot)}, {"profile", string(e.Profile)}, {"node", string(e.Node)}} {
			if part.name != "" {
				subject = strings.TrimSpace(subject + " " + part.what + " " + part.name)
			}
		}
		revision := ""
		if e.Revision > 0 {
			revision = strconv.FormatUint(uint64(e.Revision), 10)
		}
		rows = append(rows, []string{e.At.Format(time.RFC3339), e.Actor, e.Action, outcome, subject, revision, string(e.Run), string(e.Lease)})
	}
	return printTable(w, "AT ACTOR ACTION OUTCOME SUBJECT REVISION RUN LEASE", rows)
}

// auditColumns are the columns of the CSV: the members of an entry in its order.
var auditColumns = []string{
	"id", "at", "actor", "action", "outcome", "reason", "subject", "slot", "profile", "revision", "node", "generation", "lease", "run",
	"attempt", "principal", "route", "target", "expires",
}

// printAuditCSV writes the entries with a header line, as RFC 4180 has it.
func printAuditCSV(w io.Writer, entries []admin.AuditEntry) error {
	out := csv.NewWriter(w)
	out.UseCRLF = true
	if err := out.Write(auditColumns); err != nil {
		return err
	}
	for i := range entries {
		e := &entries[i]
		expires := ""
		if e.Expires != nil {
			expires = e.Expires.UTC().Format(time.RFC3339Nano)
		}
		row := []string{
			e.ID, e.At.Format(time.RFC3339Nano), e.Actor, e.Action, e.Outcome, e.Reason, e.Subject, string(e.Slot), string(e.Profile),
			strconv.FormatUint(uint64(e.Revision), 10), string(e.Node), strconv.FormatUint(uint64(e.Generation), 10), string(e.Lease), string(e.Run),
			strconv.Itoa(e.Attempt), string(e.Principal), string(e.Route), e.Target, expires,
		}
		for j := range row {
			row[j] = admin.NoFormula(row[j])
		}
		if err := out.Write(row); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}
