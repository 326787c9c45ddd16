package admin

import (
	"context"
	"net/http"
	"time"

	"iop/state"
)

func (a *api) keys(r *http.Request) (any, error) {
	keys, err := a.store.Keys(r.Context())
	if err != nil {
		return nil, err
	}
	views, err := a.inUse(r.Context(), keys)
	return list[Key]{views}, err
}

// inUse are keys with what of their limits is taken. Of a revoked one that is nothing.
func (a *api) inUse(ctx context.Context, keys []state.Key) ([]Key, error) {
	uses := a.edge.KeyUse(keys)
	views := make([]Key, len(keys))
	for i := range keys {
		key, use := &keys[i], &uses[i]
		views[i] = KeyView(key)
		if !key.RevokedAt.IsZero() {
			continue
		}
		views[i].Use = use
		if key.MonthlyTokens == 0 {
			continue
		}
		var err error
		if use.MonthTokens, err = a.store.MonthTokens(ctx, key.ID, time.Now().UTC()); err != nil {
			return nil, err
		}
	}
	return views, nil
}

// oneInUse is inUse for one key, with what its list of models does not match.
func (a *api) oneInUse(ctx context.Context, key state.Key) (any, error) {
	views, err := a.inUse(ctx, []state.Key{key})
	if err != nil {
		return nil, err
	}
	if views[0].Revoked == nil {
		views[0].Unmatched = a.edge.Unmatched(key.Routes)
	}
	return views[0], nil
}

// pathKey is the key in the path, which has its id or its name.
func (a *api) pathKey(r *http.Request) (state.Key, error) {
	return a.keyCalled(r.Context(), "id", r.PathValue("id"))
}

func (a *api) oneKey(r *http.Request) (any, error) {
	key, err := a.pathKey(r)
	if err != nil {
		return nil, err
	}
	return a.oneInUse(r.Context(), key)
}

// createKey answers with the key itself, this one time.
func (a *api) createKey(r *http.Request) (any, error) {
	var body NewKey
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	key, secret, err := a.store.CreateKey(r.Context(), body.Spec())
	if err != nil {
		return nil, err
	}
	a.done(r, "create key", "key", key.ID, "name", key.Name)
	view := KeyView(&key)
	view.Key, view.Unmatched = secret.Reveal(), a.edge.Unmatched(key.Routes)
	return view, nil
}

// updateKey changes what the body names. The new limits count from the key's next request on.
func (a *api) updateKey(r *http.Request) (any, error) {
	var body KeyChange
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	key, err := a.pathKey(r)
	if err != nil {
		return nil, err
	}
	key, err = a.store.UpdateKey(r.Context(), key.ID, body.Change())
	if err != nil {
		return nil, err
	}
	a.done(r, "update key", "key", key.ID, "name", key.Name)
	return a.oneInUse(r.Context(), key)
}

// revokeKey ends a key. What runs with a credential that was leased for it is cancelled; what needs none finishes.
func (a *api) revokeKey(r *http.Request) (any, error) {
	ctx, cancel := lasting(r)
	defer cancel()
	key, err := a.pathKey(r)
	if err != nil {
		return nil, err
	}
	id := key.ID
	if err := a.store.RevokeKey(ctx, id, by(r)); err != nil {
		return nil, err
	}
	a.done(r, "revoke key", "key", id, "name", key.Name)
	withdrawal, err := a.edge.KeyRevoked(ctx, id)
	if err != nil {
		a.log.Error("a key was revoked, but the leases of its runs could not be withdrawn", "key", id, "name", key.Name, "error", err)
		return nil, notTold()
	}
	return KeyRevocation{ID: id, Withdrawal: withdrawalView(withdrawal)}, nil
}
