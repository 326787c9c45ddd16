package admin

import (
	"net/http"
	"time"

	"iop/state"
)

// maxTTLSeconds keeps a TTL within what a time.Duration holds.
const maxTTLSeconds = int64(100 * 365 * 24 * time.Hour / time.Second)

func (a *api) joinTokens(r *http.Request) (any, error) {
	tokens, err := a.store.JoinTokens(r.Context())
	if err != nil {
		return nil, err
	}
	views := make([]JoinToken, len(tokens))
	for i := range tokens {
		views[i] = JoinTokenView(&tokens[i])
	}
	return list[JoinToken]{views}, nil
}

// createJoinToken answers with the token itself, this one time.
func (a *api) createJoinToken(r *http.Request) (any, error) {
	var body NewJoinToken
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	if body.TTLSeconds < 0 || body.TTLSeconds > maxTTLSeconds {
		return nil, invalid("ttl_seconds", "ttl_seconds must be from 0 to 100 years")
	}
	token, secret, err := a.store.CreateJoinToken(r.Context(), body.JoinTokenSpec())
	if err != nil {
		return nil, err
	}
	a.done(r, "create join token", "join_token", token.ID, "node", token.Node)
	view := JoinTokenView(&token)
	view.Token = secret.Reveal()
	return view, nil
}

// revokeJoinToken ends the token and the sessions that it opened.
func (a *api) revokeJoinToken(r *http.Request) (any, error) {
	id := state.JoinTokenID(r.PathValue("id"))
	if err := a.store.RevokeJoinToken(r.Context(), id, by(r)); err != nil {
		return nil, err
	}
	closed := a.edge.CloseToken(id)
	a.done(r, "revoke join token", "join_token", id, "sessions", closed)
	return map[string]any{"id": id, "sessions_closed": closed}, nil
}
