package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"iop/bench"
)

// benchSettings are the flags of `iop bench`; each is a variable with the prefix IOP_BENCH_ too.
type benchSettings struct {
	URL          string        `env:"URL" help:"base URL to measure" example:"http://127.0.0.1:8480/v1" absent:"required"`
	Key          string        `env:"KEY" secret:"true" help:"API key"`
	Model        string        `env:"MODEL" help:"model to request" example:"sim-small" absent:"required"`
	Concurrency  int           `env:"CONCURRENCY" min:"1" max:"10000" help:"concurrent requests" example:"8"`
	Requests     int           `env:"REQUESTS" min:"0" max:"10000000" help:"total requests; 0: as many as fit in --duration" example:"100"`
	Duration     time.Duration `env:"DURATION" min:"0s" max:"1h" help:"how long to start new requests; open ones then get 30s to finish" example:"1m"`
	Stream       bool          `env:"STREAM" help:"request streaming responses"`
	MaxTokens    int           `env:"MAX_TOKENS" min:"0" max:"1000000000" help:"max_tokens of each request; 0 sends none" example:"128"`
	Prompt       string        `env:"PROMPT" help:"the user's message"`
	Against      string        `env:"AGAINST" help:"second base URL, measured alternately with the first" example:"http://127.0.0.1:8000/v1"`
	AgainstKey   string        `env:"AGAINST_KEY" secret:"true" help:"its API key; default: the same" absent:"the same"`
	AgainstModel string        `env:"AGAINST_MODEL" help:"its model; default: the same" absent:"the same"`
}

func newBenchCommand() *cobra.Command {
	config := benchSettings{
		Concurrency: 4, Requests: 100, Duration: time.Minute, Stream: true, MaxTokens: 128,
		Prompt: "Tell a story about a lighthouse.",
	}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Load-test a URL and report what a client would see",
		Long: `Load-test a URL and report what a client would see:
time to first token, time between tokens, tokens per second, errors by kind.

Nothing is retried. The test ends after --requests requests or --duration.
With --against, both targets get the same load alternately, and the ratios are
first to second. Progress is printed on standard error. The exit status is 1 if
every request failed.`,
		Example: `  iop bench --url http://127.0.0.1:8480/v1 --key-file key --model sim-small
  iop bench --url http://127.0.0.1:8480/v1 --key-file key --model llama3 \
    --concurrency 32 --requests 0 --duration 2m --against http://127.0.0.1:11434/v1 --json`,
		Args: exactly(),
	}
	s := bindSettings(cmd, "IOP_BENCH_", &config, nil)
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := config.load(s); err != nil {
			return err
		}
		if config.Against != "" {
			return config.compare(cmd, asJSON)
		}
		report, err := bench.Run(cmd.Context(), config.bench(cmd.ErrOrStderr()))
		if err != nil {
			return usageError{err}
		}
		if err := printReport(cmd.OutOrStdout(), asJSON, report); err != nil {
			return err
		}
		return allFailed(report)
	}
	return cmd
}

func (c *benchSettings) load(s *settings) error {
	if err := s.load(); err != nil {
		return err
	}
	for _, required := range []struct{ name, value string }{{"URL", c.URL}, {"MODEL", c.Model}} {
		if required.value == "" {
			return s.fault(required.name, "is required")
		}
	}
	return nil
}

func (c *benchSettings) bench(progress io.Writer) bench.Config {
	return bench.Config{
		Target:      bench.Target{URL: c.URL, Key: c.Key, Model: c.Model},
		Concurrency: c.Concurrency, Requests: c.Requests, Duration: c.Duration,
		Stream: c.Stream, MaxTokens: c.MaxTokens, Prompt: c.Prompt,
		Progress: func(p bench.Progress) { printProgress(progress, p) },
	}
}

func (c *benchSettings) compare(cmd *cobra.Command, asJSON bool) error {
	other := bench.Target{URL: c.Against, Key: c.AgainstKey, Model: c.AgainstModel}
	if other.Key == "" {
		other.Key = c.Key
	}
	if other.Model == "" {
		other.Model = c.Model
	}
	comparison, err := bench.Compare(cmd.Context(), c.bench(cmd.ErrOrStderr()), other)
	if err != nil {
		return usageError{err}
	}
	if err := printComparison(cmd.OutOrStdout(), asJSON, comparison); err != nil {
		return err
	}
	if err := allFailed(comparison.Target); err != nil {
		return err
	}
	return allFailed(comparison.Against)
}

func allFailed(r bench.Report) error {
	if r.Requests > 0 && r.Failed == r.Requests {
		return fmt.Errorf("every request to %s failed, the first with: %s", r.URL, r.FirstError)
	}
	return nil
}

func printProgress(w io.Writer, p bench.Progress) {
	wanted := ""
	if p.RequestsWanted > 0 {
		wanted = fmt.Sprintf("/%d", p.RequestsWanted)
	}
	end := "\n"
	if f, ok := w.(*os.File); ok && isTerminal(f) {
		end = "\r"
	}
	fmt.Fprintf(w, "%4.0fs  %d%s requests, %d failed, %d in flight, %d tokens %s",
		p.Elapsed.Seconds(), p.Ended, wanted, p.Failed, p.UnderWay, p.Tokens, end)
}

func printReport(w io.Writer, asJSON bool, r bench.Report) error {
	if asJSON {
		return printJSON(w, r)
	}
	fmt.Fprintf(w, "%s  %s\n\n", r.URL, r.Model)
	if err := printTable(w, "ms p50 p90 p99 max", quantileRows(r)); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%d requests in %.1f s, %.1f/s; %d tokens, %.1f/s\n", r.Requests, r.Seconds, r.RequestsPerSecond, r.Tokens, r.TokensPerSecond)
	printErrors(w, r)
	return nil
}

func quantileRows(r bench.Report) [][]string {
	var rows [][]string
	for _, row := range []struct {
		name string
		q    bench.Quantiles
	}{{"first token", r.TTFT}, {"between tokens", r.InterToken}, {"whole response", r.Latency}} {
		cells := []string{row.name}
		for _, ms := range []float64{row.q.P50, row.q.P90, row.q.P99, row.q.Max} {
			cells = append(cells, fmt.Sprintf("%.2f", ms))
		}
		rows = append(rows, cells)
	}
	return rows
}

func printErrors(w io.Writer, r bench.Report) {
	if r.Failed == 0 {
		return
	}
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(r.Errors)) {
		kinds = append(kinds, fmt.Sprintf("%s %d", kind, r.Errors[kind]))
	}
	fmt.Fprintf(w, "%d failed (%s); the first: %s\n", r.Failed, strings.Join(kinds, ", "), r.FirstError)
}

func printComparison(w io.Writer, asJSON bool, c bench.Comparison) error {
	if asJSON {
		return printJSON(w, c)
	}
	for _, r := range []bench.Report{c.Target, c.Against} {
		if err := printReport(w, false, r); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	rows := [][]string{}
	for _, row := range []struct {
		name string
		p50  float64
		p99  float64
	}{
		{"first token", c.Ratios.TTFTP50, c.Ratios.TTFTP99},
		{"between tokens", c.Ratios.InterTokenP50, c.Ratios.InterTokenP99},
		{"whole response", c.Ratios.LatencyP50, c.Ratios.LatencyP99},
	} {
		rows = append(rows, []string{row.name, fmt.Sprintf("%.2f", row.p50), fmt.Sprintf("%.2f", row.p99)})
	}
	if err := printTable(w, "ratio p50 p99", rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\ntokens per second %.2f, requests per second %.2f\n", c.Ratios.TokensPerSecond, c.Ratios.RequestsPerSecond)
	return err
}
