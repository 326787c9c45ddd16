package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
)

func newOllamaCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "ollama",
		Short: "Manage the models of a Node's Ollama: pull, list, show, delete",
		Long: `Manage the models of an Ollama provider on a Node. The Edge passes these requests
on to the Node's Ollama; nothing else of Ollama's API is reachable this way.`,
		Example: "  iop ollama list gpu-3\n  iop ollama pull gpu-3 llama3.2:3b",
	}, newOllamaPullCommand(), newOllamaListCommand(), newOllamaLoadedCommand(), newOllamaShowCommand(), newOllamaDeleteCommand())
}

// ollamaCommand is one command of the group.
type ollamaCommand struct {
	*operator
	provider string
	asJSON   bool
}

// bindOllama adds the flags that each of them has; run is what it does with the Node and the model, if it takes one.
func bindOllama(cmd *cobra.Command, run func(c *ollamaCommand, cmd *cobra.Command, args []string) error) *cobra.Command {
	names := []string{"the Node's name"}
	if strings.HasSuffix(cmd.Use, "MODEL") {
		names = append(names, "the model's name")
	}
	cmd.Args = exactly(names...)
	c := &ollamaCommand{operator: bindOperator(cmd)}
	cmd.Flags().StringVar(&c.provider, "provider", "", "provider on the Node, if several are Ollama")
	jsonFlag(cmd, &c.asJSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := c.load(); err != nil {
			return err
		}
		return c.nextStep(cmd.Context(), args[0], run(c, cmd, args))
	}
	return cmd
}

func (c *ollamaCommand) path(node, operation string) string {
	path := "/nodes/" + url.PathEscape(node) + "/ollama/" + operation
	if c.provider != "" {
		path += "?provider=" + url.QueryEscape(c.provider)
	}
	return path
}

// ask makes one call; in and out are Ollama's own request and answer, each may be nil.
func (c *ollamaCommand) ask(cmd *cobra.Command, node, operation string, in, out any) error {
	var result admin.OllamaResult
	if err := c.call(cmd.Context(), "POST", c.path(node, operation), in, &result); err != nil {
		return err
	}
	if c.asJSON {
		return printJSON(cmd.OutOrStdout(), result)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(result.Result, out); err != nil {
		return fmt.Errorf("the provider's response is not in Ollama's format: %w", err)
	}
	return nil
}

// ollamaModel is a model in Ollama's lists.
type ollamaModel struct {
	Name     string    `json:"name"`
	Digest   string    `json:"digest"`
	Size     int64     `json:"size"`
	VRAM     int64     `json:"size_vram"`
	Context  int64     `json:"context_length"`
	Modified time.Time `json:"modified_at"`
	Expires  time.Time `json:"expires_at"`
}

func (m *ollamaModel) shortDigest() string {
	digest := strings.TrimPrefix(m.Digest, "sha256:")
	return digest[:min(len(digest), 12)]
}

func newOllamaListCommand() *cobra.Command {
	return bindOllama(&cobra.Command{
		Use: "list NODE", Aliases: []string{"ls"},
		Short:   "List the models that a Node's Ollama has",
		Long:    `List the models that a Node's Ollama has on disk, with size and age.`,
		Example: "  iop ollama list gpu-3\n  iop ollama list gpu-3 --json",
	}, func(c *ollamaCommand, cmd *cobra.Command, args []string) error {
		return c.list(cmd, args[0], "tags", "NAME ID SIZE MODIFIED", func(m *ollamaModel) []string {
			return []string{m.Name, m.shortDigest(), bytesText(m.Size), ago(&m.Modified)}
		})
	})
}

func newOllamaLoadedCommand() *cobra.Command {
	return bindOllama(&cobra.Command{
		Use:     "ps NODE",
		Short:   "List the models that a Node's Ollama has in memory",
		Long:    `List the models that a Node's Ollama has in memory, and until when.`,
		Example: "  iop ollama ps gpu-3",
	}, func(c *ollamaCommand, cmd *cobra.Command, args []string) error {
		return c.list(cmd, args[0], "ps", "NAME ID SIZE VRAM CONTEXT UNTIL", func(m *ollamaModel) []string {
			until := ""
			if !m.Expires.IsZero() {
				until = "in " + brief(time.Until(m.Expires))
			}
			return []string{m.Name, m.shortDigest(), bytesText(m.Size), bytesText(m.VRAM), fmt.Sprint(m.Context), until}
		})
	})
}

func (c *ollamaCommand) list(cmd *cobra.Command, node, operation, header string, row func(*ollamaModel) []string) error {
	var out struct {
		Models []ollamaModel `json:"models"`
	}
	if err := c.ask(cmd, node, operation, nil, &out); err != nil || c.asJSON {
		return err
	}
	var rows [][]string
	for i := range out.Models {
		rows = append(rows, row(&out.Models[i]))
	}
	return printTable(cmd.OutOrStdout(), header, rows)
}

func newOllamaShowCommand() *cobra.Command {
	return bindOllama(&cobra.Command{
		Use:   "show NODE MODEL",
		Short: "Show the details of a model on a Node's Ollama",
		Long: `Show the details of a model on a Node's Ollama: family, parameters, quantization,
context and capabilities. --json prints everything that Ollama reports.`,
		Example: "  iop ollama show gpu-3 llama3.2:3b\n  iop ollama show gpu-3 llama3.2:3b --json",
	}, func(c *ollamaCommand, cmd *cobra.Command, args []string) error {
		var out struct {
			Details struct {
				Family       string `json:"family"`
				Parameters   string `json:"parameter_size"`
				Quantization string `json:"quantization_level"`
				Format       string `json:"format"`
			} `json:"details"`
			Info         map[string]any `json:"model_info"`
			Capabilities []string       `json:"capabilities"`
		}
		err := c.ask(cmd, args[0], "show", map[string]string{"model": args[1]}, &out)
		if err != nil {
			return modelStep(args, err)
		}
		if c.asJSON {
			return nil
		}
		context := ""
		for name, value := range out.Info {
			if n, ok := value.(float64); ok && strings.HasSuffix(name, ".context_length") {
				context = fmt.Sprintf("%.0f", n)
			}
		}
		return printTable(cmd.OutOrStdout(), "MODEL FAMILY PARAMETERS QUANTIZATION FORMAT CONTEXT CAPABILITIES", [][]string{{
			args[1], out.Details.Family, out.Details.Parameters, out.Details.Quantization, out.Details.Format, context, strings.Join(out.Capabilities, ","),
		}})
	})
}

func newOllamaDeleteCommand() *cobra.Command {
	return bindOllama(&cobra.Command{
		Use: "rm NODE MODEL", Aliases: []string{"delete"},
		Short: "Delete a model from a Node's Ollama",
		Long: `Delete a model from a Node's Ollama. Clients can no longer request it; Ollama decides
what happens to open runs.`,
		Example: "  iop ollama rm gpu-3 llama3.2:3b",
	}, func(c *ollamaCommand, cmd *cobra.Command, args []string) error {
		if err := c.ask(cmd, args[0], "delete", map[string]string{"model": args[1]}, nil); err != nil {
			return modelStep(args, err)
		}
		if c.asJSON {
			return nil
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is deleted from %s\n", args[1], args[0])
		return err
	})
}

// modelStep adds to Ollama's refusal of a model where its models are listed.
func modelStep(args []string, err error) error {
	if refused, ok := errors.AsType[*apiError](err); ok && refused.code == "provider_error" {
		return fmt.Errorf("%w; iop ollama list %s lists its models", err, args[0])
	}
	return err
}
