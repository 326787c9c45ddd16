package web

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"iop/gateway/admin"
)

// apiClient calls the admin API in this process. Its errors are *apiError where the API refused.
type apiClient struct{ handler http.Handler }

// apiError is a refusal of the API.
type apiError struct {
	Status int
	Body   admin.ErrorBody
}

func (e *apiError) Error() string { return e.Body.Message }

// answer is what the API answered.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }
func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

// get reads a path below /admin/v1 into v.
func (c apiClient) get(ctx context.Context, path string, query url.Values, v any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return c.call(ctx, http.MethodGet, path, nil, v)
}

// post sends a body, nil for none, and reads the answer into v unless that is nil.
func (c apiClient) post(ctx context.Context, path string, body, v any) error {
	return c.call(ctx, http.MethodPost, path, body, v)
}

func (c apiClient) call(ctx context.Context, method, path string, body, v any) error {
	var in bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&in).Encode(body); err != nil {
			return fmt.Errorf("encode the request to %s: %w", path, err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "/admin/v1"+path, &in)
	if err != nil {
		return err
	}
	req.RemoteAddr = "console"
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	got := &answer{header: http.Header{}}
	c.handler.ServeHTTP(got, req)
	if got.status >= 300 {
		var refused struct {
			Error admin.ErrorBody `json:"error"`
		}
		if err := json.Unmarshal(got.body.Bytes(), &refused); err != nil {
			return fmt.Errorf("%s %s answered %d", method, path, got.status)
		}
		return &apiError{got.status, refused.Error}
	}
	if v == nil {
		return nil
	}
	if err := json.Unmarshal(got.body.Bytes(), v); err != nil {
		return fmt.Errorf("read the answer of %s: %w", path, err)
	}
	return nil
}

// seg is a path segment.
func seg(s string) string { return "/" + url.PathEscape(s) }
