package main

import (
	"context"
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
	reportFlags
	actor, slot, profile, node, run, lease string
	key, joinToken, source                 string
	actions                                []string
	limit                                  int
}

func newAuditCommand() *cobra.Command {
	var flags auditFlags
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show who changed what at the Edge, and every lease",
		Long: `Show who changed what at the Edge, and every lease: keys, join tokens, slots,
profiles, the node list, Ollama models, drained Nodes, cancelled runs, reloads and
sign-ins, refused ones too. Newest first; secrets are never shown.

ACTOR is admin (the admin token), console, command (without an Edge), node, edge
or local; of a lease it is the Edge's id. SOURCE is the address that the request
came from, or the user who ran the command.`,
		Example: `  iop audit --since 1d
  iop audit --key alice
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
	a.reportFlags.bind(cmd)
	f := cmd.Flags()
	f.StringSliceVar(&a.actions, "action", nil, "only these actions, such as slot_set, lease_issued, node_denied")
	f.StringVar(&a.actor, "actor", "", "only actions by this actor")
	f.StringVar(&a.slot, "slot", "", "only this slot")
	f.StringVar(&a.profile, "profile", "", "only this profile")
	f.StringVar(&a.node, "node", "", "only this Node")
	f.StringVar(&a.run, "run", "", "only this run")
	f.StringVar(&a.lease, "lease", "", "only this lease")
	f.StringVar(&a.key, "key", "", "only changes of this key, by its name or id")
	f.StringVar(&a.joinToken, "join-token", "", "only changes and uses of this join token, by its id")
	f.StringVar(&a.source, "source", "", "only what came from this address")
	f.IntVar(&a.limit, "limit", 100, "maximum number of entries; 0: all")
}

// query is what the admin API is asked. Its error is wrong use.
func (a *auditFlags) query(now time.Time) (url.Values, error) {
	if a.limit < 0 {
		return nil, errors.New("--limit must be 0 or more")
	}
	values, err := a.reportFlags.query(now)
	if err != nil {
		return nil, err
	}
	setGiven(values, map[string]string{
		"action": strings.Join(a.actions, ","), "actor": a.actor, "slot": a.slot, "profile": a.profile, "node": a.node, "run": a.run, "lease": a.lease,
		"key": a.key, "join_token": a.joinToken, "source": a.source,
	})
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
			if q.Key != "" {
				key, err := store.FindKey(ctx, string(q.Key))
				if err != nil {
					return admin.AuditPage{}, err
				}
				q.Key = key.ID
			}
			return admin.ReadAudit(ctx, store, q)
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
		for _, part := range []struct{ what, name string }{{"key", string(e.Key)}, {"join token", string(e.JoinToken)}, {"slot", string(e.Slot)}, {"profile", string(e.Profile)}, {"node", string(e.Node)}} {
			if part.name != "" {
				subject = strings.TrimSpace(subject + " " + part.what + " " + part.name)
			}
		}
		revision := ""
		if e.Revision > 0 {
			revision = strconv.FormatUint(uint64(e.Revision), 10)
		}
		rows = append(rows, []string{e.At.Format(time.RFC3339), e.Actor, e.Source, e.Action, outcome, subject, e.Detail, revision, string(e.Run), string(e.Lease)})
	}
	return printTable(w, "AT ACTOR SOURCE ACTION OUTCOME SUBJECT DETAIL REVISION RUN LEASE", rows)
}

// auditColumns are the columns of the CSV: the members of an entry in its order.
var auditColumns = []string{
	"id", "at", "actor", "action", "outcome", "reason", "subject", "slot", "profile", "revision", "node", "generation", "lease", "run",
	"attempt", "principal", "route", "target", "expires", "key", "join_token", "source", "session", "detail",
}

func printAuditCSV(w io.Writer, entries []admin.AuditEntry) error {
	return printCSV(w, auditColumns, func(yield func([]string) bool) {
		for i := range entries {
			if !yield(auditRow(&entries[i])) {
				return
			}
		}
	})
}

// auditRow is an entry under the auditColumns.
func auditRow(e *admin.AuditEntry) []string {
	expires := ""
	if e.Expires != nil {
		expires = e.Expires.UTC().Format(time.RFC3339Nano)
	}
	row := []string{
		e.ID, e.At.Format(time.RFC3339Nano), e.Actor, e.Action, e.Outcome, e.Reason, e.Subject, string(e.Slot), string(e.Profile),
		strconv.FormatUint(uint64(e.Revision), 10), string(e.Node), strconv.FormatUint(uint64(e.Generation), 10), string(e.Lease), string(e.Run),
		strconv.Itoa(e.Attempt), string(e.Principal), string(e.Route), e.Target, expires, string(e.Key),
		string(e.JoinToken), e.Source, e.Session, e.Detail,
	}
	for i := range row {
		row[i] = admin.NoFormula(row[i])
	}
	return row
}
