package web

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"iop/gateway/admin"
)

// playgroundData is what the playground shows.
type playgroundData struct{ Models []string }

func (c *console) playground(w http.ResponseWriter, r *http.Request) error {
	var edge admin.Status
	if err := c.api.get(r.Context(), "/status", nil, &edge); err != nil {
		return err
	}
	c.pages.show(w, r, http.StatusOK, "playground", playgroundData{Models: edge.Models})
	return nil
}

// playgroundName begins the name of the keys that the playground makes; the session's name ends it. Older ones have it alone.
const playgroundName = "console playground"

// playgroundKey returns the session's own API key, made when it is first wanted, and anew where somebody revoked it. It
// ends with the session.
func (c *console) playgroundKey(ctx context.Context, at *session) (string, error) {
	at.mu.Lock()
	defer at.mu.Unlock()
	if at.playground.Key != "" {
		var now admin.Key
		err := c.api.get(ctx, "/keys"+seg(string(at.playground.ID)), nil, &now)
		if err == nil && now.Revoked == nil {
			return at.playground.Key, nil
		}
		if refused, ok := errors.AsType[*apiError](err); err != nil && (!ok || refused.Status != http.StatusNotFound) {
			return "", err
		}
		at.playground = admin.Key{}
	}
	until := at.until.UTC().Truncate(time.Second)
	body := admin.NewKey{Name: playgroundName + " " + at.name, Concurrency: 4, Expires: &until}
	if err := c.api.post(ctx, "/keys", body, &at.playground); err != nil {
		return "", err
	}
	return at.playground.Key, nil
}

// closePlayground revokes the session's key.
func (c *console) closePlayground(ctx context.Context, at *session) {
	at.mu.Lock()
	defer at.mu.Unlock()
	if at.playground.Key == "" {
		return
	}
	if err := c.api.post(ctx, "/keys"+seg(string(at.playground.ID))+"/revoke", nil, nil); err != nil {
		c.log.Warn("console: the playground's key could not be revoked; it expires by itself", "key", at.playground.ID, "error", err)
	}
	at.playground = admin.Key{}
}

// playgroundPath is the operation that the playground calls.
const playgroundPath = "/v1/chat/completions"

// chat sends the page's request to the public API, as a client with a key of its own, and passes the answer on as it comes.
func (c *console) chat(w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return &apiError{Status: http.StatusRequestEntityTooLarge, Body: admin.ErrorBody{Message: "The conversation is too long for the playground.", Code: "body_too_large"}}
		}
		return err
	}
	key, err := c.playgroundKey(r.Context(), sessionOf(r.Context()))
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, playgroundPath, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.RemoteAddr, req.Host = r.RemoteAddr, r.Host
	req.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + key}, "User-Agent": {"iop-console"}}
	c.parts.Public.ServeHTTP(w, req)
	return nil
}
