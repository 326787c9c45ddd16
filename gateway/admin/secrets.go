package admin

import (
	"net/http"
	"time"

	"iop/state"
)

// maxTTLSeconds keeps a TTL within what a time.Duration holds.
const maxTTLSeconds = int64(100 * 365 * 24 * time.Hour / time.Second)

func (a *api) keys(r *http.Request) (any, error) {
	keys, err := a.store.Keys(r.Context())
	if err != nil {
		return nil, err
	}
	views := make([]Key, len(keys))
	for i := range keys {
		views[i] = keyView(&keys[i])
	}
	return list[Key]{views}, nil
}

// createKey answers with the key itself, this one time.
func (a *api) createKey(r *http.Request) (any, error) {
	var spec NewKey
	if err := decode(r, &spec); err != nil {
		return nil, err
	}
	var expires time.Time
	if spec.Expires != nil {
		expires = *spec.Expires
	}
	key, secret, err := a.store.CreateKey(r.Context(), state.KeySpec{
		Name: spec.Name, Owner: spec.Owner, Routes: spec.Routes, RPM: spec.RPM, TPM: spec.TPM,
		Concurrency: spec.Concurrency, Expires: expires,
	})
	if err != nil {
		return nil, err
	}
	a.log.Info("admin", "action", "create key", "key", key.ID, "name", key.Name)
	view := keyView(&key)
	view.Key = secret.Reveal()
	return view, nil
}

func (a *api) revokeKey(r *http.Request) (any, error) {
	id := state.KeyID(r.PathValue("id"))
	if err := a.store.RevokeKey(r.Context(), id, operatorName); err != nil {
		return nil, err
	}
	a.log.Info("admin", "action", "revoke key", "key", id)
	return map[string]any{"id": id}, nil
}

func (a *api) joinTokens(r *http.Request) (any, error) {
	tokens, err := a.store.JoinTokens(r.Context())
	if err != nil {
		return nil, err
	}
	views := make([]JoinToken, len(tokens))
	for i := range tokens {
		views[i] = joinTokenView(&tokens[i])
	}
	return list[JoinToken]{views}, nil
}

// createJoinToken answers with the token itself, this one time.
func (a *api) createJoinToken(r *http.Request) (any, error) {
	var spec NewJoinToken
	if err := decode(r, &spec); err != nil {
		return nil, err
	}
	if spec.TTLSeconds < 0 || spec.TTLSeconds > maxTTLSeconds {
		return nil, &failure{http.StatusBadRequest, "invalid_request", "ttl_seconds", "ttl_seconds must be 0 to a hundred years"}
	}
	token, secret, err := a.store.CreateJoinToken(r.Context(), state.JoinTokenSpec{
		Node: spec.Node, TTL: time.Duration(spec.TTLSeconds) * time.Second,
	})
	if err != nil {
		return nil, err
	}
	a.log.Info("admin", "action", "create join token", "join_token", token.ID, "node", token.Node)
	view := joinTokenView(&token)
	view.Token = secret.Reveal()
	return view, nil
}

// revokeJoinToken ends the token and the sessions that it opened.
func (a *api) revokeJoinToken(r *http.Request) (any, error) {
	id := state.JoinTokenID(r.PathValue("id"))
	if err := a.store.RevokeJoinToken(r.Context(), id, operatorName); err != nil {
		return nil, err
	}
	closed := a.edge.CloseToken(id)
	a.log.Info("admin", "action", "revoke join token", "join_token", id, "sessions", closed)
	return map[string]any{"id": id, "sessions_closed": closed}, nil
}
