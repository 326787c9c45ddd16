package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"iop/gateway"
	"iop/nodeagent"
	"iop/sim"
	"iop/state"
	"iop/tunnel"
	"iop/web"
)

// devSettings are the settings of `iop dev`, with the prefix IOP_DEV_.
type devSettings struct {
	Listen      string   `env:"LISTEN" help:"address of the public API; port 0 picks a free one" example:"127.0.0.1:8480"`
	AdminListen string   `env:"ADMIN_LISTEN" help:"address of the admin API, the console and /metrics" example:"127.0.0.1:8481"`
	Providers   specList `env:"PROVIDERS" flag:"provider" help:"inference server to offer, id[:adapter]=URL[,capacity=N][,models=a|b]; repeatable; default: the local ones that are found, else the simulator" example:"ollama=http://127.0.0.1:11434" more:"Same format as for the Node." absent:"discovery, else the simulator"`
	Config      string   `env:"CONFIG" help:"route file, reloaded when it changes; default: each model on offer is a route" example:"iop.yaml"`
	Log         string   `env:"LOG" help:"log level: debug, info, warn or error; info shows each request" example:"info"`
}

// Times of `iop dev`.
const (
	// devDrain is how long open requests may still take after Ctrl-C; then they are cut, and their clients told.
	devDrain = 300 * time.Millisecond
	// devEnd is when the end no longer waits for anybody. Both together stay below two seconds.
	devEnd = 1500 * time.Millisecond
	// devPatience is how long the start waits for the Node, and for the first models.
	devPatience = 15 * time.Second
	devPoll     = 10 * time.Millisecond
)

func newDevCommand() *cobra.Command {
	config := devSettings{Listen: "127.0.0.1:8480", AdminListen: "127.0.0.1:8481", Log: "warn"}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Edge and Node in one process, on local inference servers or on the built-in simulator",
		Long: `Edge and Node in one process, with a real tunnel between them over loopback.

It offers the inference servers that it finds on this machine, or those given
with --provider. If there are none, it starts a simulator. State is kept in memory:
the API key that it prints is lost when it exits. Ctrl-C stops it.`,
		Example: `  iop dev
  iop dev --config iop.yaml
  iop dev --provider vllm=http://127.0.0.1:8000 --provider gpu1:llamacpp=http://127.0.0.1:8081,capacity=4`,
		Args: exactly(),
	}
	s := bindSettings(cmd, "IOP_DEV_", &config, nil)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON line when ready, for scripts")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		specs, err := config.load(s)
		if err != nil {
			return err
		}
		logger := newLogger(cmd.ErrOrStderr(), logLevels[config.Log])
		slog.SetDefault(logger.Logger) // the state logs there
		defer logger.close()
		warnStrays(cmd, logger.out, true)
		return runDev(cmd.Context(), config, specs, logger.Logger, cmd.ErrOrStderr(), func(r devReady) error {
			if asJSON {
				return printJSON(cmd.OutOrStdout(), r)
			}
			return r.print(cmd.OutOrStdout())
		})
	}
	return cmd
}

func (c *devSettings) load(s *settings) ([]nodeagent.ProviderSpec, error) {
	if err := s.load(); err != nil {
		return nil, err
	}
	for _, address := range []struct{ name, value string }{{"LISTEN", c.Listen}, {"ADMIN_LISTEN", c.AdminListen}} {
		if _, _, err := net.SplitHostPort(address.value); err != nil {
			return nil, s.fault(address.name, "must be host:port")
		}
	}
	if _, ok := logLevels[c.Log]; !ok {
		return nil, s.fault("LOG", "must be debug, info, warn or error")
	}
	specs, err := parseProviders(c.Providers)
	if err != nil {
		return nil, s.fault("PROVIDERS", "is not valid: %v", err)
	}
	return specs, nil
}

// devReady is what `iop dev` prints when everything is up.
type devReady struct {
	BaseURL    string   `json:"base_url"`
	APIKey     string   `json:"api_key"`
	AdminURL   string   `json:"admin_url"`
	AdminToken string   `json:"admin_token"`
	Models     []string `json:"models"`
	PID        int      `json:"pid"`

	simulated bool
}

// development is a running `iop dev`. Its fields belong to runDev's goroutine.
type development struct {
	specs  []nodeagent.ProviderSpec
	log    *slog.Logger
	client *http.Client
	edge   *gateway.Server
	key    string
	token  string // join token
	ready  devReady
	// progress is standard error.
	progress io.Writer

	// node is the one that runs, simulator is nil unless there is one. Each has ended once its stop has returned.
	node, simulator *companion
}

// companion is something that runs beside the Edge until stop.
type companion struct {
	stop func()
	err  <-chan error // receives what Run returned
}

func runDev(ctx context.Context, config devSettings, specs []nodeagent.ProviderSpec, logger *slog.Logger, progress io.Writer, announce func(devReady) error) error {
	store, err := state.Open(ctx, "sqlite::memory:")
	if err != nil {
		return err
	}
	defer store.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	d := &development{specs: specs, log: logger, progress: progress, client: &http.Client{Transport: transport, Timeout: devPatience}}
	if err := d.prepare(ctx, store); err != nil {
		return err
	}
	if err := d.newEdge(config, store); err != nil {
		return err
	}
	return d.run(ctx, announce)
}

// prepare makes the key and the tokens of this one process.
func (d *development) prepare(ctx context.Context, store *state.Store) error {
	ctx = state.WithActor(ctx, state.Actor{Name: state.ActorLocal})
	_, key, err := store.CreateKey(ctx, state.KeySpec{Name: "dev"})
	if err != nil {
		return err
	}
	_, token, err := store.CreateJoinToken(ctx, state.JoinTokenSpec{Node: "dev"})
	if err != nil {
		return err
	}
	admin, _, err := store.AdminToken(ctx)
	if err != nil {
		return err
	}
	d.key, d.token = key.Reveal(), token.Reveal()
	d.ready = devReady{APIKey: d.key, AdminToken: admin.Reveal(), PID: os.Getpid()}
	return nil
}

func (d *development) newEdge(config devSettings, store *state.Store) error {
	edge, err := gateway.New(gateway.Config{
		Store: store, Listen: config.Listen, AdminListen: config.AdminListen, DrainTimeout: devDrain, Config: config.Config, Logger: d.log,
		Console: web.New, Version: readBuildInfo().Version,
	})
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w; stop the process that uses it, or choose other addresses with --listen and --admin-listen", err)
	}
	if err != nil {
		return err
	}
	d.edge = edge
	d.ready.BaseURL = "http://" + edge.Addr().String() + "/v1"
	d.ready.AdminURL = "http://" + edge.AdminAddr().String()
	return nil
}

// run starts the Edge, brings up what belongs beside it, and ends all of it together.
func (d *development) run(ctx context.Context, announce func(devReady) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var edge sync.WaitGroup
	ended := make(chan struct{})
	edge.Go(func() {
		defer close(ended)
		if err := d.edge.Run(ctx); err != nil {
			cancel(err)
		}
	})
	edge.Go(func() {
		<-ctx.Done()
		force := time.NewTimer(devEnd)
		defer force.Stop()
		select {
		case <-ended:
		case <-force.C:
			d.edge.Close()
		}
	})
	started := onlyOnTerminal(d.progress, "looking for inference servers")
	err := d.start(ctx)
	started()
	if err == nil {
		err = d.wait(ctx, announce)
	}
	cancel(err)
	edge.Wait()
	d.node.end()
	d.simulator.end()
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// wait announces that all is up, and returns when the command is to end, or something beside the Edge failed. While nobody
// reads standard output it goes on: the goroutine that writes there is left behind at the end.
func (d *development) wait(ctx context.Context, announce func(devReady) error) error {
	announced := make(chan error, 1)
	go func() { announced <- announce(d.ready) }()
	var simulator <-chan error
	if d.simulator != nil {
		simulator = d.simulator.err
	}
	for {
		select {
		case err := <-announced:
			if err != nil {
				return err
			}
			announced = nil
		case <-ctx.Done():
			return lastWord(announced)
		case err := <-d.node.err:
			return fmt.Errorf("the Node ended: %w", cmp.Or(err, errors.New("without an error")))
		case err := <-simulator:
			return fmt.Errorf("the simulator ended: %w", cmp.Or(err, errors.New("without an error")))
		}
	}
}

// lastWord waits a moment for an announcement that is under way, or nil.
func lastWord(announced <-chan error) error {
	if announced == nil {
		return nil
	}
	patience := time.NewTimer(devDrain)
	defer patience.Stop()
	select {
	case err := <-announced:
		return err
	case <-patience.C:
		return nil
	}
}

// start brings up the Node, and the simulator where nothing else is there to offer. It returns nil when ctx ended.
func (d *development) start(ctx context.Context) error {
	if err := d.startNode(ctx, d.specs); err != nil || ctx.Err() != nil {
		return err
	}
	models, err := d.models(ctx)
	if err != nil {
		return err
	}
	if len(models) == 0 && len(d.specs) == 0 {
		d.node.end()
		if err := d.startSimulator(ctx); err != nil {
			return err
		}
	}
	for end := time.Now().Add(devPatience); len(models) == 0 && time.Now().Before(end) && pause(ctx); {
		if models, err = d.models(ctx); err != nil {
			return err
		}
	}
	d.ready.Models = models
	return nil
}

// startNode starts a Node and waits until runs can be dispatched to it.
func (d *development) startNode(ctx context.Context, specs []nodeagent.ProviderSpec) error {
	agent, err := nodeagent.New(nodeagent.Config{
		Edge:      "ws://" + d.edge.Addr().String() + "/tunnel/v1",
		Name:      "dev",
		JoinToken: func() (string, error) { return d.token, nil },
		Providers: specs,
		Logger:    d.log,
		Skip:      []string{d.edge.Addr().String(), d.edge.AdminAddr().String()},
		Version:   readBuildInfo().Version,
	})
	if err != nil {
		return usageError{err}
	}
	// The Node ends after the Edge, which lets the open requests finish: its own drain would only race with that.
	d.node = accompany(agent.Close, func() error { return agent.Run(context.WithoutCancel(ctx)) })
	for end := time.Now().Add(devPatience); agent.Status().State != tunnel.StateOnline; {
		if time.Now().After(end) {
			return fmt.Errorf("the Node is not online after %s: %s %s", devPatience, agent.Status().State, agent.Status().Detail)
		}
		if !pause(ctx) {
			return nil
		}
	}
	return nil
}

func (d *development) startSimulator(ctx context.Context) error {
	config := sim.DefaultConfig()
	config.Listen = "127.0.0.1:0"
	config.TTFT = 200 * time.Millisecond
	config.TokensPerSecond = 40
	server, err := sim.New(config)
	if err != nil {
		return err
	}
	if err := server.Listen(); err != nil {
		return err
	}
	runs, stop := context.WithCancel(context.WithoutCancel(ctx))
	d.simulator = accompany(stop, func() error { return server.Run(runs) })
	spec, err := nodeagent.ParseSpec("sim=" + server.URL())
	if err != nil {
		return err
	}
	d.ready.simulated = true
	return d.startNode(ctx, []nodeagent.ProviderSpec{spec})
}

// accompany runs something until stop is called.
func accompany(stop func(), run func() error) *companion {
	result := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		result <- run()
	}()
	return &companion{stop: func() { stop(); <-done }, err: result}
}

// end stops the companion and waits for it. A nil companion has ended.
func (c *companion) end() {
	if c != nil {
		c.stop()
	}
}

// pause waits a moment; it returns false when ctx ended.
func pause(ctx context.Context) bool {
	timer := time.NewTimer(devPoll)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// models asks the Edge as a client would. It returns nothing when ctx ended.
func (d *development) models(ctx context.Context) ([]string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.ready.BaseURL+"/models", nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+d.key)
	response, err := d.client.Do(request)
	if ctx.Err() != nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, 8<<20)).Decode(&list); err != nil {
		return nil, fmt.Errorf("models: %s: %w", response.Status, err)
	}
	var ids []string
	for _, m := range list.Data {
		ids = append(ids, m.ID)
	}
	return ids, nil
}

func (r devReady) print(w io.Writer) error {
	models := strings.Join(r.Models, ", ")
	if len(r.Models) == 0 {
		models = "none yet: the provider is not responding; they appear once it does"
	}
	if r.simulated {
		models += " (simulated: no local inference server was found)"
	}
	_, err := fmt.Fprintf(w, `
  base URL     %s
  API key      %s
  models       %s
  console      %s/admin/
  admin token  %s

  curl -N %s/chat/completions -H 'Authorization: Bearer %s' -H 'Content-Type: application/json' -d '{"model":%q,"stream":true,"messages":[{"role":"user","content":"Hello"}]}'

`, r.BaseURL, r.APIKey, models, r.AdminURL, r.AdminToken, r.BaseURL, r.APIKey, chatModel(r.Models))
	return err
}

// chatModel is a model that the printed curl line is likely to work with.
func chatModel(models []string) string {
	silent := []string{"embed", "audio", "whisper", "tts", "speech", "image", "rerank", "moderation"}
	i := slices.IndexFunc(models, func(id string) bool {
		return !slices.ContainsFunc(silent, func(s string) bool { return strings.Contains(strings.ToLower(id), s) })
	})
	switch {
	case i >= 0:
		return models[i]
	case len(models) > 0:
		return models[0]
	}
	return "MODEL"
}
