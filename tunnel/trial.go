package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"iop/execution"
	"iop/tunnel/wire"
)

// Trial is what a Node would say of itself, for the Edge to check before the Node runs. Nothing is registered.
type Trial struct {
	Node   execution.NodeID
	Labels map[string]string
	Models []string // that it would offer; may be a part of them
}

const (
	// maxTrial is the size of a trial in bytes: proxies commonly allow a header of 4096 to 8192 bytes.
	maxTrial = 3072
	// maxTrialFields bounds what is parsed: it is more than fit into maxTrial with names of two letters.
	maxTrialFields = 1024
)

// Header returns the value of wire.HeaderTrial for t. It leaves out models that don't fit and returns how many it kept. The error
// says that name and labels alone are too long.
func (t *Trial) Header() (value string, models int, err error) {
	fields := []string{"node=" + url.QueryEscape(string(t.Node))}
	for key, label := range t.Labels {
		fields = append(fields, "label="+url.QueryEscape(key+"="+label))
	}
	slices.Sort(fields[1:])
	value = strings.Join(fields, "&")
	if len(value) > maxTrial || len(fields) > maxTrialFields {
		return "", 0, fmt.Errorf("name and labels have %d bytes, over %d", len(value), maxTrial)
	}
	for _, model := range t.Models {
		next := "&model=" + url.QueryEscape(model)
		if len(value)+len(next) > maxTrial || len(fields)+models == maxTrialFields {
			break
		}
		value += next
		models++
	}
	return value, models, nil
}

// parseTrial parses what Trial.Header returns.
func parseTrial(value string) (*Trial, error) {
	if len(value) > maxTrial || strings.Count(value, "&") >= maxTrialFields {
		return nil, fmt.Errorf("%s: over %d bytes or %d fields", wire.HeaderTrial, maxTrial, maxTrialFields)
	}
	fields, err := url.ParseQuery(value)
	if err != nil {
		return nil, errors.New(wire.HeaderTrial + ": not of the form field=value&field=value")
	}
	if len(fields["node"]) != 1 {
		return nil, errors.New(wire.HeaderTrial + ": exactly one node is required")
	}
	t := &Trial{Node: execution.NodeID(fields["node"][0]), Models: fields["model"]}
	for _, label := range fields["label"] {
		key, value, _ := strings.Cut(label, "=")
		if _, twice := t.Labels[key]; twice {
			return nil, errors.New(wire.HeaderTrial + ": a label is given twice")
		}
		if t.Labels == nil {
			t.Labels = map[string]string{}
		}
		t.Labels[key] = value
	}
	return t, nil
}

// try answers a trial, if the request is one: as REGISTER would be. The *Refusal says why not. Where it would be accepted, the
// upgrade's answer says so, and how many of the models would be ignored.
func (a *Acceptor) try(w http.ResponseWriter, r *http.Request, id *Identity) error {
	values := r.Header.Values(wire.HeaderTrial)
	if len(values) == 0 || a.cfg.Try == nil {
		return nil
	}
	t, err := parseTrial(strings.Join(values, "&"))
	if err == nil {
		err = checkName(string(t.Node))
	}
	if err == nil {
		err = checkLabels(t.Labels)
	}
	if err != nil {
		return &Refusal{Code: "bad_request", Message: err.Error()}
	}
	ctx, cancel := context.WithTimeout(r.Context(), admitTime)
	defer cancel()
	if err := a.cfg.Try(ctx, *id, *t); err != nil {
		return err
	}
	ignored := 0
	for i, model := range t.Models {
		if !id.Allowance.model(model, i-ignored) {
			ignored++
		}
	}
	w.Header().Set(wire.HeaderTrial, "ignored="+strconv.Itoa(ignored))
	return nil
}

// refuseTrial answers a trial that failed. No Node was refused, so that nothing is counted.
func (a *Acceptor) refuseTrial(w http.ResponseWriter, r *http.Request, err error) {
	refusal, ok := errors.AsType[*Refusal](err)
	if !ok {
		a.cfg.Logger.Error("tunnel: a trial can't be checked", "remote", r.RemoteAddr, "err", err)
		writeRefusal(w, http.StatusServiceUnavailable, &Refusal{Code: "unavailable", Message: "the Edge can't check Nodes now"})
		return
	}
	a.cfg.Logger.Info("tunnel: trial refused", "remote", r.RemoteAddr, "code", refusal.Code, "message", refusal.Message)
	writeRefusal(w, http.StatusForbidden, refusal)
}

// TrialAnswer parses an Edge's answer to a trial that it would accept: how many models it would ignore. False: the Edge checked
// nothing, as Edges without trials do.
func TrialAnswer(header http.Header) (ignored int, checked bool) {
	fields, err := url.ParseQuery(header.Get(wire.HeaderTrial))
	if err != nil || len(fields["ignored"]) != 1 {
		return 0, false
	}
	ignored, err = strconv.Atoi(fields["ignored"][0])
	return ignored, err == nil && ignored >= 0
}
