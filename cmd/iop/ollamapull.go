package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
)

func newOllamaPullCommand() *cobra.Command {
	var insecure bool
	cmd := bindOllama(&cobra.Command{
		Use:   "pull NODE MODEL",
		Short: "Pull a model into a Node's Ollama and show the progress",
		Long: `Pull a model into a Node's Ollama and show the progress. Ctrl-C cancels the pull;
Ollama keeps what it has downloaded, and the same command continues from there.
Clients can request the model as soon as the pull is complete.`,
		Example: "  iop ollama pull gpu-3 llama3.2:3b\n  iop ollama pull gpu-3 llama3.2:3b --provider ollama-2",
	}, func(c *ollamaCommand, cmd *cobra.Command, args []string) error {
		return c.pull(cmd, args[0], args[1], insecure)
	})
	cmd.Flags().BoolVar(&insecure, "insecure", false, "allow a registry without TLS")
	return cmd
}

// pullLine is one line of Ollama's progress.
type pullLine struct {
	Status    string `json:"status"`
	Digest    string `json:"digest"`
	Total     int64  `json:"total"`
	Completed int64  `json:"completed"`
	Error     string `json:"error"`
}

// maxPullLine bounds a line of progress; real ones have 200 bytes.
const maxPullLine = 1 << 20

func (c *ollamaCommand) pull(cmd *cobra.Command, node, model string, insecure bool) error {
	in := map[string]any{"model": model}
	if insecure {
		in["insecure"] = true
	}
	response, err := c.open(cmd.Context(), "POST", c.path(node, "pull"), in)
	if err != nil {
		return c.stopped(cmd.Context(), node, err)
	}
	defer response.Body.Close()
	out := cmd.OutOrStdout()
	show := showPull(out, c.asJSON)
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(make([]byte, 0, 4096), maxPullLine)
	done := false
	for lines.Scan() {
		var line pullLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return fmt.Errorf("the provider's response is not pull progress in Ollama's format: %w", err)
		}
		if line.Error != "" {
			show.end()
			return fmt.Errorf("%s was not pulled: %s", model, onTerminal(line.Error))
		}
		if done = line.Status == "success"; !done || c.asJSON {
			if err := show.line(&line, lines.Bytes()); err != nil {
				return err
			}
		}
	}
	show.end()
	switch {
	case lines.Err() != nil:
		return c.stopped(cmd.Context(), node, fmt.Errorf("the pull's progress was cut off: %w", lines.Err()))
	case !done:
		return fmt.Errorf("%s was not pulled: the provider's progress ended early; run the same command to continue", model)
	case c.asJSON:
		return nil
	}
	_, err = fmt.Fprintf(out, "%s is on %s\n", model, node)
	return err
}

// stopped is the error of a pull that Ctrl-C ended, or err.
func (c *ollamaCommand) stopped(ctx context.Context, node string, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("the pull on %s was cancelled; run the same command to continue", node)
	}
	return err
}

// pullShow shows progress.
type pullShow interface {
	line(l *pullLine, raw []byte) error
	end() // nothing follows; whatever is half drawn gets its end
}

// showPull chooses: JSON as it comes, bars on a terminal, else plain lines.
func showPull(w io.Writer, asJSON bool) pullShow {
	switch {
	case asJSON:
		return rawPull{w}
	case isTerminal(w):
		return &barPull{w: w}
	}
	return &plainPull{w: w}
}

type rawPull struct{ w io.Writer }

func (p rawPull) line(_ *pullLine, raw []byte) error {
	_, err := fmt.Fprintf(p.w, "%s\n", raw)
	return err
}

func (p rawPull) end() {}

// plainPull writes a line for each new status, and for each tenth of a layer.
type plainPull struct {
	w     io.Writer
	last  string
	tenth int64
}

func (p *plainPull) line(l *pullLine, _ []byte) error {
	status := cmp.Or(l.Status, "pulling")
	tenth := int64(-1)
	if l.Total > 0 {
		tenth = min(max(l.Completed, 0), l.Total) / max(l.Total/10, 1)
	}
	if status == p.last && tenth <= p.tenth {
		return nil
	}
	p.last, p.tenth = status, tenth
	text := onTerminal(status)
	if tenth >= 0 {
		text += fmt.Sprintf(" %d%% of %s", min(tenth, 10)*10, bytesText(l.Total))
	}
	_, err := fmt.Fprintln(p.w, text)
	return err
}

func (p *plainPull) end() {}

// barPull draws a bar for each layer, and a line for each status without one.
type barPull struct {
	w     io.Writer
	bar   *progressbar.ProgressBar // or nil
	layer string
	last  string
}

func (p *barPull) line(l *pullLine, _ []byte) error {
	if l.Total <= 0 {
		p.end()
		if l.Status == p.last {
			return nil
		}
		p.last = l.Status
		_, err := fmt.Fprintln(p.w, onTerminal(l.Status))
		return err
	}
	if layer := cmp.Or(l.Digest, l.Status); p.bar == nil || layer != p.layer {
		p.end()
		p.layer = layer
		p.bar = progressbar.NewOptions64(l.Total,
			progressbar.OptionSetWriter(p.w), progressbar.OptionSetDescription(onTerminal(l.Status)), progressbar.OptionShowBytes(true),
			progressbar.OptionSetPredictTime(true), progressbar.OptionFullWidth(), progressbar.OptionUseANSICodes(true),
		)
		if err := p.bar.RenderBlank(); err != nil {
			return err
		}
	}
	return p.bar.Set64(min(max(l.Completed, 0), l.Total))
}

func (p *barPull) end() {
	if p.bar == nil {
		return
	}
	_ = p.bar.Exit() // it only draws
	fmt.Fprintln(p.w)
	p.bar = nil
}
