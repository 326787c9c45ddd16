package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"iop/execution/safetext"
)

func jsonFlag(cmd *cobra.Command, target *bool) {
	cmd.Flags().BoolVar(target, "json", false, "print JSON, for scripts")
}

// printJSON writes v on one line.
func printJSON(w io.Writer, v any) error {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(safetext.AppendEscaped(nil, line.Bytes())) // not masked: a command that makes a key prints it here
	return err
}

// printTable writes rows under a header, in columns.
func printTable(w io.Writer, header string, rows [][]string) error {
	table := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, strings.ReplaceAll(header, " ", "\t"))
	for _, row := range rows {
		for i, cell := range row {
			row[i] = orDash(cell)
		}
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	return table.Flush()
}

// onTerminal makes text fit for a terminal: names and details come from clients, Nodes and their providers.
func onTerminal(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

// orDash is text for a terminal, with a dash in place of nothing.
func orDash(s string) string { return cmp.Or(onTerminal(s), "-") }

// ago says how long ago a time was, in the largest unit that fits; empty for never.
func ago(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return brief(time.Since(*t))
}

// briefMS is brief of milliseconds.
func briefMS(ms float64) string { return brief(time.Duration(ms * float64(time.Millisecond))) }

// brief writes a duration in its largest unit.
func brief(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// counted is a number with its noun, whose plural takes an s.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// printNumbers writes rows under a header, in columns: the first few are text, the others numbers, which stand flush
// right. The last row is a sum, below a rule if there is anything above.
func printNumbers(w io.Writer, header []string, text int, rows [][]string) error {
	widths := make([]int, len(header))
	for _, row := range rows {
		for i := range row {
			row[i] = orDash(row[i])
		}
	}
	for _, row := range append([][]string{header}, rows...) {
		for i := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	line := func(row []string) error {
		cells := make([]string, len(row))
		for i, cell := range row {
			gap := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if cells[i] = cell + gap; i >= text {
				cells[i] = gap + cell
			}
		}
		_, err := fmt.Fprintln(w, strings.TrimRight(strings.Join(cells, "  "), " "))
		return err
	}
	if err := line(header); err != nil {
		return err
	}
	rule := make([]string, len(header))
	for i := range rule {
		rule[i] = strings.Repeat("-", widths[i])
	}
	for i, row := range rows {
		if i > 0 && i == len(rows)-1 {
			if err := line(rule); err != nil {
				return err
			}
		}
		if err := line(row); err != nil {
			return err
		}
	}
	return nil
}
