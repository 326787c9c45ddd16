package gateway_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"iop/execution"
	"iop/tunnel"
)

// script is what a Node's adapter does in a random run: events, some in each frame, and an end.
type script struct {
	events []*execution.Event
	cuts   []int // how many events each frame has, in turn
	end    execution.Terminal
}

func randomScript(r *rand.Rand) script {
	s := script{events: []*execution.Event{started}, end: completed}
	for range r.IntN(6) {
		s.events = append(s.events, []*execution.Event{
			{Kind: execution.EventText, Text: strings.Repeat("a", 1+r.IntN(40))},
			{Kind: execution.EventReasoning, Text: "hm"},
			{Kind: execution.EventUsage, Usage: &execution.Usage{Input: 1, Output: 1, Known: true}},
		}[r.IntN(3)])
	}
	switch r.IntN(5) {
	case 0: // cut off
		s.end = failed(execution.CodeProviderTruncated, execution.PhaseStreaming)
	case 1:
		s.events = append(s.events, failure(execution.Failure{Message: "out of memory"}))
		s.end = failed(execution.CodeProviderError, execution.PhaseStreaming)
	default:
		s.events = append(s.events, stop)
	}
	s.cuts = []int{1 + r.IntN(3), 1 + r.IntN(3), 1 + r.IntN(3)}
	return s
}

// play sends the script's events, a few in each frame.
func (s script) play(ctx context.Context, run *tunnel.NodeRun) {
	_, _ = io.Copy(io.Discard, run)
	for i, at := 0, 0; at < len(s.events) && ctx.Err() == nil; i++ {
		n := min(s.cuts[i%len(s.cuts)], len(s.events)-at)
		var frame []byte
		for _, ev := range s.events[at : at+n] {
			frame = tunnel.AppendRunEvent(frame, ev)
		}
		if run.Events(frame) != nil {
			break
		}
		at += n
	}
	if ctx.Err() != nil {
		run.End(execution.Terminal{Outcome: execution.Cancelled, Code: execution.CodeClientGone, Phase: execution.PhaseStreaming})
		return
	}
	run.End(s.end)
}

// Whatever comes in whatever order (events, ends, cancels, clients that go away): a client that stays sees one terminal, of the
// right kind, and all that is counted returns to zero.
func TestRandomInterleavings(t *testing.T) {
	e := newEdge(t, nil)
	var mu sync.Mutex
	scripts := map[string]script{} // by session_id
	e.addProvider("n1", func() tunnel.ProviderInfo { p := runsOn("openai"); p.Capacity = 16; return p }(), func(ctx context.Context, run *tunnel.NodeRun) {
		mu.Lock()
		s := scripts[run.Open().GetSessionId()]
		mu.Unlock()
		s.play(ctx, run)
	}, "m")
	names := make([]string, 0, len(families))
	for name := range families {
		names = append(names, name)
	}
	slices.Sort(names)
	const workers, each = 8, 125
	var wg sync.WaitGroup
	for worker := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(5, uint64(worker)))
			for i := range each {
				s, f := randomScript(r), families[names[r.IntN(len(names))]]
				id := fmt.Sprint(worker, "-", i)
				mu.Lock()
				scripts[id] = s
				mu.Unlock()
				if err := e.interleave(r, f, s, id); err != nil {
					t.Errorf("run %s of %s, %v: %v", id, f.path, s.end.Code, err)
				}
			}
		})
	}
	wg.Wait()
	e.idle()
}

// interleave asks once, and perhaps goes away, or cancels.
func (e *edge) interleave(r *rand.Rand, f family, s script, id string) error {
	ctx, leave := context.WithCancel(e.t.Context())
	defer leave()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url(f.path), strings.NewReader(f.with(true)))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+e.key)
	req.Header.Set("X-Session-Id", id)
	act := r.IntN(8)
	resp, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	some := make([]byte, 1+r.IntN(200))
	switch act {
	case 0: // it goes away
		_, _ = io.ReadFull(resp.Body, some)
		leave()
		return nil
	case 1: // it cancels
		n, _ := io.ReadFull(resp.Body, some)
		some = some[:n]
		cancel, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url("/iop/v1/runs/"+resp.Header.Get("X-Iop-Run-Id")+"/cancel"), nil)
		if err != nil {
			return err
		}
		cancel.Header.Set("Authorization", "Bearer "+e.key)
		answer, err := e.client.Do(cancel)
		if err != nil {
			return err
		}
		answer.Body.Close()
	default:
		some = nil
	}
	rest, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	return f.terminal(resp.StatusCode, string(some)+string(rest), s, act == 1)
}

// terminal checks that an answer has one end, and the right one.
func (f family) terminal(status int, answer string, s script, cancelled bool) error {
	done, broken := strings.Count(answer, f.done), strings.Count(answer, f.broken)
	switch {
	case status != http.StatusOK:
		if done != 0 || !strings.HasPrefix(answer, f.refused) || s.end.Outcome == execution.Completed && !cancelled {
			return fmt.Errorf("%d: %s", status, answer)
		}
	case done+broken != 1:
		return fmt.Errorf("%d ends, %d errors: %s", done, broken, answer)
	case !cancelled && (done == 1) != (s.end.Outcome == execution.Completed):
		return fmt.Errorf("it should have ended as %v: %s", s.end.Outcome, answer)
	}
	return nil
}
