package gateway_test

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"iop/execution"
	"iop/gateway"
	"iop/tunnel"
)

// threeTargets is a route whose targets are tried in order; the last one, "good", answers well.
const threeTargets = `
routes:
  - model: chat
    retry: %s
    timeouts: {first_byte: %s}
    groups:
      - targets: [{node: first, model: m}]
      - targets: [{node: second, model: m}]
      - targets: [{node: good, model: m}]
`

func TestRetriesFollowTheRoute(t *testing.T) {
	unknown := endsWith(execution.Terminal{Outcome: execution.Rejected, Code: execution.CodeUnknownProvider, Phase: execution.PhaseDispatched})
	unreachable := failedWith(execution.CodeProviderUnreachable, execution.PhaseProviderCalled)
	tests := map[string]struct {
		retry         string
		firstByte     string
		first, second handler
		status        int
		asked         int // runs that Nodes got
	}{
		"none":                      {"{attempts: 0}", "0s", answerJSON(503, `{}`), unreachable, 503, 1},
		"none, a refusal is free":   {"{attempts: 0}", "0s", unknown, unknown, 200, 3},
		"none, then a failure":      {"{attempts: 0}", "0s", unknown, answerJSON(503, `{}`), 503, 2},
		"one":                       {"{attempts: 1}", "0s", answerJSON(503, `{}`), unreachable, 502, 2},
		"one, a refusal is free":    {"{attempts: 1}", "0s", unknown, answerJSON(503, `{}`), 200, 3},
		"one, a refusal after it":   {"{attempts: 1}", "0s", answerJSON(503, `{}`), unknown, 200, 3},
		"two":                       {"{attempts: 2}", "0s", answerJSON(503, `{}`), unreachable, 200, 3},
		"500 is none of them":       {"{attempts: 2}", "0s", answerJSON(500, `{}`), unreachable, 502, 1},
		"500, if so asked":          {"{attempts: 2, on: [server_error]}", "0s", answerJSON(500, `{}`), answerJSON(503, `{}`), 503, 2},
		"502, if not asked":         {"{attempts: 2, on: [overloaded]}", "0s", answerJSON(502, `{}`), unreachable, 502, 1},
		"429, if not asked":         {"{attempts: 2, on: [gateway]}", "0s", answer429("3"), unreachable, 429, 1},
		"unreachable, not asked":    {"{attempts: 2, on: [gateway]}", "0s", unreachable, unreachable, 502, 1},
		"400 is the client's":       {"{attempts: 2}", "0s", answerJSON(400, errorBody("no")), unreachable, 400, 1},
		"slow, the route has time":  {"{attempts: 2}", "0s", failedWith(execution.CodeProviderTimeout, execution.PhaseProviderCalled), unreachable, 504, 1},
		"slow, the route has none":  {"{attempts: 2}", "9s", failedWith(execution.CodeProviderTimeout, execution.PhaseProviderCalled), answerJSON(504, `{}`), 200, 3},
		"error as the first event":  {"{attempts: 1}", "0s", firstEvent(`{"error":{"code":429,"message":"busy"}}`), unreachable, 502, 2},
		"error event, client's own": {"{attempts: 1}", "0s", firstEvent(`{"error":{"code":400,"message":"long"}}`), unreachable, 400, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, _ := withRoutes(t, fmt.Sprintf(threeTargets, test.retry, test.firstByte))
			asked := new(atomic.Int64)
			e.addNode("first", 1, counted(asked, test.first), "m")
			e.addNode("second", 1, counted(asked, test.second), "m")
			e.addNode("good", 1, counted(asked, answerJSON(200, `{"good":true}`)), "m")
			status, h, body := e.post(chat, `{"model":"chat"}`)
			if status != test.status || asked.Load() != int64(test.asked) {
				t.Errorf("got %d %s from %d Nodes", status, body, asked.Load())
			}
			e.idle()
			if n := len(e.records()); n != 1 {
				t.Errorf("%d usage records", n)
			} else if r := e.records()[0]; r.Attempts != test.asked || r.Status != status || string(r.Run) != h.Get("X-Iop-Run-Id") {
				t.Errorf("the usage record is %+v", r)
			}
		})
	}
}

// TestProviderSaysWhenItHasRoom: 429 and 503 with Retry-After leave the target alone for so long. Who waits for it then
// waits in the queue, and is told so.
func TestProviderSaysWhenItHasRoom(t *testing.T) {
	for _, status := range []int{429, 503} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			asked := 0
			h := func(ctx context.Context, run *tunnel.NodeRun) {
				if asked++; asked > 1 {
					answerJSON(200, `{}`)(ctx, run)
					return
				}
				_ = run.Head(head(status, "application/json", "retry-after", "30"))
				_ = run.Write([]byte(errorBody("busy")), false)
				run.End(execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone})
			}
			timed(t, nil, h, func(ask asker) {
				resp, err := ask.text(`{"model":"m"}`)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if resp.StatusCode != status || resp.Header.Get("Retry-After") != "30" {
					t.Errorf("got %d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
				}
				began := time.Now()
				resp, err = ask.text(`{"model":"m"}`)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if took := time.Since(began); resp.StatusCode != 200 || took < 29*time.Second || took > 31*time.Second {
					t.Errorf("after %v: %d", took, resp.StatusCode)
				}
				if p := resp.Header.Get("X-Iop-Queue-Position"); p != "1" {
					t.Errorf("position %q", p)
				}
				if ms, _ := strconv.Atoi(resp.Header.Get("X-Iop-Queue-Ms")); ms < 29_000 || ms > 31_000 {
					t.Errorf("it waited %d ms", ms)
				}
			})
		})
	}
}

// TestRetryAfterOfAProvider: nonsense is not passed on.
func TestRetryAfterOfAProvider(t *testing.T) {
	for sent, want := range map[string]string{
		"1": "1", "60": "60", "61": "60", "9223372037": "60", "18446744074": "60", "9223372036854775807": "60",
		"0": "", "-5": "", "1.5": "", "Wed, 21 Oct 2026 07:28:00 GMT": "", "99999999999999999999": "",
	} {
		t.Run(sent, func(t *testing.T) {
			e := newEdge(t, nil)
			e.addNode("n1", 4, answer429(sent), "m")
			if status, h, _ := e.post(chat, `{"model":"m"}`); status != 429 || h.Get("Retry-After") != want {
				t.Errorf("%d, Retry-After %q, want %q", status, h.Get("Retry-After"), want)
			}
		})
	}
}

// TestToldByTheNode: where the client has the provider's own error already the Edge adds nothing. It has not where
// nothing was sent, whatever a Node says.
func TestToldByTheNode(t *testing.T) {
	const own = "data: {\"error\":{\"message\":\"the engine broke\",\"type\":\"x\",\"param\":null,\"code\":\"y\"}}\n\n"
	told := execution.Terminal{Outcome: execution.Failed, Code: execution.CodeProviderError, Phase: execution.PhaseProviderDone, Told: true}
	sends := func(h *handler, kind string, data ...string) {
		*h = func(_ context.Context, run *tunnel.NodeRun) {
			if kind != "" {
				_ = run.Head(head(200, kind))
			}
			for _, d := range data {
				_ = run.Write([]byte(d), true)
			}
			run.End(told)
		}
	}
	var stream, silent, headOnly, unary handler
	sends(&stream, "text/event-stream", chunk("a"), own)
	sends(&silent, "")
	sends(&headOnly, "text/event-stream")
	sends(&unary, "application/json", string(make([]byte, 100_000)))
	t.Run("stream", func(t *testing.T) {
		e := newEdge(t, nil)
		e.addNode("n1", 1, stream, "m")
		if status, _, body := e.post(chat, `{"model":"m","stream":true}`); status != 200 || body != chunk("a")+own {
			t.Errorf("got %d %q", status, body)
		}
		e.idle()
		if run := e.lastRun(); run.Outcome != "failed" || run.Code != "provider_error" {
			t.Errorf("the record is %+v", run)
		}
	})
	for name, h := range map[string]handler{"nothing": silent, "a head": headOnly} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, nil)
			e.addNode("n1", 1, h, "m")
			status, _, body := e.post(chat, `{"model":"m","stream":true}`)
			if code, _ := errorOf(t, body); status != 502 || code != "provider_error" {
				t.Errorf("got %d %q", status, body)
			}
		})
	}
	t.Run("no stream", func(t *testing.T) {
		e := newEdge(t, nil)
		e.addNode("n1", 1, unary, "m")
		resp := e.do(e.request("POST", chat, `{"model":"m"}`))
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("%d bytes are taken for the whole answer", len(body))
		}
	})
}

// TestQueueTimeoutAfterAFailure: who was sent away from one target waits for another no longer than anybody does.
func TestQueueTimeoutAfterAFailure(t *testing.T) {
	for _, news := range []string{"", "1"} {
		t.Run("news "+news, func(t *testing.T) {
			e := newEdge(t, func(c *gateway.Config) { c.QueueTimeout = 300 * time.Millisecond })
			codes := make(chan execution.Code, 1)
			started := make(chan struct{}, 1)
			e.addNode("busy", 1, waiting(codes, func(*tunnel.NodeRun) { started <- struct{}{} }), "m")
			first := make(chan int, 1)
			go func() { status, _, _ := e.post(chat, `{"model":"m"}`); first <- status }()
			<-started
			e.addNode("bad", 1, answerJSON(503, `{}`), "m")
			req := e.request("POST", chat, `{"model":"m","stream":true}`)
			if news != "" {
				req.Header.Set("X-IOP-Queue-Updates", news)
			}
			began := time.Now()
			resp := e.do(req)
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			const failed = `{"error":{"message":"No capacity became free for this model in time.","type":"server_error","param":null,"code":"queue_timeout"}}`
			want, status := failed, 504
			if news != "" {
				want, status = ": queued position=1\ndata: "+failed+"\n\n", 200
			}
			got := estimates.ReplaceAllString(string(body), "")
			if took := time.Since(began); resp.StatusCode != status || got != want || took < 300*time.Millisecond || took > patience {
				t.Errorf("after %v: %d %q", took, resp.StatusCode, body)
			}
			e.adminCancel()
			<-first
			e.idle()
		})
	}
}

// TestEachTargetIsSentItsOwnName: of the client's body there are never more than two in memory, however many targets
// it is rewritten for; of a form's large parts there is one.
func TestEachTargetIsSentItsOwnName(t *testing.T) {
	const file = `
routes:
  - model: chat
    retry: {attempts: 2}
    groups:
      - targets: [{model: one}]
      - targets: [{model: two}]
      - targets: [{model: chat}]
`
	filler := strings.Repeat("x", 900_000)
	bodies := map[string]struct {
		kind, path, before, after string
		budget                    int64
	}{
		"json": {"application/json", chat, `{"x":"` + filler + `","model":"`, `"}`, 5 << 19},
		"form": {"multipart/form-data; boundary=b", "/v1/audio/transcriptions",
			"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n" + filler + "\r\n--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n", "\r\n--b--\r\n", 3 << 19},
	}
	for name, body := range bodies {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "iop.yaml")
			writeRoutes(t, path, file)
			e := newEdge(t, func(c *gateway.Config) { c.Config, c.MaxBodyBytes, c.BodyBudget = path, 1<<20, body.budget })
			sent := make(chan sentRun, 3)
			e.addNode("n1", 1, capturing(sent, answerJSON(503, `{}`)), "one")
			e.addNode("n2", 1, capturing(sent, failedWith(execution.CodeProviderUnreachable, execution.PhaseProviderCalled)), "two")
			e.addNode("n3", 1, capturing(sent, answerJSON(200, `{}`)), "chat")
			req := e.request("POST", body.path, body.before+"chat"+body.after)
			req.Header.Set("Content-Type", body.kind)
			resp := e.do(req)
			answer, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != 200 {
				t.Fatalf("%d %s", resp.StatusCode, answer)
			}
			for _, model := range []string{"one", "two", "chat"} {
				got := <-sent
				own := got.body == body.before+model+body.after
				if name == "form" {
					own = slices.Equal(formParts(t, got), [][4]string{{"file", "f", "application/octet-stream", filler}, {"model", "", "", model}})
				}
				if !own {
					t.Errorf("%s got %d bytes that are not its own", model, len(got.body))
				}
			}
			e.idle()
		})
	}
}
