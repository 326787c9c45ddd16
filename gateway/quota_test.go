package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/gateway"
	"iop/state"
	"iop/tunnel"
)

// uses is a provider that answers well and says what it used.
func uses(input, output int64) handler {
	return func(_ context.Context, run *tunnel.NodeRun) {
		_ = run.Head(head(200, "application/json"))
		_ = run.Write([]byte(`{}`), false)
		run.End(execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone,
			Usage: execution.Usage{Input: input, Output: output, Known: true}})
	}
}

// asks is a request whose estimate is 1 + most tokens.
func asks(most int) string { return fmt.Sprintf(`{"model":"m","messages":[],"max_tokens":%d}`, most) }

// wantRefusal checks a 429 and returns its Retry-After in seconds.
func wantRefusal(t *testing.T, status int, h http.Header, body, code string, noRetry bool) int {
	t.Helper()
	if got, _ := errorOf(t, body); status != 429 || got != code {
		t.Errorf("got %d %s, want 429 %s", status, body, code)
	}
	if got := h.Get("X-Should-Retry"); (got == "false") != noRetry {
		t.Errorf("X-Should-Retry %q", got)
	}
	if noRetry {
		if h["Retry-After"] != nil || !strings.Contains(body, " left, and this request may need ") {
			t.Errorf("Retry-After %q: %s", h.Get("Retry-After"), body)
		}
		return 0
	}
	after, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || after < 1 || after > 60 {
		t.Errorf("Retry-After %q", h.Get("Retry-After"))
	}
	return after
}

func TestLimitHeaders(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 4, uses(30, 20), "m")
	unlimited := func(h http.Header) bool {
		for name := range h {
			if strings.HasPrefix(name, "X-Ratelimit") {
				return false
			}
		}
		return true
	}
	if _, h, _ := e.post(chat, asks(1)); !unlimited(h) {
		t.Errorf("a key without limits: %v", h)
	}
	e.as(e.newKey(state.KeySpec{Concurrency: 5, MonthlyTokens: 1e6}), func() {
		if _, h, _ := e.post(chat, asks(1)); !unlimited(h) {
			t.Errorf("a key without limits a minute: %v", h)
		}
	})
	e.as(e.newKey(state.KeySpec{RPM: 2}), func() {
		began := time.Now()
		_, h, _ := e.post(chat, asks(1))
		if h.Get("X-Ratelimit-Limit-Requests") != "2" || h.Get("X-Ratelimit-Remaining-Requests") != "1" || h.Get("X-Ratelimit-Limit-Tokens") != "" {
			t.Errorf("first: %v", h)
		}
		// A failure that is told has them, too; it counts as a request.
		status, h, _ := e.post(chat, `{"model":"nothing"}`)
		e.post(chat, asks(1))
		if status != 404 {
			t.Errorf("%d %v", status, h)
		}
		status, h, body := e.post(chat, asks(1))
		if after := wantRefusal(t, status, h, body, "rate_limit_exceeded", false); after < 29-int(time.Since(began).Seconds()) || after > 30 {
			t.Errorf("Retry-After %d", after)
		}
		if h.Get("X-Ratelimit-Limit-Requests") != "2" || h.Get("X-Ratelimit-Remaining-Requests") != "0" || h.Get("X-Ratelimit-Reset-Requests") == "" || h.Get("X-Request-Id") == "" {
			t.Errorf("refused: %v", h)
		}
	})
	e.as(e.newKey(state.KeySpec{TPM: 100}), func() {
		if _, h, _ := e.post(chat, asks(9)); h.Get("X-Ratelimit-Limit-Tokens") != "100" || h.Get("X-Ratelimit-Remaining-Tokens") != "90" {
			t.Errorf("tokens: %v", h)
		}
	})
	e.idle()
}

// TestLimitOfTokens: what a run used counts, not what it was thought to use. A debt frees late; no client is told to wait
// for longer than clients do.
func TestLimitOfTokens(t *testing.T) {
	bubble(t, nil, uses(700, 300), state.KeySpec{Name: "test", TPM: 100}, func(send sender) {
		get := func() (int, http.Header, string) {
			resp, err := send(strings.NewReader(asks(9)))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			return resp.StatusCode, resp.Header, string(body)
		}
		if status, _, body := get(); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
		synctest.Wait()
		status, h, body := get()
		if after := wantRefusal(t, status, h, body, "rate_limit_exceeded", false); after != 60 {
			t.Errorf("Retry-After %d", after)
		}
		if _, message := errorOf(t, body); !strings.Contains(message, "9m6s") {
			t.Errorf("the message does not say when: %s", message)
		}
		if h.Get("X-Ratelimit-Remaining-Tokens") != "0" || h.Get("X-Ratelimit-Reset-Tokens") != "10m0s" {
			t.Errorf("%v", h)
		}
		time.Sleep(9*time.Minute + 5*time.Second)
		if status, _, _ := get(); status != 429 {
			t.Errorf("too early: %d", status)
		}
		time.Sleep(time.Second)
		if status, _, body := get(); status != 200 {
			t.Errorf("after the debt: %d %s", status, body)
		}
	})
}

func TestLimitOfConcurrency(t *testing.T) {
	e := newEdge(t, nil)
	codes := make(chan execution.Code, 2)
	started := make(chan struct{}, 2)
	e.addNode("n1", 4, waiting(codes, func(*tunnel.NodeRun) { started <- struct{}{} }), "m")
	e.as(e.newKey(state.KeySpec{Concurrency: 1}), func() {
		for range 2 { // the place comes back
			ctx, leave := context.WithCancel(t.Context())
			done := make(chan struct{})
			req := e.request(http.MethodPost, chat, asks(1)).WithContext(ctx)
			go func() {
				defer close(done)
				if resp, err := e.client.Do(req); err == nil {
					resp.Body.Close()
				}
			}()
			<-started
			status, h, body := e.post(chat, asks(1))
			wantRefusal(t, status, h, body, "rate_limit_exceeded", false)
			leave()
			<-done
			<-codes
			e.idle()
		}
	})
}

// TestBudgetOfAMonth: what runs may still use is no reason to give up, what was used is.
func TestBudgetOfAMonth(t *testing.T) {
	e := newEdge(t, nil)
	release := make(chan struct{})
	e.addNode("n1", 4, func(ctx context.Context, run *tunnel.NodeRun) {
		<-release
		uses(3, 2)(ctx, run)
	}, "m")
	e.as(e.newKey(state.KeySpec{MonthlyTokens: 100}), func() {
		status, h, body := e.post(chat, asks(100))
		wantRefusal(t, status, h, body, "insufficient_quota", true)
		first := make(chan int, 1)
		req := e.request(http.MethodPost, chat, asks(59))
		go func() {
			resp := e.do(req)
			resp.Body.Close()
			first <- resp.StatusCode
		}()
		e.eventually("one runs", func() bool { return e.lastRun().State == "active" })
		status, h, body = e.post(chat, asks(40))
		wantRefusal(t, status, h, body, "rate_limit_exceeded", false)
		close(release)
		if status := <-first; status != 200 {
			t.Errorf("the first: %d", status)
		}
		e.idle()
		if status, _, body := e.post(chat, asks(94)); status != 200 {
			t.Errorf("all of the rest: %d %s", status, body)
		}
		e.idle()
		status, h, body = e.post(chat, asks(90))
		wantRefusal(t, status, h, body, "insufficient_quota", true)
	})
}

// TestLimitsAndBooksAgree: whatever becomes of a run, the key's budget is charged what the usage record says, once.
func TestLimitsAndBooksAgree(t *testing.T) {
	const estimate = 100 // of each request
	noUsage := execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone}
	lost := func(phase execution.Phase) handler {
		return func(_ context.Context, run *tunnel.NodeRun) {
			run.Phase(phase)
			run.End(execution.Terminal{Outcome: execution.Failed, Code: execution.CodeProviderError, Phase: phase})
		}
	}
	cutOff := func(input, output int64) handler {
		return func(_ context.Context, run *tunnel.NodeRun) {
			_ = run.Head(head(200, "text/event-stream"))
			_ = run.Write([]byte(chunk("a")), true)
			run.End(execution.Terminal{Outcome: execution.Failed, Code: execution.CodeProviderTruncated, Phase: execution.PhaseStreaming,
				Usage: execution.Usage{Input: input, Output: output, Known: true, Estimated: true}})
		}
	}
	tests := map[string]struct {
		h         handler
		want      int64
		estimated bool
	}{
		"known":                 {uses(30, 20), 50, false},
		"known, above estimate": {uses(300, 200), 500, false},
		"known, nothing":        {uses(0, 0), 0, false},
		"unknown":               {answerJSON(200, `{}`), estimate, true},
		"counted by the Node":   {cutOff(9, 1), 10, true},
		"but for the prompt":    {cutOff(0, 11), 12, true},
		"no answer at all":      {endsWith(noUsage), estimate, true},
		"broke at the provider": {lost(execution.PhaseProviderCalled), estimate, true},
		"broke before it":       {lost(execution.PhaseAdmitted), 0, false},
		"400":                   {answerJSON(400, errorBody("no")), 0, false},
		"429":                   {answer429("1"), 0, false},
		"500":                   {answerJSON(500, `{}`), 0, false},
		"unreachable":           {failedWith(execution.CodeProviderUnreachable, execution.PhaseProviderCalled), 0, false},
		"lease refused":         {failedWith(execution.CodeCredentialRejected, execution.PhaseAdmitted), 0, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEdge(t, nil)
			e.addNode("n1", 4, test.h, "m")
			key, secret, err := e.store.CreateKey(t.Context(), state.KeySpec{Name: "k", MonthlyTokens: 1000})
			if err != nil {
				t.Fatal(err)
			}
			e.key = secret.Reveal()
			e.post(chat, strings.Replace(asks(estimate-1), `{`, `{"stream":true,`, 1))
			e.idle()
			records := e.records()
			if len(records) != 1 {
				t.Fatalf("%d usage records", len(records))
			}
			u := records[0].Usage
			if u.Input+u.Output != test.want || u.Estimated != test.estimated {
				t.Errorf("booked is %+v", u)
			}
			if u.Estimated && test.want == estimate && (u.Input != 1 || u.Output != estimate-1 || !u.Known) {
				t.Errorf("the estimate is booked as %+v", u)
			}
			booked, err := e.store.MonthTokens(t.Context(), key.ID, time.Now())
			if err != nil || booked != test.want {
				t.Errorf("this month: %d, %v", booked, err)
			}
			// The limiter has as much left, to the token.
			status, h, body := e.post(chat, asks(int(1000-test.want)))
			wantRefusal(t, status, h, body, "insufficient_quota", true)
			if status, _, body := e.post(chat, asks(int(1000-test.want-1))); status == 429 && strings.Contains(body, "insufficient_quota") {
				t.Errorf("what is left can't be used: %s", body)
			}
			e.idle()
		})
	}
}

// TestWhatNeverRanCostsNothing: but for the request itself.
func TestWhatNeverRanCostsNothing(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 1, uses(1, 1), "other")
	e.as(e.newKey(state.KeySpec{MonthlyTokens: 1000, RPM: 1000, TPM: 1000, Concurrency: 1}), func() {
		e.eventually("models are known", func() bool {
			status, _, _ := e.post(chat, asks(900))
			return status == 404
		})
		for range 5 {
			status, h, body := e.post(chat, asks(900))
			if status != 404 || h.Get("X-Ratelimit-Remaining-Tokens") == "" {
				t.Fatalf("%d %s %v", status, body, h)
			}
		}
		// A client that leaves the queue.
		n := len(e.records())
		e.operate("POST", "/admin/v1/nodes/n1/drain", "")
		ctx, leave := context.WithCancel(t.Context())
		req := e.request(http.MethodPost, chat, strings.Replace(asks(900), `"m"`, `"other"`, 1)).WithContext(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if resp, err := e.client.Do(req); err == nil {
				resp.Body.Close()
			}
		}()
		e.eventually("it waits", func() bool { return e.lastRun().State == "queued" })
		leave()
		<-done
		e.idle()
		e.operate("POST", "/admin/v1/nodes/n1/resume", "")
		e.eventually("the Node is back", func() bool { return e.nodeState("n1") == "online" })
		status, _, body := e.post(chat, strings.Replace(asks(999), `"m"`, `"other"`, 1))
		if status != 200 {
			t.Errorf("the whole budget: %d %s", status, body)
		}
		e.idle()
		records := e.records()
		if len(records) != n+2 {
			t.Fatalf("%d records, want %d", len(records), n+2)
		}
		for i, r := range records[:n+1] {
			if r.Usage != (execution.Usage{}) {
				t.Errorf("%d: booked is %+v", i, r.Usage)
			}
		}
		if r := records[0]; r.Route != "" || r.Model != "" || r.Outcome != execution.Rejected || r.Status != 404 {
			t.Errorf("of a model that nobody has: %+v", r)
		}
		if r := records[n]; r.Outcome != execution.Cancelled || r.Code != execution.CodeClientGone || r.Queue <= 0 || r.Node != "" || r.Attempts != 0 {
			t.Errorf("of who left the queue: %+v", r)
		}
	})
}

// TestEstimateOfAForm: a recording is not text.
func TestEstimateOfAForm(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 1, answerJSON(200, `{"text":"x"}`), "m")
	form := "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n" +
		strings.Repeat("\x00", 1<<20) + "\r\n--b--\r\n"
	e.as(e.newKey(state.KeySpec{MonthlyTokens: 10_000}), func() {
		req := e.request(http.MethodPost, "/v1/audio/transcriptions", form)
		req.Header.Set("Content-Type", "multipart/form-data; boundary=b")
		resp := e.do(req)
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
	})
	e.idle()
	if u := e.records()[0].Usage; u.Input < 100 || u.Input > 5000 || u.Output != 0 || !u.Estimated {
		t.Errorf("booked is %+v", u)
	}
}

func smallBudget(c *gateway.Config) { c.MaxBodyBytes, c.BodyBudget = 1<<20, 4<<20 }

// TestBodyBudgetIsShared: the keys of one owner have one share; beside it there is room for who holds little.
func TestBodyBudgetIsShared(t *testing.T) {
	e := newEdge(t, func(c *gateway.Config) { smallBudget(c); c.QueueTimeout = 50 * time.Millisecond })
	codes := make(chan execution.Code, 8)
	started := make(chan struct{}, 8)
	e.addNode("n1", 8, waiting(codes, func(*tunnel.NodeRun) { started <- struct{}{} }), "m")
	body := `{"model":"m","x":"` + strings.Repeat("x", 900_000) + `"}`
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan struct{}, 4)
	upload := func(key string) {
		e.as(key, func() {
			req := e.request(http.MethodPost, chat, body).WithContext(ctx)
			go func() {
				if resp, err := e.client.Do(req); err == nil {
					resp.Body.Close()
				}
				done <- struct{}{}
			}()
		})
		<-started
	}
	a, b := e.newKey(state.KeySpec{Owner: "team"}), e.newKey(state.KeySpec{Owner: "team"})
	upload(a)
	upload(b)
	upload(a)
	e.as(b, func() {
		if status, _, answer := e.post(chat, body); status != 503 {
			t.Errorf("the team's fourth: %d %s", status, answer)
		}
	})
	upload(e.newKey(state.KeySpec{Owner: "other"}))
	leave()
	for range 4 {
		<-done
	}
	e.idle()
}

// TestNoSecondBody: a body that must be changed on its way (the model's name, the usage asked for, a route's parameters)
// needs no room beside itself, and arrives as it should.
func TestNoSecondBody(t *testing.T) {
	path := filepath.Join(t.TempDir(), "iop.yaml")
	writeRoutes(t, path, "routes:\n  - model: chat\n    parameters: {defaults: {temperature: 0.5}}\n    groups:\n      - targets: [{node: n1, model: real}]\n")
	e := newEdge(t, func(c *gateway.Config) { c.Config, c.MaxBodyBytes, c.BodyBudget = path, 1<<20, 1<<20 })
	text := strings.Repeat("x", 1_000_000)
	got := make(chan string, 1)
	e.addNode("n1", 1, func(_ context.Context, run *tunnel.NodeRun) {
		body, _ := io.ReadAll(run)
		got <- string(body)
		_ = run.Head(head(200, "text/event-stream"))
		_ = run.Write([]byte(chunk("x")+doneEvent), true)
		run.End(execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone})
	}, "real")
	for range 3 {
		if status, _, answer := e.post(chat, `{"stream":true,"messages":"`+text+`","model":"chat"}`); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
		want := `{"stream_options":{"include_usage":true},"temperature":0.5,"stream":true,"messages":"` + text + `","model":"real"}`
		if body := <-got; body != want {
			t.Errorf("the Node got %d bytes, %.100s ... %s", len(body), body, body[max(0, len(body)-100):])
		}
	}
	e.idle()
}

// TestGreatestEstimate: a client's absurd number is booked as what the limits take it for.
func TestGreatestEstimate(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 1, answerJSON(200, `{}`), "m")
	e.as(e.newKey(state.KeySpec{MonthlyTokens: state.MaxRunTokens}), func() {
		if status, _, body := e.post(chat, `{"model":"m","messages":[],"max_tokens":9000000000000000000,"n":1000}`); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
		e.idle()
		if u := e.records()[0].Usage; u.Input != 1 || u.Output != state.MaxRunTokens-1 {
			t.Errorf("booked is %+v", u)
		}
	})
}

// TestEstimateLearns: without a bound an answer is thought to be as long as the route's answers are; each choice counts.
func TestEstimateLearns(t *testing.T) {
	e := newEdge(t, nil)
	n := 0
	e.addNode("n1", 1, func(ctx context.Context, run *tunnel.NodeRun) {
		if n++; n == 1 {
			run.End(execution.Terminal{Outcome: execution.Failed, Code: execution.CodeProviderTruncated, Phase: execution.PhaseStreaming,
				Usage: execution.Usage{Input: 1, Output: 1, Known: true, Estimated: true}})
			return
		}
		uses(1, 10)(ctx, run)
	}, "m")
	own := e.key
	e.as(e.newKey(state.KeySpec{MonthlyTokens: 100}), func() {
		ask := func(more string) (int, http.Header, string) {
			return e.post(chat, `{"model":"m","messages":[]`+more+`}`)
		}
		for range 2 { // nothing is known, and what broke teaches nothing
			status, h, body := ask("")
			wantRefusal(t, status, h, body, "insufficient_quota", true)
			e.as(own, func() { ask("") })
			e.idle()
		}
		status, h, body := ask(`,"n":10`)
		wantRefusal(t, status, h, body, "insufficient_quota", true)
		if status, _, body := ask(`,"n":9`); status != 200 {
			t.Errorf("nine choices of ten tokens: %d %s", status, body)
		}
		e.idle()
		if status, _, body := ask(""); status != 200 {
			t.Errorf("%d %s", status, body)
		}
	})
	e.idle()
}

// TestRefusedRequestsCount: what a key sends counts against its requests a minute before its body is read, also what the
// client got wrong; a flood of malformed bodies is refused like any other.
func TestRefusedRequestsCount(t *testing.T) {
	e := newEdge(t, func(c *gateway.Config) { c.MaxBodyBytes, c.EdgeID = 1<<20, "edge-7" })
	e.addNode("n1", 4, uses(1, 1), "m")
	for name, test := range map[string]struct {
		body   string
		header http.Header
		status int
	}{
		"malformed JSON":            {body: `{"model":"m",`, status: 400},
		"no body":                   {status: 400},
		"no model":                  {body: `{}`, status: 400},
		"a model of the wrong type": {body: `{"model":1}`, status: 400},
		"another model":             {body: `{"model":"other"}`, status: 403},
		"a form":                    {body: "--b--", header: http.Header{"Content-Type": {"multipart/form-data; boundary=b"}}, status: 415},
		"a compressed body":         {body: `{"model":"m"}`, header: http.Header{"Content-Encoding": {"gzip"}}, status: 415},
		"too large a body":          {body: strings.Repeat(" ", 1<<20+1), status: 413},
		"a loop":                    {body: `{"model":"m"}`, header: http.Header{"Via": {e.server.Via()}}, status: 400},
	} {
		t.Run(name, func(t *testing.T) {
			e.as(e.newKey(state.KeySpec{RPM: 2, Routes: []string{"m"}}), func() {
				for n, want := range []int{test.status, test.status, 429} {
					req := e.request(http.MethodPost, chat, test.body)
					for h, v := range test.header {
						req.Header[h] = v
					}
					resp := e.do(req)
					body, _ := io.ReadAll(resp.Body)
					resp.Body.Close()
					if resp.StatusCode != want {
						t.Fatalf("request %d: %d %s, want %d", n, resp.StatusCode, body, want)
					}
					if got := resp.Header.Get("X-Ratelimit-Remaining-Requests"); got != []string{"1", "0", "0"}[n] {
						t.Errorf("request %d: %q requests remain", n, got)
					}
					if want == 429 {
						wantRefusal(t, resp.StatusCode, resp.Header, string(body), "rate_limit_exceeded", false)
					}
				}
			})
		})
	}
	e.idle()
}

// TestRefusalsThatDoNotCount: what the client could not help takes nothing from its requests a minute.
func TestRefusalsThatDoNotCount(t *testing.T) {
	e := newEdge(t, func(c *gateway.Config) { c.MaxBodyBytes, c.BodyBudget = 1<<20, 1<<20 })
	codes, started := make(chan execution.Code, 1), make(chan struct{}, 1)
	e.addNode("n1", 4, waiting(codes, func(*tunnel.NodeRun) { started <- struct{}{} }), "m")
	ctx, leave := context.WithCancel(t.Context())
	e.as(e.newKey(state.KeySpec{RPM: 10, Concurrency: 1, TPM: 1000, MonthlyTokens: 2000}), func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			if resp, err := e.client.Do(e.request(http.MethodPost, chat, asks(9)).WithContext(ctx)); err == nil {
				resp.Body.Close()
			}
		}()
		<-started
		for _, body := range []string{asks(9), asks(5000)} { // by runs at once, by the month's budget
			for range 12 {
				status, h, answer := e.post(chat, body)
				if got := h.Get("X-Ratelimit-Remaining-Requests"); status != 429 || got != "9" {
					t.Fatalf("%d %s, %q remain", status, answer, got)
				}
			}
		}
		leave()
		<-done
	})
	e.idle()
}
