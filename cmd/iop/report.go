package main

import (
	"encoding/csv"
	"errors"
	"io"
	"iter"
	"net/url"
	"time"

	"github.com/spf13/cobra"
)

// reportFlags are what the commands that show what was recorded have in common: of which time, and as what.
type reportFlags struct {
	since         span
	from, to      string
	asJSON, asCSV bool
}

func (r *reportFlags) bind(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(&r.since, "since", "how far back to go, e.g. 7d, instead of --from")
	f.StringVar(&r.from, "from", "", "start: a date such as 2026-03-01, or a time such as 2026-03-01T12:00:00Z")
	f.StringVar(&r.to, "to", "", "end, exclusive, in the same form; default: now")
	f.BoolVar(&r.asCSV, "csv", false, "print CSV, for spreadsheets")
	jsonFlag(cmd, &r.asJSON)
}

// query is what the admin API is asked: the times, from --since too. Its error is wrong use.
func (r *reportFlags) query(now time.Time) (url.Values, error) {
	switch {
	case r.asCSV && r.asJSON:
		return nil, errors.New("--csv and --json can't be combined")
	case r.since < 0:
		return nil, errors.New("--since must not be negative, for example --since 7d")
	case r.since > 0 && r.from != "":
		return nil, errors.New("--since and --from can't be combined")
	}
	values := url.Values{}
	setGiven(values, map[string]string{"from": r.from, "to": r.to})
	if r.since > 0 {
		values.Set("from", now.Add(-time.Duration(r.since)).UTC().Format(time.RFC3339))
	}
	return values, nil
}

// setGiven sets those of the parameters that have a value.
func setGiven(values url.Values, parameters map[string]string) {
	for name, value := range parameters {
		if value != "" {
			values.Set(name, value)
		}
	}
}

// printCSV writes a header line and the rows, as RFC 4180 has it.
func printCSV(w io.Writer, header []string, rows iter.Seq[[]string]) error {
	out := csv.NewWriter(w)
	out.UseCRLF = true
	if err := out.Write(header); err != nil {
		return err
	}
	for row := range rows {
		if err := out.Write(row); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}
