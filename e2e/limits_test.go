package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// keyState is an API key as the operator sees it.
type keyState struct {
	ID, Key, Name, Owner, Principal string
	Routes                          []string
	RPM, TPM, Concurrency           int64
	MonthlyTokens                   int64 `json:"monthly_tokens"`
	Weight, Priority                int
	Expires, Revoked                *time.Time
	Use                             *struct {
		Running          int
		Requests, Tokens *struct{ Limit, Remaining int64 }
		MonthTokens      int64 `json:"month_tokens"`
	}
}

// limitedKey makes a key through the command line, and returns it with its secret.
func (s *stack) limitedKey(name string, args ...string) (made keyState) {
	s.t.Helper()
	s.json(&made, append([]string{"key", "create", "--json", "--name", name}, args...)...)
	if made.ID == "" || made.Key == "" {
		s.t.Fatalf("key create gave %+v", made)
	}
	return made
}

// showKey asks for a key as it is now.
func (s *stack) showKey(id string) (k keyState) {
	s.t.Helper()
	s.json(&k, "key", "show", id, "--json")
	return k
}

// with is the stack to a caller with another key.
func (s *stack) with(key string) *stack {
	c := *s
	c.key = key
	return &c
}

// chatOf is a request for at most n tokens, which the simulator takes for its order.
func chatOf(n int, knobs string, stream bool) map[string]any {
	c := chat("sim-small", knobs, stream)
	c["max_tokens"] = n
	return c
}

// limitRefusal is an answer that refuses a request because of a limit.
type limitRefusal struct {
	message, code string
	wait          int // Retry-After, in seconds
	header        http.Header
}

// overLimit sends a request that must be refused.
func (s *stack) overLimit(t *testing.T, body any) (r limitRefusal) {
	t.Helper()
	res, data := s.post("/v1/chat/completions", body)
	var e errorObject
	if err := json.Unmarshal(data, &e); err != nil || e.Error == nil || res.StatusCode != http.StatusTooManyRequests || e.Error.Type != "rate_limit_error" {
		t.Fatalf("no refusal: %s %s (%v)", res.Status, data, err)
	}
	wait, err := strconv.Atoi(res.Header.Get("Retry-After"))
	if code, _ := e.Error.Code.(string); code != "insufficient_quota" && (err != nil || wait < 1 || wait > 60) {
		t.Errorf("Retry-After %q", res.Header.Get("Retry-After"))
	}
	code, _ := e.Error.Code.(string)
	return limitRefusal{e.Error.Message, code, wait, res.Header}
}

// served sends a request that must be served, and returns the head of its answer.
func (s *stack) served(t *testing.T, body any) http.Header {
	t.Helper()
	res, data := s.post("/v1/chat/completions", body)
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", res.Status, data)
	}
	return res.Header
}

// remaining reads what a header says is left.
func remaining(t *testing.T, h http.Header, of string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(h.Get("X-Ratelimit-Remaining-"+of), 10, 64)
	if err != nil {
		t.Fatalf("%v in %v", err, h)
	}
	return n
}

// TestKeyAsMade: what the flags say is what the operator is shown.
func TestKeyAsMade(t *testing.T) {
	t.Parallel()
	s := newEdge(t)
	made := s.limitedKey("all of them", "--owner", "team-a", "--routes", "sim-*,llama*", "--rpm", "3", "--tpm", "4000", "--concurrency", "2",
		"--monthly-tokens", "500000", "--weight", "7", "--priority", "-3", "--expires", "30d")
	check := func(what string, k keyState) {
		t.Helper()
		if k.Name != "all of them" || k.Owner != "team-a" || k.Principal != "team-a" || !slices.Equal(k.Routes, []string{"sim-*", "llama*"}) || k.RPM != 3 ||
			k.TPM != 4000 || k.Concurrency != 2 || k.MonthlyTokens != 500000 || k.Weight != 7 || k.Priority != -3 || k.Expires == nil || time.Until(*k.Expires) < 29*24*time.Hour {
			t.Errorf("%s: %+v", what, k)
		}
	}
	check("create", made)
	shown := s.showKey(made.ID)
	check("show", shown)
	if u := shown.Use; u == nil || u.Running != 0 || u.Requests == nil || u.Requests.Remaining != 3 || u.Tokens == nil || u.Tokens.Remaining != 4000 {
		t.Errorf("an unused key has %+v", u)
	}
	var list struct{ Data []keyState }
	s.json(&list, "key", "list", "--json")
	i := slices.IndexFunc(list.Data, func(k keyState) bool { return k.ID == made.ID })
	if i < 0 {
		t.Fatalf("it is not listed: %+v", list)
	}
	check("list", list.Data[i])
	text := iop(t, s.env, "key", "list")
	for _, want := range []string{"all of them", "team-a"} {
		if !strings.Contains(text, want) {
			t.Errorf("the list for people has no %q: %s", want, text)
		}
	}
	for _, args := range [][]string{{"--rpm", "-1"}, {"--tpm", "x"}, {"--weight", "0"}, {"--priority", "101"}, {"--expires", "-1h"}, {"--concurrency", "99999999999999"}} {
		if out, stderr, err := tryIOP(t, s.env, append([]string{"key", "update", made.ID}, args...)...); err == nil || stderr == "" {
			t.Errorf("update %v: %v, %s", args, err, out+stderr)
		}
	}
	check("after changes that were refused", s.showKey(made.ID))
	if _, _, err := tryIOP(t, s.env, "key", "update", "nobody00", "--rpm", "1"); err == nil {
		t.Error("a key that is none was changed")
	}
}

// TestKeyRequestsPerMinute: the answers count down, the refusal says when it frees, a change counts at once.
func TestKeyRequestsPerMinute(t *testing.T) {
	t.Parallel()
	all := newStack(t, stackConfig{})
	key := all.limitedKey("three a minute", "--rpm", "3")
	s := all.with(key.Key)
	began := time.Now()
	for left := int64(2); left >= 0; left-- {
		h := s.served(t, chat("sim-small", "tokens=2", left == 1))
		if h.Get("X-Ratelimit-Limit-Requests") != "3" || remaining(t, h, "Requests") != left || h.Get("X-Ratelimit-Reset-Requests") == "" || h.Get("X-Ratelimit-Limit-Tokens") != "" {
			t.Errorf("with %d left: %v", left, h)
		}
	}
	started := s.sims[0].stats(t).Started
	over := s.overLimit(t, chat("sim-small", "", true))
	if over.code != "rate_limit_exceeded" || over.wait < 19-int(time.Since(began).Seconds()) || over.wait > 20 || !strings.Contains(over.message, "3 requests per minute") || !strings.Contains(over.message, "Try again in ") ||
		remaining(t, over.header, "Requests") != 0 || over.header.Get("X-Ratelimit-Limit-Requests") != "3" || over.header.Get("X-Should-Retry") == "false" {
		t.Errorf("refused with %+v", over)
	}
	if n := s.sims[0].stats(t).Started; n != started {
		t.Error("the provider saw the request that was refused")
	}
	if k := s.showKey(key.ID); k.Use == nil || k.Use.Requests == nil || k.Use.Requests.Remaining != 0 {
		t.Errorf("the operator is told %+v", k.Use)
	}
	if code := all.served(t, chat("sim-small", "", false)).Get("X-Ratelimit-Limit-Requests"); code != "" {
		t.Errorf("a key without limits is told of %s", code)
	}

	iop(t, s.env, "key", "update", key.ID, "--rpm", "60")
	if over := s.overLimit(t, chat("sim-small", "", false)); over.wait > 1 || !strings.Contains(over.message, "60 requests per minute") {
		t.Errorf("after the change: %+v", over)
	}
	iop(t, s.env, "key", "update", key.ID, "--rpm", "0")
	for range 10 {
		if h := s.served(t, chat("sim-small", "", false)); h.Get("X-Ratelimit-Limit-Requests") != "" {
			t.Errorf("without a limit: %v", h)
		}
	}
	s.quiet()
}

// TestKeyTokensPerMinute: an estimate is held while a run is under way, and what was not used comes back.
func TestKeyTokensPerMinute(t *testing.T) {
	t.Parallel()
	all := newStack(t, stackConfig{simArgs: []string{"--slots", "8"}})
	key := all.limitedKey("thousand", "--tpm", "1000")
	s := all.with(key.Key)
	h := s.served(t, chatOf(900, "tokens=5", false))
	if n := remaining(t, h, "Tokens"); h.Get("X-Ratelimit-Limit-Tokens") != "1000" || n > 120 {
		t.Errorf("while it runs %d are left: %v", n, h)
	}
	// The answer is here before the Edge's books are closed.
	back := func(least int64) func() bool {
		return func() bool { return s.showKey(key.ID).Use.Tokens.Remaining >= least }
	}
	eventually(t, patience, "what was not used is back", back(900))

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	began := time.Now()
	a := s.ask(ctx, http.DefaultClient, "/v1/chat/completions", chatOf(900, "tokens=800,itl=20ms", true))
	a.reaches(t, 3, patience)
	over := s.overLimit(t, chatOf(900, "", false))
	most := 120 + int64(time.Since(began)*1000/time.Minute) // with what has come back meanwhile
	if over.code != "rate_limit_exceeded" || !strings.Contains(over.message, "1000 tokens per minute") || remaining(t, over.header, "Tokens") > most || over.header.Get("X-Ratelimit-Reset-Tokens") == "" {
		t.Errorf("refused with %+v", over)
	}
	cancel()
	a.end(t, patience)
	eventually(t, patience, "a stream that was left gives back the rest", back(850))

	// Who uses more than was estimated owes it.
	iop(t, s.env, "key", "update", key.ID, "--tpm", "600")
	s.served(t, chat("sim-small", "tokens=2000", false))
	s.quiet()
	over = s.overLimit(t, chatOf(1, "", false))
	if over.wait < 30 || remaining(t, over.header, "Tokens") != 0 {
		t.Errorf("with a debt: %+v", over)
	}
}

// TestKeyConcurrency: never one more than the limit, not even of a crowd.
func TestKeyConcurrency(t *testing.T) {
	t.Parallel()
	all := newStack(t, stackConfig{simArgs: []string{"--slots", "64"}})
	key := all.limitedKey("two at once", "--concurrency", "2")
	s := all.with(key.Key)
	first, second := newCaller(t, "FIN"), newCaller(t, "RST")
	s.ask(first, first.Client, "/v1/chat/completions", chat("sim-small", "ttft=60s", false))
	s.ask(second, second.Client, "/v1/chat/completions", chat("sim-small", "tokens=10000,itl=20ms", true))
	s.sims[0].active(t, 2)
	for range 3 {
		over := s.overLimit(t, chat("sim-small", "", false))
		if over.code != "rate_limit_exceeded" || !strings.Contains(over.message, "2 concurrent requests") {
			t.Errorf("refused with %+v", over)
		}
	}
	if k := s.showKey(key.ID); k.Use == nil || k.Use.Running != 2 {
		t.Errorf("the operator is told %+v", k.Use)
	}
	all.served(t, chat("sim-small", "", false)) // others don't feel it
	for _, c := range []*caller{first, second} {
		c.leave()
		eventually(t, patience, "a place is free", func() bool {
			res, _ := s.post("/v1/chat/completions", chat("sim-small", "tokens=1", false))
			return res.StatusCode == http.StatusOK
		})
	}
	s.quiet()

	s.sims[0].control(t, "POST", "/sim/reset", nil, nil)
	var mu sync.Mutex
	count := map[int]int{}
	var crowd sync.WaitGroup
	for i := range 60 {
		crowd.Go(func() {
			a := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "ttft=20ms,tokens=3", i%2 == 0))
			<-a.done
			mu.Lock()
			defer mu.Unlock()
			count[a.status]++
		})
	}
	crowd.Wait()
	s.quiet()
	var st struct{ Finished, Peak int }
	s.sims[0].control(t, "GET", "/sim/stats", nil, &st)
	t.Logf("answers %v, %+v", count, st)
	if st.Peak != 2 || count[http.StatusOK] != st.Finished || count[http.StatusOK]+count[http.StatusTooManyRequests] != 60 {
		t.Errorf("answers %v, the provider had %+v", count, st)
	}
}

// TestKeyBudget uses a month's budget up; restarting does not bring it back, but a request per minute it does.
func TestKeyBudget(t *testing.T) {
	t.Parallel()
	all := newStack(t, stackConfig{})
	key := all.limitedKey("hundred", "--monthly-tokens", "100", "--rpm", "20")
	s := all.with(key.Key)
	n, began := int64(0), time.Now()
	for {
		res, data := s.post("/v1/chat/completions", chatOf(20, "tokens=20", false))
		if res.StatusCode != http.StatusOK {
			break
		}
		var answer struct {
			Usage struct {
				Total int64 `json:"total_tokens"`
			}
		}
		if err := json.Unmarshal(data, &answer); err != nil || answer.Usage.Total < 20 {
			t.Fatalf("%s: %v", data, err)
		}
		if n += answer.Usage.Total; n > 100 {
			t.Fatalf("%d tokens were used of 100", n)
		}
		s.quiet() // what runs holds its estimate
	}
	if n < 60 {
		t.Errorf("refused after %d tokens", n)
	}
	exhausted := func(when string) {
		t.Helper()
		over := s.overLimit(t, chatOf(20, "tokens=20", true))
		next := time.Now().UTC()
		month := time.Date(next.Year(), next.Month()+1, 1, 0, 0, 0, 0, time.UTC).Format(time.RFC3339)
		if over.code != "insufficient_quota" || over.header.Get("X-Should-Retry") != "false" || !strings.Contains(over.message, "100 tokens per month") || !strings.Contains(over.message, month) {
			t.Errorf("%s: refused with %+v", when, over)
		}
	}
	exhausted("at the end")
	eventually(t, patience, "the books are written", func() bool { return s.showKey(key.ID).Use.MonthTokens == n })
	// One comes back every three seconds.
	if left := remaining(t, s.overLimit(t, chatOf(20, "", false)).header, "Requests"); left > 17+int64(time.Since(began)/(3*time.Second)) {
		t.Errorf("%d requests are left", left)
	}

	s.edge.stop(patience)
	s.startEdge()
	s.online("node-1", patience)
	exhausted("after a restart")
	iop(t, s.env, "key", "update", key.ID, "--monthly-tokens", strconv.FormatInt(n+200, 10))
	h := s.served(t, chatOf(20, "tokens=20", false))
	if left := remaining(t, h, "Requests"); left < 18 { // limits per minute live in memory
		t.Errorf("after a restart %d requests are left", left)
	}
	s.quiet()
}

// TestKeyEnds: a key that is revoked or whose time is over is refused at once, and so is a model that it may no longer use.
func TestKeyEnds(t *testing.T) {
	t.Parallel()
	all := newStack(t, stackConfig{})
	key := all.limitedKey("ends", "--expires", "1h", "--rpm", "1000")
	s := all.with(key.Key)
	s.served(t, chat("sim-small", "", false))
	iop(t, s.env, "key", "update", key.ID, "--routes", "sim-embed")
	if res, data := s.post("/v1/chat/completions", chat("sim-small", "", false)); res.StatusCode != http.StatusForbidden {
		t.Errorf("a model that it may not use: %s %s", res.Status, data)
	}
	if got := s.models(); !slices.Equal(got, []string{"sim-embed"}) {
		t.Errorf("it is shown %v", got)
	}
	iop(t, s.env, "key", "update", key.ID, "--routes", "", "--expires", "1s")
	eventually(t, patience, "its time is over", func() bool {
		res, _ := s.post("/v1/chat/completions", chat("sim-small", "", false))
		return res.StatusCode == http.StatusUnauthorized
	})
	iop(t, s.env, "key", "update", key.ID, "--expires", "0")
	s.served(t, chat("sim-small", "", false))
	iop(t, s.env, "key", "revoke", key.ID)
	res, data := s.post("/v1/chat/completions", chat("sim-small", "", false))
	if res.StatusCode != http.StatusUnauthorized || !strings.Contains(string(data), "invalid_api_key") {
		t.Errorf("revoked: %s %s", res.Status, data)
	}
	s.quiet()
}

// sdkLimitChecks are what the scripts of limits check.
var sdkLimitChecks = []string{"limits/requests", "limits/retry_waits", "limits/concurrency", "limits/budget"}

func TestSDKLimitsPython(t *testing.T) {
	runLimitScript(t, sdkDir(t)+"/python/bin/python", "sdk/python/limits.py")
}

func TestSDKLimitsNode(t *testing.T) {
	for _, version := range []string{"openai6", "openai7"} {
		t.Run(version, func(t *testing.T) { runLimitScript(t, "node", "sdk/node/limits.mjs", sdkDir(t)+"/"+version) })
	}
}

// runLimitScript runs a script against keys with limits.
func runLimitScript(t *testing.T, command ...string) {
	t.Parallel()
	s := newStack(t, stackConfig{simArgs: []string{"--slots", "8"}})
	w := &sdkWorld{Models: sdkModels, Keys: map[string]string{}, main: s, tight: s}
	w.sdkTarget, w.Tight = s.sdkTarget(), s.sdkTarget()
	for name, args := range map[string][]string{
		"rpm":         {"--rpm", "3"},
		"rpm20":       {"--rpm", "20"},
		"concurrency": {"--concurrency", "1"},
		"budget":      {"--monthly-tokens", "5"},
	} {
		w.Keys[name] = s.newKey(name, args...)
	}
	ran := w.runScript(t, command...)
	if missing := slices.DeleteFunc(slices.Clone(sdkLimitChecks), func(name string) bool { return slices.Contains(ran, name) }); len(missing) > 0 {
		t.Errorf("these checks did not run: %s", fmt.Sprint(missing))
	}
	s.settled()
}
