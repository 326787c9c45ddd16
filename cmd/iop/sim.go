package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"github.com/caarlos0/env/v11"
	"github.com/spf13/cobra"

	"iop/sim"
)

// simPrefix begins the names of the simulator's environment variables.
const simPrefix = "IOP_SIM_"

// simSettings are the simulator's configuration and what only the command knows.
type simSettings struct {
	sim.Config
	APIKeyFile string `env:"API_KEY_FILE"`
	JSON       bool   `env:"JSON"`
}

func newSimCommand() *cobra.Command {
	set := simSettings{Config: sim.DefaultConfig()}
	envErr := env.ParseWithOptions(&set, env.Options{Prefix: simPrefix})
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Simulate an inference engine: OpenAI, Ollama and Anthropic shapes, slots, pace, faults on demand",
		Long: "Simulate an inference engine: OpenAI, Ollama and Anthropic shapes, slots, pace, faults on demand.\n\n" +
			"Each flag is also an environment variable: --tokens-per-second is " + simPrefix + "TOKENS_PER_SECOND.\n\n" + sim.Help(),
		Example: "  iop sim --listen 127.0.0.1:8490 --tokens-per-second 50 --ttft 200ms",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if envErr != nil {
				return usageError{simEnvError(envErr)}
			}
			return runSim(cmd, set)
		},
	}
	f := cmd.Flags()
	f.StringVar(&set.Listen, "listen", set.Listen, "address to listen on; port 0 takes a free one")
	f.StringSliceVar(&set.Models, "models", set.Models, "model ids; one that ends in -reason thinks aloud first")
	f.IntVar(&set.Slots, "slots", set.Slots, "inference requests that run at once")
	f.IntVar(&set.Queue, "queue", set.Queue, "requests that wait for a slot; beyond them, 429 with Retry-After")
	f.DurationVar(&set.TTFT, "ttft", set.TTFT, "time to first token")
	f.Float64Var(&set.TokensPerSecond, "tokens-per-second", set.TokensPerSecond, "pace of one stream; 0 is as fast as it goes")
	f.StringVar((*string)(&set.Flavour), "flavour", string(set.Flavour), "engine to imitate: openai, vllm, llamacpp, ollama, lmstudio, sglang, anthropic")
	f.StringVar(&set.APIKeyFile, "api-key-file", set.APIKeyFile, "file with the key that requests must carry; without it, no key is asked for")
	f.BoolVar(&set.JSON, "json", set.JSON, "print one JSON line when ready")
	return cmd
}

// runSim serves until the command's context ends.
func runSim(cmd *cobra.Command, set simSettings) error {
	if set.APIKeyFile != "" {
		b, err := os.ReadFile(set.APIKeyFile)
		if err != nil {
			return fmt.Errorf("api-key-file: %w", err)
		}
		if set.APIKey = strings.TrimSpace(string(b)); set.APIKey == "" {
			return usageError{errors.New("api-key-file: the file is empty")}
		}
	}
	s, err := sim.New(set.Config)
	if err != nil {
		return usageError{err}
	}
	if err := s.Listen(); err != nil {
		return err
	}
	if err := announceSim(cmd.OutOrStdout(), s, set); err != nil {
		return err
	}
	return s.Run(cmd.Context())
}

// announceSim says where the simulator listens: its address is bound, a request will be answered.
func announceSim(w io.Writer, s *sim.Server, set simSettings) error {
	if set.JSON {
		return json.NewEncoder(w).Encode(map[string]any{
			"url": s.URL(), "addr": s.Addr().String(), "flavour": set.Flavour, "models": s.Models(), "slots": set.Slots, "pid": os.Getpid(),
		})
	}
	_, err := fmt.Fprintf(w, "iop sim: %s listens on %s with %d slots; models: %s; knobs: %s/sim\n",
		set.Flavour, s.URL(), set.Slots, strings.Join(s.Models(), ", "), s.URL())
	return err
}

// simEnvError names the variable that could not be read: the library names the field.
func simEnvError(err error) error {
	agg, ok := errors.AsType[env.AggregateError](err)
	if !ok || len(agg.Errors) == 0 {
		return err
	}
	parse, ok := errors.AsType[env.ParseError](agg.Errors[0])
	if !ok {
		return agg.Errors[0]
	}
	field, ok := reflect.TypeFor[simSettings]().FieldByName(parse.Name)
	if !ok {
		return parse
	}
	return fmt.Errorf("%s%s is not a valid %s, e.g. %s", simPrefix, field.Tag.Get("env"), parse.Type, envExample(parse.Type))
}

func envExample(t reflect.Type) string {
	switch t.String() {
	case "time.Duration":
		return "250ms"
	case "bool":
		return "true"
	}
	return "4"
}
