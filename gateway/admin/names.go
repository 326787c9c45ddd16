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
	if name, id, ok := cutShown(idOrName); ok && errors.Is(err, state.ErrNotFound) {
		if shown, e := a.store.FindKey(ctx, id); e == nil && string(shown.ID) == id && shown.Name == name {
			return shown, nil
		}
	}
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

// cutShown reads "NAME (ID)", which is how a key is shown whose name alone means another one.
func cutShown(text string) (name, id string, ok bool) {
	text, ok = strings.CutSuffix(text, ")")
	i := strings.LastIndex(text, " (")
	if !ok || i < 0 {
		return "", "", false
	}
	return text[:i], text[i+2:], true
}

// keyNames are the names of keys.
type keyNames struct {
	of    map[state.KeyID]string
	means map[string]state.KeyID // what a name means where a key is asked for: see state.FindKey; empty: several keys
}

// readKeyNames reads the names of all keys.
func readKeyNames(ctx context.Context, store *state.Store) (keyNames, error) {
	n := keyNames{means: map[string]state.KeyID{}}
	var err error
	if n.of, err = store.KeyNames(ctx); err != nil {
		return n, err
	}
	shared := map[string]bool{}
	for id, name := range n.of {
		if _, taken := n.means[name]; taken {
			shared[name] = true
		}
		n.means[name] = id
	}
	for name := range shared {
		key, err := store.FindKey(ctx, name)
		if _, ambiguous := errors.AsType[*state.AmbiguousNameError](err); err != nil && !ambiguous {
			return n, err
		}
		n.means[name] = key.ID
	}
	return n, nil
}

// principal is a principal as people read it, and as filters take it: "key:" and the name for a key without an owner, with the id
// where the name alone means another key. An owner can't begin so.
func (n keyNames) principal(p string) string {
	text, ok := strings.CutPrefix(p, state.KeyPrincipal)
	id := state.KeyID(text)
	switch name := n.of[id]; {
	case !ok || name == "":
		return p
	case n.means[name] != id:
		return state.KeyPrincipal + name + " (" + text + ")"
	default:
		return state.KeyPrincipal + name
	}
}
