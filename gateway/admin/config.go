package admin

import (
	"context"
	_ "embed"
	"errors"
	"io"
	"net/http"

	"iop/gateway/route"
	"iop/state"
)

//go:embed openapi.yaml
var openAPI []byte

// document is the OpenAPI document of this API.
func (a *api) document(w http.ResponseWriter, _ *http.Request) error {
	header(w, yamlBody)
	_, _ = w.Write(openAPI) // a client that is gone is no news
	return nil
}

// configuration shows the routes in force and where they come from.
func (a *api) configuration(r *http.Request) (any, error) {
	status, table := a.edge.Configuration()
	return a.configurationOf(r.Context(), status, table), nil
}

func (a *api) configurationOf(ctx context.Context, status ConfigStatus, table *route.Table) Configuration {
	c := Configuration{ConfigStatus: status, AdvertisedModels: "refuse", Table: RouteConfigs(table), Coverage: a.edge.Coverage(table)}
	if table.ServesAdvertised() {
		c.AdvertisedModels = "serve"
	}
	keys, err := a.store.Keys(ctx)
	if err != nil { // a reload has taken effect all the same
		a.log.Warn("principals were not compared with the keys, which could not be read", "error", err)
	}
	c.Coverage.Absent = AbsentPrincipals(table, keys)
	slots, err := a.store.Slots(ctx)
	if err != nil {
		a.log.Warn("routes were not compared with the slots, which could not be read", "error", err)
		return c
	}
	c.Coverage.Slots = AbsentSlots(table, slots)
	return c
}

// reloadConfig reads the file now. A file with a fault changes nothing.
func (a *api) reloadConfig(r *http.Request) (any, error) {
	err := a.edge.ReloadConfig()
	a.noteReload(r, err)
	switch _, faulty := errors.AsType[*route.ConfigError](err); {
	case errors.Is(err, ErrNoConfig):
		return nil, &failure{http.StatusConflict, "no_config_file", "", err.Error()}
	case faulty:
		return nil, err
	case err != nil:
		return nil, &failure{http.StatusUnprocessableEntity, "invalid_config", "", err.Error()}
	}
	status, table := a.edge.Configuration()
	a.done(r, "reload config", "digest", status.Digest)
	return a.configurationOf(r.Context(), status, table), nil
}

// noteReload notes an order to read the file, and what came of it.
func (a *api) noteReload(r *http.Request, err error) {
	if errors.Is(err, ErrNoConfig) {
		return // there was nothing to read
	}
	status, _ := a.edge.Configuration()
	entry := state.AuditEntry{Action: state.AuditRoutesReloaded, Subject: status.Digest}
	if err != nil {
		entry.Outcome, entry.Reason = state.AuditRefused, "invalid_config"
	}
	a.note(r.Context(), entry)
}

// checkConfig says what a file would do, and applies nothing.
func (a *api) checkConfig(r *http.Request) (any, error) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, err
		}
		return nil, invalid("", "the body was cut off")
	}
	table, err := route.Parse("iop.yaml", data, route.Managed(a.edge.Managed()))
	if err != nil {
		return nil, err
	}
	_, inForce := a.edge.Configuration()
	status := ConfigStatus{Digest: table.Digest(), Routes: len(table.Routes())}
	check := ConfigCheck{Configuration: a.configurationOf(r.Context(), status, table), Changes: []ConfigChange{}}
	for _, c := range route.Changes(inForce, table) {
		check.Changes = append(check.Changes, ConfigChange(c))
	}
	return check, nil
}
