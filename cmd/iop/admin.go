package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"iop/state"
)

// adminSettings say how the operator's commands reach the admin API, with the prefix IOP_ADMIN_.
type adminSettings struct {
	URL   string `env:"URL" flag:"admin-url" help:"admin API of the Edge" example:"http://127.0.0.1:8481"`
	Token string `env:"TOKEN" flag:"admin-token" secret:"true" help:"admin token; default: read from the Edge's state directory" absent:"from the state directory"`
}

// stateSettings say where the Edge's state lies: the admin token is in its directory. The prefix is the Edge's.
type stateSettings struct {
	State string `env:"STATE" help:"the Edge's state, which the admin token is read from" example:"sqlite:///var/lib/iop/iop.db"`
}

const defaultAdminURL = "http://127.0.0.1:8481"

// Limits of a client of the admin API.
const (
	adminTimeout   = 30 * time.Second
	maxAdminAnswer = 64 << 20
)

// errNoEdge says that nothing listens where the admin API is expected.
var errNoEdge = errors.New("no Edge is running")

// operator is a command that talks to the admin API.
type operator struct {
	admin  adminSettings
	state  stateSettings
	master masterKeySettings

	progress func() io.Writer // standard error

	adminBound, stateBound *settings
	masterBound            *settings // nil for a command that neither seals nor opens values
}

// bindOperator adds the flags that every operator's command has.
func bindOperator(cmd *cobra.Command) *operator {
	o := &operator{admin: adminSettings{URL: defaultAdminURL}, state: stateSettings{State: defaultState}}
	o.progress = cmd.ErrOrStderr
	o.adminBound = bindSettings(cmd, "IOP_ADMIN_", &o.admin, nil)
	o.stateBound = bindSettings(cmd, edgePrefix, &o.state, nil)
	return o
}

func (o *operator) load() error {
	if err := o.adminBound.load(); err != nil {
		return err
	}
	if err := o.stateBound.load(); err != nil {
		return err
	}
	if o.masterBound != nil {
		if err := o.masterBound.load(); err != nil {
			return err
		}
	}
	u, err := url.Parse(o.admin.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return o.adminBound.fault("URL", "must be http://host:port")
	}
	o.admin.URL = strings.TrimSuffix(o.admin.URL, "/")
	return nil
}

// token is the admin token: the one that was given, or the one in the state's directory.
func (o *operator) token() (string, error) {
	if o.admin.Token != "" {
		return o.admin.Token, nil
	}
	token, err := state.ReadAdminToken(o.state.State)
	if errors.Is(err, fs.ErrNotExist) {
		return "", usageError{fmt.Errorf("no admin token next to %s: set IOP_EDGE_STATE to the Edge's state, or pass the token with IOP_ADMIN_TOKEN_FILE", o.state.State)}
	}
	if err != nil {
		return "", err
	}
	return token.Reveal(), nil
}

// yamlFile is a body that is sent as it stands.
type yamlFile []byte

// call asks the admin API and decodes its answer into out, which may be nil.
func (o *operator) call(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	if o.progress != nil {
		defer onlyOnTerminal(o.progress(), "waiting for the Edge")()
	}
	response, err := o.open(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAdminAnswer))
	if err != nil {
		return fmt.Errorf("the Edge's response was cut off: %w", err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("the response from %s is not from an admin API of this version: %w", o.admin.URL, err)
	}
	return nil
}

// open asks the admin API; the caller closes the body of its answer, whose status is 200.
func (o *operator) open(ctx context.Context, method, path string, in any) (*http.Response, error) {
	token, err := o.token()
	if err != nil {
		return nil, err
	}
	var body io.Reader = http.NoBody
	contentType := ""
	switch in := in.(type) {
	case nil:
	case yamlFile:
		body, contentType = bytes.NewReader(in), "application/yaml"
	default:
		data, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body, contentType = bytes.NewReader(data), "application/json"
	}
	request, err := http.NewRequestWithContext(ctx, method, o.admin.URL+"/admin/v1"+path, body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := adminClient.Do(request)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w at %s: start one with \"iop edge\", or set IOP_ADMIN_URL (--admin-url) to its admin API", errNoEdge, o.admin.URL)
	}
	if err != nil {
		return nil, fmt.Errorf("request to the Edge: %w; IOP_ADMIN_URL (--admin-url) sets its address", err)
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		return nil, refusal(response)
	}
	return response, nil
}

// adminClient makes one request per process: it keeps no connection. A redirect would carry the token elsewhere.
var adminClient = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// refusal is the error in an answer that is not 200.
func refusal(response *http.Response) error {
	var body struct {
		Error struct {
			Message string `json:"message"`
			Code    string `json:"code"`
		} `json:"error"`
	}
	data, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10)) // the status is the news
	_ = json.Unmarshal(data, &body)
	message := cmp.Or(body.Error.Message, "the Edge answered "+response.Status+": is that its admin API? (IOP_ADMIN_URL, --admin-url)")
	if step := stepAfter[body.Error.Code]; step != "" {
		message = strings.TrimSuffix(message, ".") + "; " + step
	}
	return &apiError{code: body.Error.Code, message: message}
}

// stepAfter is what to do about an error of the admin API, by its code, where the message does not say.
var stepAfter = map[string]string{
	"invalid_admin_token": "set IOP_EDGE_STATE to the Edge's state, or IOP_ADMIN_TOKEN_FILE",
	"run_not_found":       "iop runs lists them",
	"no_config_file":      "start the Edge with --config",
	"not_managed":         "docs/managed-mode.md explains how to switch to managed mode",
	"slot_unusable":       "iop slot show prints its state",
	"profile_in_use":      "iop slot list shows which slots have it",
	"unknown_path":        "is that the admin API of an Edge of this version? (IOP_ADMIN_URL, --admin-url)",
	"internal_error":      "iop doctor edge checks for problems",
}

// listedBy adds to an error that says that there is no such thing which command lists those that there are.
func listedBy(command string, err error) error {
	if refused, ok := errors.AsType[*apiError](err); ok && refused.code == "not_found" || errors.Is(err, state.ErrNotFound) {
		return fmt.Errorf("%w; \"%s\" lists the existing ones", err, command)
	}
	return err
}

// apiError is an error that the admin API answered with.
type apiError struct {
	code    string // empty where what answers is no admin API
	message string
}

func (e *apiError) Error() string { return onTerminal(e.message) }

// openState opens the state for a command that changes it while no Edge runs. What only looks must not make one.
func (o *operator) openState(ctx context.Context, create bool) (*state.Store, error) {
	path, isFile := strings.CutPrefix(o.state.State, "sqlite://")
	missing := false
	if isFile {
		_, err := os.Stat(path)
		missing = errors.Is(err, fs.ErrNotExist)
	}
	if missing && !create {
		return nil, fmt.Errorf("no Edge is running at %s, and there is no state at %s (IOP_EDGE_STATE)", o.admin.URL, path)
	}
	store, err := state.Open(ctx, o.state.State)
	if err == nil && missing {
		if err := handOver(path); err != nil {
			return nil, errors.Join(err, store.Close())
		}
		fmt.Fprintf(o.progress(), "no Edge is running at %s: created a new state at %s, for an Edge with that IOP_EDGE_STATE\n", o.admin.URL, path)
	}
	return store, err
}

// reach calls the admin API, or, where no Edge runs, does the same on the state itself. Whoever names an Edge on another
// machine means that one, not the state on this one.
func (o *operator) reach(ctx context.Context, creates bool, viaEdge func() error, onState func(*state.Store) error) error {
	u, err := url.Parse(o.admin.URL)
	if err != nil || !isLoopback(u.Hostname()) || o.edgeListens(ctx) {
		return viaEdge()
	}
	store, err := o.openState(ctx, creates)
	if err != nil {
		return err
	}
	defer store.Close()
	return onState(store)
}

// edgeListens reports whether anything listens where the admin API is expected. A token is not needed to find that out,
// and there is none before an Edge has first run.
func (o *operator) edgeListens(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, o.admin.URL+"/healthz", http.NoBody)
	if err != nil {
		return false
	}
	response, err := adminClient.Do(request)
	if err != nil {
		return !errors.Is(err, syscall.ECONNREFUSED)
	}
	response.Body.Close()
	return true
}
