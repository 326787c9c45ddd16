package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"iop/state"
)

// This file is about the names of keys: where a key is asked for by its id or its name, and where an id is shown.

// keyCalled returns the key with that id or name. param is what the request calls it.
func (a *api) keyCalled(ctx context.Context, param, idOrName string) (state.Key, error) {
	key, err := a.store.FindKey(ctx, idOrName)
	if errors.Is(err, state.ErrNotFound) {
		return key, &failure{http.StatusNotFound, "not_found", param, fmt.Sprintf("no key has the id or the name %q", idOrName)}
	}
	if shared, ok := errors.AsType[*state.AmbiguousNameError](err); ok {
		return key, &failure{http.StatusConflict, "ambiguous_name", param, shared.Error()}
	}
	return key, err
}

// keyAsked is keyCalled for a filter, which may be absent.
func (a *api) keyAsked(r *http.Request, param string) (state.KeyID, error) {
	text := r.URL.Query().Get(param)
	if text == "" {
		return "", nil
	}
	key, err := a.keyCalled(r.Context(), param, text)
	return key.ID, err
}

// principalAsked is the principal that a filter means: "key:" may be followed by a key's name as well as by its id.
func (a *api) principalAsked(r *http.Request) (string, error) {
	text := r.URL.Query().Get("principal")
	name, ok := strings.CutPrefix(text, state.KeyPrincipal)
	if !ok {
		return text, nil
	}
	key, err := a.keyCalled(r.Context(), "principal", name)
	return state.KeyPrincipal + string(key.ID), err
}

// keyNames are the names of keys by their ids.
type keyNames map[state.KeyID]string

// principal is a principal as people read it: "key:" and the name for a key without an owner. An owner can't begin so.
func (n keyNames) principal(p string) string {
	if id, ok := strings.CutPrefix(p, state.KeyPrincipal); ok && n[state.KeyID(id)] != "" {
		return state.KeyPrincipal + n[state.KeyID(id)]
	}
	return p
}
