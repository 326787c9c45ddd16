package sim

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Flavour names the engine that the simulator imitates: its identification endpoints, error shapes and quirks.
type Flavour string

// The flavours.
const (
	OpenAI    Flavour = "openai"    // OpenAI's own API: no identification endpoint
	VLLM      Flavour = "vllm"      // /version, /health, /metrics, /tokenize
	LlamaCPP  Flavour = "llamacpp"  // /props, /slots, /health
	Ollama    Flavour = "ollama"    // /api/*, "Ollama is running"
	LMStudio  Flavour = "lmstudio"  // /api/v0/models
	SGLang    Flavour = "sglang"    // /get_server_info, /get_model_info, /health
	Anthropic Flavour = "anthropic" // Anthropic's own API: its model list and error shape
)

var flavours = []Flavour{OpenAI, VLLM, LlamaCPP, Ollama, LMStudio, SGLang, Anthropic}

// maxSlots bounds Slots and Queue: beyond it a number is a typing error.
const maxSlots = 1 << 20

// Config says what a Server imitates. Start from DefaultConfig; the zero value is refused. The tags are those of
// `iop sim`, whose flags and IOP_SIM_ variables these fields are.
type Config struct {
	// Listen is the address that Listen binds, host:port; port 0 takes a free one.
	Listen string `env:"LISTEN" help:"address to listen on; port 0 takes a free one" example:"127.0.0.1:8490"`
	// Models are the ids that the server knows; at least one. A name that ends in "-reason" thinks aloud first.
	Models []string `env:"MODELS" help:"model ids; one that ends in -reason thinks aloud first" example:"sim-small,sim-reason"`
	// Slots is how many inference requests run at once.
	Slots int `env:"SLOTS" min:"1" max:"1048576" help:"inference requests that run at once" example:"4"`
	// Queue is how many more wait for a slot; beyond them, and with 0 at once, the answer is 429 with Retry-After.
	Queue int `env:"QUEUE" min:"0" max:"1048576" help:"requests that wait for a slot; beyond them 429 with Retry-After" example:"16"`
	// TTFT is the time from a request's turn to its first token.
	TTFT time.Duration `env:"TTFT" min:"0s" max:"24h" help:"time to first token" example:"250ms"`
	// TokensPerSecond is the pace of one stream after its first token; 0 is as fast as it goes.
	TokensPerSecond float64 `env:"TOKENS_PER_SECOND" min:"0" max:"1000000000" help:"pace of one stream; 0 is as fast as it goes" example:"50"`
	// PrefillTokensPerSecond is how fast prompt tokens that are not cached are read before the first token, beside TTFT;
	// 0 is at once.
	PrefillTokensPerSecond float64 `env:"PREFILL_TOKENS_PER_SECOND" min:"0" max:"1000000000" help:"pace at which prompts are read before the first token; 0 is at once" example:"4000"`
	// PrefixCache is how many prompt tokens the engine remembers, of prompts by their beginning, least recently used
	// first out. What it remembers of a prompt needs no prefill and is reported as cached. 0 remembers nothing.
	PrefixCache int `env:"PREFIX_CACHE" min:"0" max:"50000000" help:"prompt tokens that are remembered and need no second prefill; 0 for none" example:"100000"`
	// Load is how long a request waits for a model that is not in memory.
	Load time.Duration `env:"LOAD" min:"0s" max:"24h" help:"time to load a model that is not in memory" example:"8s"`
	// Loaded are the models in memory at the start. Without any: none for ollama, and for lmstudio if Load is set; all
	// for every other engine, which loads what it serves before it listens.
	Loaded []string `env:"LOADED" help:"models in memory at the start; default none for ollama, all for engines that load at their start" example:"sim-small"`
	// MaxLoaded is how many models are in memory at once; the one that was used longest ago makes room. 0 is all.
	MaxLoaded int `env:"MAX_LOADED" min:"0" max:"1000000" help:"models in memory at once; 0 for all" example:"1"`
	// Pull is how long an Ollama takes to pull a model.
	Pull time.Duration `env:"PULL" min:"0s" max:"24h" help:"time that ollama takes to pull a model" example:"20s"`
	// FailRate is the share of inference requests that are answered FailStatus at once, spread evenly.
	FailRate float64 `env:"FAIL_RATE" min:"0" max:"1" help:"share of requests that fail at once, 0 to 1" example:"0.1"`
	// FailStatus is the status of those.
	FailStatus int `env:"FAIL_STATUS" min:"100" max:"999" help:"status of requests that fail so" example:"503"`
	// RetryAfter is the Retry-After of those, in whole seconds; 0 for none.
	RetryAfter time.Duration `env:"RETRY_AFTER" min:"0s" max:"24h" help:"Retry-After of requests that fail so" example:"5s"`
	// Flavour is the engine to imitate.
	Flavour Flavour `env:"FLAVOUR" help:"engine to imitate: openai, vllm, llamacpp, ollama, lmstudio, sglang, anthropic" example:"vllm"`
	// Exact leaves out the paths that the version of the engine that is imitated does not have. Without it every flavour has the
	// paths of all.
	Exact bool `env:"EXACT" help:"have no paths but those of the imitated engine"`
	// APIKey, if set, must come as a bearer token or in x-api-key; /sim and /health stay open.
	APIKey string `env:"API_KEY" help:"key that requests must carry" secret:"true"`
}

// DefaultConfig returns the configuration that `iop sim` has without flags.
func DefaultConfig() Config {
	return Config{
		Listen:     "127.0.0.1:8490",
		Models:     []string{"sim-small", "sim-large", "sim-embed", "sim-audio", "sim-image"},
		Slots:      4,
		Queue:      1024,
		Flavour:    OpenAI,
		FailStatus: http.StatusInternalServerError,
	}
}

func (c Config) validate() error {
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("listen must be host:port, e.g. 127.0.0.1:8490: %w", err)
	}
	if err := validateModels(c.Models); err != nil {
		return err
	}
	if c.Slots < 1 || c.Slots > maxSlots {
		return fmt.Errorf("slots must be 1 to %d, not %d", maxSlots, c.Slots)
	}
	if c.Queue < 0 || c.Queue > maxSlots {
		return fmt.Errorf("queue must be 0 to %d, not %d", maxSlots, c.Queue)
	}
	if c.TTFT < 0 {
		return fmt.Errorf("ttft must not be negative, e.g. 250ms, not %s", c.TTFT)
	}
	if !isPace(c.TokensPerSecond) {
		return errors.New("tokens-per-second must be 0 (as fast as it goes) or more, e.g. 50")
	}
	if err := c.validateMemory(); err != nil {
		return err
	}
	if err := c.validateFailures(); err != nil {
		return err
	}
	if !slices.Contains(flavours, c.Flavour) {
		return fmt.Errorf("flavour must be one of %s, not %q", flavourNames(), c.Flavour)
	}
	return nil
}

func isPace(r float64) bool { return r >= 0 && r <= 1e9 } // not a number is neither

// validateMemory checks what the engine remembers and loads.
func (c Config) validateMemory() error {
	if !isPace(c.PrefillTokensPerSecond) {
		return errors.New("prefill-tokens-per-second must be 0 (at once) or more, e.g. 4000")
	}
	if c.PrefixCache < 0 || c.PrefixCache > maxPrefixCache {
		return fmt.Errorf("prefix-cache must be 0 to %d tokens, not %d", maxPrefixCache, c.PrefixCache)
	}
	if c.Load < 0 {
		return fmt.Errorf("load must not be negative, e.g. 8s, not %s", c.Load)
	}
	if c.Pull < 0 {
		return fmt.Errorf("pull must not be negative, e.g. 20s, not %s", c.Pull)
	}
	if c.MaxLoaded < 0 {
		return fmt.Errorf("max-loaded must be 0 (all) or more, not %d", c.MaxLoaded)
	}
	for _, m := range c.Loaded {
		if !slices.Contains(c.Models, m) {
			return fmt.Errorf("loaded names %q, which is not among the models", m)
		}
	}
	return nil
}

func (c Config) validateFailures() error {
	if !(c.FailRate >= 0 && c.FailRate <= 1) {
		return fmt.Errorf("fail-rate must be 0 to 1, e.g. 0.1, not %g", c.FailRate)
	}
	if c.FailStatus < 400 || c.FailStatus > 599 {
		return fmt.Errorf("fail-status must be 400 to 599, e.g. 503, not %d", c.FailStatus)
	}
	if c.RetryAfter < 0 {
		return fmt.Errorf("retry-after must not be negative, e.g. 5s, not %s", c.RetryAfter)
	}
	return nil
}

func validateModels(models []string) error {
	if len(models) == 0 {
		return errors.New("models must name at least one model, e.g. sim-small")
	}
	for i, m := range models {
		if strings.TrimSpace(m) != m || m == "" {
			return fmt.Errorf("models holds an empty or padded name: %q", m)
		}
		if slices.Contains(models[:i], m) {
			return fmt.Errorf("models names %q twice", m)
		}
	}
	return nil
}

func flavourNames() string {
	names := make([]string, len(flavours))
	for i, f := range flavours {
		names[i] = string(f)
	}
	return strings.Join(names, ", ")
}
