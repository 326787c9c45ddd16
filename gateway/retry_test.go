package gateway_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"iop/execution"
	"iop/gateway"
	"iop/tunnel"
)

const chat = "/v1/chat/completions"

// counted counts the runs that a provider got.
func counted(n *atomic.Int64, h handler) handler {
	return func(ctx context.Context, run *tunnel.NodeRun) {
		n.Add(1)
		h(ctx, run)
	}
}

// endsWith is a provider of which nothing comes but an end.
func endsWith(t execution.Terminal) handler {
	return func(_ context.Context, run *tunnel.NodeRun) { run.End(t) }
}

func failedWith(code execution.Code, phase execution.Phase) handler {
	return endsWith(execution.Terminal{Outcome: execution.Failed, Code: code, Phase: phase})
}

// twoNodes connects a Node that is picked first, and a good one. With nothing running both are equally busy; the one
// picked longest ago is next.
func twoNodes(e *edge, bad handler) (badRuns, goodRuns *atomic.Int64) {
	badRuns, goodRuns = new(atomic.Int64), new(atomic.Int64)
	e.addNode("bad", 4, counted(badRuns, bad), "m")
	e.addNode("good", 4, counted(goodRuns, answerJSON(200, `{"good":true}`)), "m")
	return badRuns, goodRuns
}

func TestSecondTargetMendsWhatItMay(t *testing.T) {
	tests := map[string]handler{
		"429":         answerJSON(429, `{"error":{"message":"slow down"}}`),
		"502":         answerJSON(502, `bad gateway`),
		"503":         answerJSON(503, `{"error":"loading"}`),
		"504":         answerJSON(504, ``),
		"unreachable": failedWith(execution.CodeProviderUnreachable, execution.PhaseProviderCalled),
		"unknown there": endsWith(execution.Terminal{
			Outcome: execution.Rejected, Code: execution.CodeUnknownProvider, Phase: execution.PhaseDispatched}),
		"full there": endsWith(execution.Terminal{
			Outcome: execution.Rejected, Code: execution.CodeCapacity, Phase: execution.PhaseDispatched}),
		"draining there": endsWith(execution.Terminal{
			Outcome: execution.Rejected, Code: execution.CodeDraining, Phase: execution.PhaseDispatched}),
	}
	for name, bad := range tests {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, nil)
			badRuns, _ := twoNodes(e, bad)
			for range 4 {
				status, _, body := e.post(chat, `{"model":"m"}`)
				if status != 200 || body != `{"good":true}` {
					t.Fatalf("got %d %s", status, body)
				}
			}
			if badRuns.Load() == 0 {
				t.Error("the test proves nothing: the bad Node was never asked")
			}
			e.idle()
		})
	}
}

func TestWhatASecondTargetMustNotSee(t *testing.T) {
	tests := map[string]struct {
		bad    handler
		status int
		code   string
	}{
		"400":           {answerJSON(400, errorBody("bad")), 400, "c"},
		"500":           {answerJSON(500, `{"error":"boom"}`), 502, "provider_error"},
		"401":           {answerJSON(401, `{"error":{"message":"key sk-operator is bad"}}`), 502, "provider_error"},
		"redirect":      {failedWith(execution.CodeProviderRedirect, execution.PhaseProviderCalled), 502, "provider_error"},
		"broke":         {failedWith(execution.CodeProviderError, execution.PhaseProviderCalled), 502, "provider_error"},
		"timeout":       {failedWith(execution.CodeProviderTimeout, execution.PhaseProviderCalled), 504, "provider_timeout"},
		"lease refused": {failedWith(execution.CodeCredentialRejected, execution.PhaseAdmitted), 502, "credential_rejected"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, nil)
			badRuns, _ := twoNodes(e, test.bad)
			for {
				status, h, body := e.post(chat, `{"model":"m"}`)
				if status == 200 {
					continue // the good Node's turn
				}
				if code, message := errorOf(t, body); status != test.status || code != test.code || strings.Contains(message, "sk-operator") {
					t.Errorf("got %d %s", status, body)
				}
				if (test.code == "credential_rejected" || name == "401") && h.Get("X-Should-Retry") != "false" {
					t.Error("clients would try again")
				}
				break
			}
			if badRuns.Load() != 1 {
				t.Errorf("the bad Node was asked %d times", badRuns.Load())
			}
			e.idle()
		})
	}
}

func errorBody(message string) string {
	return fmt.Sprintf(`{"error":{"message":%q,"type":"t","param":null,"code":"c"}}`, message)
}

func TestTheOnlyTargetsAnswerPasses(t *testing.T) {
	tests := map[string]struct {
		answer     handler
		status     int
		code       string
		retryAfter string
	}{
		"429":                  {answer429("7"), 429, "c", "7"},
		"429, wait too long":   {answer429("3600"), 429, "c", "60"},
		"503":                  {answerJSON(503, errorBody("loading")), 503, "overloaded", ""},
		"unreachable":          {failedWith(execution.CodeProviderUnreachable, execution.PhaseProviderCalled), 502, "provider_error", ""},
		"404":                  {answerJSON(404, errorBody("no such")), 404, "c", ""},
		"422 of FastAPI":       {answerJSON(422, `{"detail":[{"loc":["body","n"],"msg":"too small","type":"x"}]}`), 422, "invalid_request_error", ""},
		"first event, 400":     {firstEvent(`{"error":{"code":400,"message":"context too long","type":"exceed_context_size_error"}}`), 400, "invalid_request_error", ""},
		"first event, unknown": {firstEvent(`{"error":"boom"}`), 502, "provider_error", ""},
		"completed, no head":   {endsWith(execution.Terminal{Outcome: execution.Completed}), 502, "provider_error", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, nil)
			runs := new(atomic.Int64)
			e.addNode("n1", 4, counted(runs, test.answer), "m")
			status, h, body := e.post(chat, `{"model":"m","stream":true}`)
			if code, _ := errorOf(t, body); status != test.status || code != test.code {
				t.Errorf("got %d %s", status, body)
			}
			if got := h.Get("Retry-After"); got != test.retryAfter {
				t.Errorf("Retry-After %q", got)
			}
			if runs.Load() != 1 {
				t.Errorf("asked %d times", runs.Load())
			}
			e.idle()
		})
	}
}

func answer429(after string) handler {
	return func(_ context.Context, run *tunnel.NodeRun) {
		_ = run.Head(head(429, "application/json", "retry-after", after))
		_ = run.Write([]byte(errorBody("slow down")), false)
		run.End(execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone})
	}
}

func firstEvent(body string) handler {
	return func(_ context.Context, run *tunnel.NodeRun) {
		_ = run.Head(head(502, "application/json", "x-iop-first-event-error", "1"))
		_ = run.Write([]byte(body), false)
		run.End(execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone})
	}
}

// A Node that always says that it is full costs a bounded number of tries.
func TestAlwaysFullEndsOverloaded(t *testing.T) {
	runs := new(atomic.Int64)
	full := counted(runs, endsWith(execution.Terminal{Outcome: execution.Rejected, Code: execution.CodeCapacity}))
	timed(t, nil, full, func(ask asker) { // as the backoffs take 13 s
		resp, err := ask.text(`{"model":"m"}`)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if code, _ := errorOf(t, string(body)); resp.StatusCode != 503 || code != "overloaded" || resp.Header.Get("Retry-After") == "" {
			t.Errorf("got %d %s", resp.StatusCode, body)
		}
		if n := runs.Load(); n != 8 {
			t.Errorf("asked %d times", n)
		}
	})
}

func TestUsageIsAskedForAndWithheld(t *testing.T) {
	tests := map[string]struct {
		body     string
		asked    bool
		withheld bool
	}{
		"not asked":       {`{"model":"m","stream":true}`, true, true},
		"asked":           {`{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, true, false},
		"asked not to":    {`{"model":"m","stream":true,"stream_options":{"include_usage":false}}`, true, true},
		"not a stream":    {`{"model":"m"}`, false, false},
		"other operation": {`{"model":"m","stream":true}`, false, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, nil)
			var body atomic.Value
			var withheld atomic.Bool
			e.addNode("n1", 4, func(ctx context.Context, run *tunnel.NodeRun) {
				got, _ := run.Body()
				body.Store(string(got))
				withheld.Store(run.Open().GetProviderTunnel().WithholdUsage)
				answerSSE(chunk("x"), doneEvent)(ctx, run)
			}, "m")
			path := chat
			if name == "other operation" {
				path = "/v1/responses"
			}
			e.post(path, test.body)
			if got := strings.Contains(body.Load().(string), `"include_usage":true`); got != test.asked {
				t.Errorf("the provider got %s", body.Load())
			}
			if withheld.Load() != test.withheld {
				t.Errorf("withheld: %v", withheld.Load())
			}
			e.idle()
		})
	}
}

// A provider that refuses stream_options is asked without them, and from then on at once.
func TestProviderWithoutStreamOptions(t *testing.T) {
	e := newEdge(t, nil)
	runs := new(atomic.Int64)
	e.addNode("n1", 4, counted(runs, func(ctx context.Context, run *tunnel.NodeRun) {
		body, _ := run.Body()
		if strings.Contains(string(body), "stream_options") {
			answerJSON(400, errorBody("Unrecognized request argument: stream_options"))(ctx, run)
			return
		}
		answerSSE(chunk("x"), doneEvent)(ctx, run)
	}), "m")
	for want := int64(2); want <= 3; want++ {
		if status, _, body := e.post(chat, `{"model":"m","stream":true}`); status != 200 || body != chunk("x")+doneEvent {
			t.Fatalf("got %d %s", status, body)
		}
		if runs.Load() != want {
			t.Errorf("asked %d times, want %d", runs.Load(), want)
		}
	}
	// A client that sends them itself gets the provider's own answer.
	status, _, body := e.post(chat, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`)
	if status != 400 || !strings.Contains(body, "Unrecognized") {
		t.Errorf("got %d %s", status, body)
	}
	e.idle()
}

// A client can make any provider repeat the words stream_options in a refusal. It must not cost the others their usage.
func TestRefusalThatOnlyNamesStreamOptions(t *testing.T) {
	for name, kind := range map[string]string{"raw": "", "normalized": "openai"} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, nil)
			var asked atomic.Int64 // for usage
			const told = "temperature: stream_options is no number"
			if kind == "" {
				e.addNode("n1", 4, func(ctx context.Context, run *tunnel.NodeRun) {
					body, _ := run.Body()
					if strings.Contains(string(body), "include_usage") {
						asked.Add(1)
					}
					if strings.Contains(string(body), "temperature") {
						answerJSON(400, errorBody(told))(ctx, run)
						return
					}
					answerSSE(chunk("x"), doneEvent)(ctx, run)
				}, "m")
			} else {
				e.addProvider("n1", runsOn(kind), func(ctx context.Context, run *tunnel.NodeRun) {
					if !run.Open().GetRun().GetWithoutUsage() {
						asked.Add(1)
					}
					if body, _ := run.Body(); strings.Contains(string(body), "hostile") {
						answerEvents(failed(execution.CodeProviderError, execution.PhaseProviderCalled),
							failure(execution.Failure{Status: 400, Message: told}))(ctx, run)
						return
					}
					answerEvents(completed, started, hello, world, stop)(ctx, run)
				}, "m")
			}
			path := map[string]string{"": chat, "openai": "/v1/messages"}[kind]
			hostile := `{"model":"m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"hostile"}],"temperature":"stream_options"}`
			honest := `{"model":"m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`
			if kind != "" {
				hostile = strings.Replace(hostile, `"stream_options"`, `0.5`, 1)
			}
			if status, _, body := e.post(path, hostile); status != 400 {
				t.Fatalf("got %d %s", status, body)
			}
			asked.Store(0)
			if status, _, body := e.post(path, honest); status != 200 || asked.Load() != 1 {
				t.Errorf("got %d %s; asked for usage %d times", status, body, asked.Load())
			}
			e.idle()
		})
	}
}

// Where the provider fetches what the request names, whose server it is decides about a refusal, its words, and whether the same
// request is refused again. It must not cost the others their usage, nor the request its own.
func TestRefusalInTheClientsWords(t *testing.T) {
	content := func(part string) string { return `[{"type":"text","text":"x"},` + part + `]` }
	for name, c := range map[string]struct{ path, hostile string }{
		"image":            {chat, content(`{"type":"image_url","image_url":{"url":"https://evil.example/1.png"}}`)},
		"no slashes":       {chat, content(`{"type":"image_url","image_url":{"url":"https:evil.example"}}`)},
		"file":             {chat, content(`{"type":"file","file":{"file_id":"file-1"}}`)},
		"words":            {chat, `"stream_options"`},
		"an escape":        {chat, `"stream\u005foptions"`},
		"search":           {chat, `"x"}],"tools":[{"type":"web_search"}],"stop":[{"x":"x"`},
		"translated":       {"/v1/messages", content(`{"type":"image","source":{"type":"url","url":"https://evil.example/1.png"}}`)},
		"translated words": {"/v1/messages", `"\u0073tream_options"`},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, nil)
			var asked, plain atomic.Int64
			const told = "404, message='stream_options', url='https://evil.example/1.png'"
			serve := func(ctx context.Context, run *tunnel.NodeRun) {
				body, _ := run.Body()
				wants, refuses := bytes.Contains(body, []byte("include_usage")), answerJSON(400, errorBody(told))
				takes := answerSSE(chunk("x"), doneEvent)
				if c.path != chat {
					wants = !run.Open().GetRun().GetWithoutUsage()
					refuses = answerEvents(failed(execution.CodeProviderError, execution.PhaseProviderCalled), failure(execution.Failure{Status: 400, Message: told}))
					takes = answerEvents(completed, started, hello, world, stop)
				}
				switch {
				case !wants:
					plain.Add(1)
					takes(ctx, run)
				case asked.Add(1) == 1:
					refuses(ctx, run)
				default:
					takes(ctx, run)
				}
			}
			if c.path == chat {
				e.addNode("n1", 4, serve, "m")
			} else {
				e.addProvider("n1", runsOn("openai"), serve, "m")
			}
			for i, content := range []string{c.hostile, `"hi"`, `"gr\u00fc\u00df"`} {
				status, _, body := e.post(c.path, `{"model":"m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":`+content+`}]}`)
				if i > 0 && status != 200 {
					t.Errorf("got %d %s", status, body)
				}
			}
			if plain.Load() > 0 {
				t.Errorf("%d of the requests did not ask for usage, and %d did", plain.Load(), asked.Load())
			}
			e.idle()
		})
	}
}

// What a client may not send does not reach a Node.
func TestForwardedHeaders(t *testing.T) {
	e := newEdge(t, func(c *gateway.Config) { c.EdgeID = "edge-7" })
	got := make(chan map[string]string, 1)
	e.addNode("n1", 4, func(ctx context.Context, run *tunnel.NodeRun) {
		h := map[string]string{}
		for _, f := range run.Open().GetProviderTunnel().Headers {
			h[f.Name] = f.Value
		}
		got <- h
		answerJSON(200, `{}`)(ctx, run)
	}, "m")
	req := e.request(http.MethodPost, chat, `{"model":"m"}`)
	for name, value := range map[string]string{
		"Cookie": "a=b", "X-Forwarded-For": "1.2.3.4", "X-Iop-Run": "run_1", "X-Api-Key": "k", "Forwarded": "for=x", "Via": "1.1 proxy.example.org",
		"Openai-Beta": "assistants=v2", "Connection": "X-Tenant", "X-Tenant": "t", "User-Agent": "sdk/1", "Accept": "application/json",
	} {
		req.Header.Set(name, value)
	}
	e.do(req).Body.Close()
	want := map[string]string{
		"content-type": "application/json", "accept": "application/json", "user-agent": "sdk/1",
		"openai-beta": "assistants=v2", "via": e.server.Via(),
	}
	if h := <-got; fmt.Sprint(h) != fmt.Sprint(want) {
		t.Errorf("the Node got %v", h)
	}
	e.idle()
}

// Of a provider's response headers only the known ones reach a client.
func TestResponseHeaders(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 4, func(_ context.Context, run *tunnel.NodeRun) {
		_ = run.Head(head(200, "application/json", "set-cookie", "a=b", "server", "engine", "authorization", "Bearer x",
			"x-request-id", "provider-1", "content-disposition", "inline"))
		_ = run.Write([]byte(`{}`), false)
		run.End(execution.Terminal{Outcome: execution.Completed})
	}, "m")
	_, h, _ := e.post(chat, `{"model":"m"}`)
	if h.Get("Set-Cookie")+h.Get("Server")+h.Get("Authorization") != "" {
		t.Errorf("headers leaked: %v", h)
	}
	if h.Get("X-Iop-Provider-Request-Id") != "provider-1" || h.Get("Content-Disposition") != "inline" || h.Get("X-Request-Id") == "provider-1" {
		t.Errorf("headers: %v", h)
	}
	e.idle()
}
