package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// TestUploadsInTurn sends many requests of 63 MiB at once, streams among them whose usage the Edge asks for, to Edges whose
// budget has room for one and for four: each waits for its turn and is served, and the Edge's memory stays at its budget and
// what it needs beside. It has the machine for itself: no parallel test.
func TestUploadsInTurn(t *testing.T) {
	const size, base = 63 << 20, 64 << 20
	for _, budget := range []int64{64 << 20, 256 << 20} {
		uploads := 12
		if budget > 64<<20 {
			uploads = 8
		}
		t.Run(fmt.Sprintf("%d MiB", budget>>20), func(t *testing.T) {
			s := newStack(t, stackConfig{edgeArgs: []string{"--body-budget", fmt.Sprint(budget)}})
			var all sync.WaitGroup
			for i := range uploads {
				all.Go(func() {
					if status, answer := s.uploadStream(t, size, i%4 == 3, i%2 == 0); status != http.StatusOK {
						t.Errorf("upload %d: %d %s", i, status, tail(answer, 300))
					}
				})
			}
			all.Wait()
			s.quiet()
			peak := s.edge.memory("VmHWM")
			t.Logf("the Edge had %d MiB at most, with a budget of %d MiB", peak>>20, budget>>20)
			if most := budget + budget/4 + base; peak > most {
				t.Errorf("the Edge had %d MiB, want %d at most", peak>>20, most>>20)
			}
			if held := s.metric("iop_body_budget_bytes"); held != 0 {
				t.Errorf("%v bytes are held at the end", held)
			}
		})
	}
}

// uploadStream is upload of a request that may stream, without asking for its usage.
func (s *stack) uploadStream(t *testing.T, n int64, chunked, stream bool) (status int, answer string) {
	t.Helper()
	head, end := `{"messages":[{"role":"user","content":"sim:tokens=2 `, fmt.Sprintf(`"}],"stream":%v,"model":"sim-small"}`, stream)
	req := s.request("POST", "/v1/chat/completions", nil, http.Header{"Content-Type": {"application/json"}})
	req.Body = io.NopCloser(io.MultiReader(strings.NewReader(head), &filler{n}, strings.NewReader(end)))
	req.ContentLength = int64(len(head)+len(end)) + n
	if chunked {
		req.ContentLength = -1
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Errorf("upload of %d bytes: %v", n, err)
		return 0, ""
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Errorf("upload of %d bytes: %v after %q", n, err, data)
	}
	return res.StatusCode, string(data)
}
