package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"iop/sim"
)

func newSimCommand() *cobra.Command {
	config, asJSON := sim.DefaultConfig(), false
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Simulate an inference engine: OpenAI, Ollama and Anthropic APIs, slots, speed, faults on demand",
		Long:  "Simulate an inference engine: OpenAI, Ollama and Anthropic APIs, slots, speed, faults on demand.\n\n" + sim.Help(),
		Example: `  iop sim --listen 127.0.0.1:8490 --tokens-per-second 50 --ttft 200ms
  iop sim --flavour ollama --models llama3.2 --slots 2 --queue 0`,
	}
	bound := bindSettings(cmd, "IOP_SIM_", &config, nil)
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := bound.load(); err != nil {
			return err
		}
		warnStrays(cmd, cmd.ErrOrStderr(), true)
		return runSim(cmd, config, asJSON)
	}
	return cmd
}

// runSim serves until the command's context ends.
func runSim(cmd *cobra.Command, config sim.Config, asJSON bool) error {
	s, err := sim.New(config)
	if err != nil {
		return usageError{fmt.Errorf("sim: %w", err)}
	}
	if err := s.Listen(); err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	if err := announceSim(cmd.OutOrStdout(), s, config, asJSON); err != nil {
		return err
	}
	return s.Run(cmd.Context())
}

// announceSim says where the simulator listens: its address is bound, a request will be answered.
func announceSim(w io.Writer, s *sim.Server, config sim.Config, asJSON bool) error {
	if asJSON {
		return printJSON(w, map[string]any{
			"url": s.URL(), "addr": s.Addr().String(), "flavour": config.Flavour, "models": s.Models(), "slots": config.Slots, "pid": os.Getpid(),
		})
	}
	_, err := fmt.Fprintf(w, "iop sim: %s listens on %s with %d slots; models: %s; knobs: %s/sim\n",
		config.Flavour, s.URL(), config.Slots, strings.Join(s.Models(), ", "), s.URL())
	return err
}
