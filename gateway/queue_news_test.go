package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/gateway"
	"iop/gateway/admin"
	"iop/state"
	"iop/tunnel"
)

// estimates are what a place in the queue is told with, where it is known.
var estimates = regexp.MustCompile(` estimate=\d+s`)

// dispatches are how a stream that was told its place hears how long it waited.
var dispatches = regexp.MustCompile(`(?m)^: dispatched after=\d+\.\ds\n`)

// adminCancel cancels every run that has not ended.
func (e *edge) adminCancel() {
	e.t.Helper()
	var runs struct{ Data []admin.Run }
	e.adminGet("/admin/v1/runs", &runs)
	for _, run := range runs.Data {
		if run.State != "ended" {
			e.operate("POST", "/admin/v1/runs/"+string(run.ID)+"/cancel", "")
		}
	}
}

// TestWhoHearsOfItsPlace: event streams of text that do not refuse it, and others that ask for it.
func TestWhoHearsOfItsPlace(t *testing.T) {
	tests := map[string]struct {
		path, body string
		header     []string
		news       bool
	}{
		"asked":         {chat, `{"model":"m","stream":true}`, []string{"1"}, true},
		"asked, true":   {chat, `{"model":"m","stream":true}`, []string{"True"}, true},
		"not asked":     {chat, `{"model":"m","stream":true}`, nil, true},
		"responses":     {"/v1/responses", `{"model":"m","stream":true}`, nil, true},
		"messages":      {"/v1/messages", `{"model":"m","stream":true}`, nil, true},
		"of media":      {"/v1/images/generations", `{"model":"m","stream":true}`, nil, false},
		"media, asked":  {"/v1/images/generations", `{"model":"m","stream":true}`, []string{"1"}, true},
		"asked not to":  {chat, `{"model":"m","stream":true}`, []string{"0"}, false},
		"asked, false":  {chat, `{"model":"m","stream":true}`, []string{"FALSE"}, false},
		"twice":         {chat, `{"model":"m","stream":true}`, []string{"0", "0"}, true},
		"nonsense":      {chat, `{"model":"m","stream":true}`, []string{"no"}, true},
		"no stream":     {chat, `{"model":"m"}`, []string{"1"}, false},
		"of no streams": {"/v1/embeddings", `{"model":"m","stream":true}`, []string{"1"}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, nil)
			codes := make(chan execution.Code, 1)
			started := make(chan struct{})
			n := 0
			e.addNode("n1", 1, func(ctx context.Context, run *tunnel.NodeRun) {
				if n++; n == 1 {
					waiting(codes, func(*tunnel.NodeRun) { close(started) })(ctx, run)
					return
				}
				answerSSE(chunk("x"), doneEvent)(ctx, run)
			}, "m")
			first := make(chan struct{})
			go func() { defer close(first); e.post(chat, `{"model":"m"}`) }()
			<-started
			running := e.lastRun().ID
			req := e.request(http.MethodPost, test.path, test.body)
			for _, v := range test.header {
				req.Header.Add("X-IOP-Queue-Updates", v)
			}
			got := make(chan *http.Response, 1)
			go func() { got <- e.do(req) }()
			e.eventually("it waits", func() bool {
				var st struct{ Queued int }
				e.adminGet("/admin/v1/status", &st)
				return st.Queued == 1
			})
			var resp *http.Response
			var r *bufio.Reader
			if test.news { // the head and the first comment come while it waits
				resp = <-got
				r = bufio.NewReader(resp.Body)
				line, err := r.ReadString('\n')
				if estimates.ReplaceAllString(line, "") != ": queued position=1\n" || err != nil {
					t.Errorf("it hears %q, %v", line, err)
				}
			}
			e.operate("POST", "/admin/v1/runs/"+running+"/cancel", "")
			<-first
			if resp == nil {
				resp = <-got
				r = bufio.NewReader(resp.Body)
			}
			defer resp.Body.Close()
			rest, err := io.ReadAll(r)
			told := len(dispatches.FindAll(rest, -1))
			if string(dispatches.ReplaceAll(rest, nil)) != chunk("x")+doneEvent || err != nil || (told == 1) != test.news {
				t.Errorf("then %q, %v", rest, err)
			}
			if _, known := resp.Header["X-Iop-Queue-Ms"]; known == test.news {
				t.Errorf("its head says how long it waited, or does not: %v", resp.Header)
			}
			if resp.StatusCode != 200 || resp.Header.Get("X-Iop-Queue-Position") != "1" {
				t.Errorf("%d, position %q", resp.StatusCode, resp.Header.Get("X-Iop-Queue-Position"))
			}
			e.idle()
		})
	}
}

// TestNoPlaceWhereNobodyWaits: an answer that needed no queue has no headers of it.
func TestNoPlaceWhereNobodyWaits(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 1, answerSSE(chunk("x"), doneEvent), "m")
	req := e.request(http.MethodPost, chat, `{"model":"m","stream":true}`)
	req.Header.Set("X-IOP-Queue-Updates", "1")
	resp := e.do(req)
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if _, ok := resp.Header["X-Iop-Queue-Position"]; ok || string(body) != chunk("x")+doneEvent || resp.Header.Get("X-Iop-Queue-Ms") != "0" {
		t.Errorf("%v %q", resp.Header, body)
	}
}

// lasting is a provider whose run takes as many seconds as its request's user says.
func lasting(_ context.Context, run *tunnel.NodeRun) {
	body, _ := run.Body()
	_, rest, _ := strings.Cut(string(body), `"user":"`)
	digits, _, _ := strings.Cut(rest, `"`)
	seconds, _ := strconv.Atoi(digits)
	took := time.Duration(seconds) * time.Second
	time.Sleep(took)
	_ = run.Head(head(200, "text/event-stream"))
	_ = run.Write([]byte(chunk("x")+doneEvent), true)
	run.End(execution.Terminal{
		Outcome: execution.Completed, Phase: execution.PhaseProviderDone, Usage: execution.Usage{Input: 3, Output: 2, Known: true},
		Timings: execution.Timings{FirstByte: took, Provider: took},
	})
}

// runsFor sends a stream whose run takes so long, and reads its answer in the background.
func (send sender) runsFor(seconds int) (ended chan struct{}) {
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		if resp, err := send(strings.NewReader(fmt.Sprintf(`{"model":"m","stream":true,"user":"%d"}`, seconds))); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}()
	synctest.Wait()
	return ended
}

// said is a line of an answer, and when it came.
type said struct {
	line string
	at   time.Duration
}

// listen returns what a stream says until its end.
func listen(resp *http.Response, began time.Time) (all []said) {
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return all
		}
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, said{strings.ReplaceAll(line, strings.TrimSpace(chunk("x")), "x"), time.Since(began)})
		}
	}
}

// TestPlaceIsToldAsItChanges: each change within a second, with an estimate once there is a rate; silence in between is
// filled as any other. The last comment of the queue says how long it was, which the head could not.
func TestPlaceIsToldAsItChanges(t *testing.T) {
	for asked, head := range map[string]time.Duration{"": 500 * time.Millisecond, "1": 0} {
		bubble(t, nil, lasting, state.KeySpec{Name: "test"}, func(send sender) {
			first := send.runsFor(40) // until 40 s
			time.Sleep(20 * time.Second)
			others := []chan struct{}{first, send.runsFor(40), send.runsFor(40)} // until 60 s, and next
			began := time.Now()
			resp, err := send(strings.NewReader(`{"model":"m","stream":true,"user":"40"}`), "X-IOP-Queue-Updates", asked)
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took != head {
				t.Errorf("asked %q: the head came after %v", asked, took)
			}
			if h := resp.Header; h.Get("X-Iop-Queue-Position") != "2" || h["X-Iop-Queue-Ms"] != nil || h["X-Iop-Queue-Estimate-Ms"] != nil {
				t.Errorf("asked %q: %v", asked, h)
			}
			// 20 s later the first run ends and the one before this begins; 40 s later this one.
			want := []said{
				{": queued position=2", 0}, {": ping", 15 * time.Second}, {": queued position=1 estimate=20s", 21 * time.Second},
				{": ping", 36 * time.Second}, {": dispatched after=40.0s", 40 * time.Second}, {": ping", 55 * time.Second},
				{": ping", 70 * time.Second}, {"x", 80 * time.Second}, {"data: [DONE]", 80 * time.Second},
			}
			got := listen(resp, began)
			for i := range min(len(got), len(want)) {
				if off := got[i].at - want[i].at; got[i].line != want[i].line || off < -time.Second || off > time.Second {
					t.Errorf("asked %q: %d: %v, not %v", asked, i, got[i], want[i])
				}
			}
			if len(got) != len(want) {
				t.Errorf("asked %q: it heard %v", asked, got)
			}
			for _, other := range others {
				<-other
			}
		})
	}
}

// TestEstimatesFollowWhatIsMeasured: after quick runs a slow one holds the queue up. Who is next is never told less than it has
// waited already.
func TestEstimatesFollowWhatIsMeasured(t *testing.T) {
	bubble(t, nil, lasting, state.KeySpec{Name: "test"}, func(send sender) {
		var quick []chan struct{}
		for range 10 {
			quick = append(quick, send.runsFor(2))
		}
		for _, q := range quick {
			<-q
		}
		slow := []chan struct{}{send.runsFor(60), send.runsFor(60)}
		began := time.Now()
		resp, err := send(strings.NewReader(`{"model":"m","stream":true,"user":"1"}`))
		if err != nil {
			t.Fatal(err)
		}
		if ms, _ := strconv.Atoi(resp.Header.Get("X-Iop-Queue-Estimate-Ms")); ms < 1000 || ms > 2000 {
			t.Errorf("after runs of 2 s at two places it expects %d ms", ms)
		}
		told := 0
		for _, s := range listen(resp, began) {
			_, estimate, ok := strings.Cut(s.line, "estimate=")
			if !ok {
				continue
			}
			told++
			if d, err := time.ParseDuration(estimate); err != nil || told > 1 && d < s.at-time.Second || d > 60*time.Second {
				t.Errorf("after %v: %s", s.at, s.line)
			}
		}
		if told < 4 || told > 10 {
			t.Errorf("it was told %d times", told)
		}
		for _, s := range slow {
			<-s
		}
	})
}

// TestHeadAgreesWithItsFirstLine: a head that is sent from the queue says what the line below it says, and not what was when the
// request came.
func TestHeadAgreesWithItsFirstLine(t *testing.T) {
	bubble(t, nil, lasting, state.KeySpec{Name: "test"}, func(send sender) {
		<-send.runsFor(40) // so that there are estimates
		first := send.runsFor(40)
		time.Sleep(40*time.Second - newsHeadDelay/2)
		others := []chan struct{}{first, send.runsFor(40), send.runsFor(40)} // the last one waits for the first, half as long as the head
		resp, err := send(strings.NewReader(`{"model":"m","stream":true,"user":"1"}`))
		if err != nil {
			t.Fatal(err)
		}
		ms, _ := strconv.Atoi(resp.Header.Get("X-Iop-Queue-Estimate-Ms"))
		want := fmt.Sprintf(": queued position=%s estimate=%ds", resp.Header.Get("X-Iop-Queue-Position"), (ms+999)/1000)
		if got := listen(resp, time.Now()); got[0].line != want || ms == 0 || !strings.Contains(want, "position=1 ") {
			t.Errorf("the head says %q, the line below it %q", want, got[0].line)
		}
		for _, o := range others {
			<-o
		}
	})
}

// newsHeadDelay is when a stream that queues gets its head.
const newsHeadDelay = 500 * time.Millisecond

// TestHeadersOfTheQueue: an answer whose head was not sent early says in its headers what was.
func TestHeadersOfTheQueue(t *testing.T) {
	for name, test := range map[string]struct{ body, updates string }{
		"no stream": {`{"model":"m","user":"1"}`, ""},
		"refused":   {`{"model":"m","stream":true,"user":"1"}`, "0"},
	} {
		bubble(t, nil, lasting, state.KeySpec{Name: "test"}, func(send sender) {
			<-send.runsFor(12)
			busy := []chan struct{}{send.runsFor(12), send.runsFor(12)}
			time.Sleep(3 * time.Second)
			resp, err := send(strings.NewReader(test.body), "X-IOP-Queue-Updates", test.updates)
			if err != nil {
				t.Fatal(err)
			}
			h := resp.Header
			if h.Get("X-Iop-Queue-Ms") != "9000" || h.Get("X-Iop-Queue-Position") != "1" || h.Get("X-Iop-Queue-Estimate-Ms") != "6000" {
				t.Errorf("%s: %v", name, h)
			}
			for _, s := range listen(resp, time.Now()) {
				if strings.HasPrefix(s.line, ":") {
					t.Errorf("%s: it hears %q", name, s.line)
				}
			}
			for _, b := range busy {
				<-b
			}
		})
	}
}

// TestShortWaitKeepsItsStatus: a stream that waits less than half a second is answered as one that does not.
func TestShortWaitKeepsItsStatus(t *testing.T) {
	bubble(t, nil, func(ctx context.Context, run *tunnel.NodeRun) {
		time.Sleep(400 * time.Millisecond)
		answerJSON(400, errorBody("no"))(ctx, run)
	}, state.KeySpec{Name: "test"}, func(send sender) {
		busy := []chan struct{}{send.runsFor(0), send.runsFor(0)}
		resp, err := send(strings.NewReader(`{"model":"m","stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 400 || resp.Header.Get("X-Iop-Queue-Ms") != "400" {
			t.Errorf("got %d, %v", resp.StatusCode, resp.Header)
		}
		for _, b := range busy {
			<-b
		}
	})
}

// TestHeadIsHeldBackWhileATargetRests: a stream that waits for a provider's Retry-After to pass is in no queue, and the refusal
// that may follow is a status, which SDKs retry.
func TestHeadIsHeldBackWhileATargetRests(t *testing.T) {
	bubble(t, nil, func(_ context.Context, run *tunnel.NodeRun) {
		_ = run.Head(head(429, "application/json", "retry-after", "3"))
		_ = run.Write([]byte(errorBody("slow down")), false)
		run.End(execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone})
	}, state.KeySpec{Name: "test"}, func(send sender) {
		for _, queued := range []string{"0", "3000"} {
			resp, err := send(strings.NewReader(`{"model":"m","stream":true}`))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "3" || resp.Header.Get("X-Iop-Queue-Ms") != queued {
				t.Errorf("got %d, %v, want it after %s ms", resp.StatusCode, resp.Header, queued)
			}
		}
	})
}

// TestHeadIsHeldBackWhereNobodyIs: without a target there is no queue to tell of, and the refusal after the grace is a status,
// unless the client asked or the grace is longer than a connection may be silent.
func TestHeadIsHeldBackWhereNobodyIs(t *testing.T) {
	const file = `
routes:
  - {model: away, targets: [{node: nobody}]}
  - {model: soon, targets: [{node: nobody}], timeouts: {no_node: 20s}}
  - {model: long, targets: [{node: nobody}], timeouts: {no_node: 40s}}
`
	for name, test := range map[string]struct {
		model, updates string
		status         int
		after          time.Duration
		want           []said
	}{
		"not asked": {model: "away", status: 503, after: 30 * time.Second},
		"refused":   {model: "away", updates: "0", status: 503, after: 30 * time.Second},
		"asked":     {model: "soon", updates: "1", status: 200, want: []said{{": queued position=1", 0}, {": ping", 15 * time.Second}, {"data: ", 20 * time.Second}}},
		"long": {model: "long", status: 200, after: 31 * time.Second, want: []said{
			{": ping", 31 * time.Second}, {": queued position=1", 31 * time.Second}, {"data: ", 40 * time.Second},
		}},
		"long, refused": {model: "long", updates: "0", status: 200, after: 31 * time.Second, want: []said{
			{": ping", 31 * time.Second}, {"data: ", 40 * time.Second},
		}},
	} {
		path := filepath.Join(t.TempDir(), "iop.yaml")
		writeRoutes(t, path, file)
		bubble(t, func(c *gateway.Config) { c.Config = path }, lasting, state.KeySpec{Name: "test"}, func(send sender) {
			began := time.Now()
			resp, err := send(strings.NewReader(`{"model":"`+test.model+`","stream":true}`), "X-IOP-Queue-Updates", test.updates)
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); resp.StatusCode != test.status || took < test.after || took > test.after+time.Second {
				t.Errorf("%s: %d after %v", name, resp.StatusCode, took)
			}
			if test.want == nil {
				resp.Body.Close()
				return
			}
			got := listen(resp, began)
			for i := range min(len(got), len(test.want)) {
				if off := got[i].at - test.want[i].at; !strings.HasPrefix(got[i].line, test.want[i].line) || off < 0 || off > time.Second {
					t.Errorf("%s: %v, not %v", name, got[i], test.want[i])
				}
			}
			if len(got) != len(test.want) || !strings.Contains(got[len(got)-1].line, "no_node_available") {
				t.Errorf("%s: it heard %v", name, got)
			}
		})
	}
}

// TestCancelInTheQueue: the client that waits is told, in whatever way is left, and its key's place is free again.
func TestCancelInTheQueue(t *testing.T) {
	const told = `{"error":{"message":"The run was cancelled.","type":"invalid_request_error","param":null,"code":"run_cancelled"}}`
	for name, test := range map[string]struct {
		body   string
		status int
		want   string
	}{
		"no stream": {`{"model":"m"}`, 499, told},
		"news":      {`{"model":"m","stream":true}`, 200, ": queued position=1\ndata: " + told + "\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, nil)
			started, end := make(chan struct{}, 1), make(chan struct{})
			e.addNode("n1", 1, func(ctx context.Context, run *tunnel.NodeRun) {
				started <- struct{}{}
				<-end
				uses(1, 1)(ctx, run)
			}, "m")
			first := make(chan struct{})
			go func() { defer close(first); e.post(chat, `{"model":"m"}`) }()
			<-started
			req := e.request(http.MethodPost, chat, test.body)
			req.Header.Set("Authorization", "Bearer "+e.newKey(state.KeySpec{Concurrency: 1, MonthlyTokens: 1000}))
			req.Header.Set("X-IOP-Queue-Updates", "1")
			again := req.Clone(t.Context())
			got := make(chan answered, 1)
			go func() {
				resp := e.do(req)
				defer resp.Body.Close()
				body, _ := io.ReadAll(resp.Body)
				got <- answered{resp.StatusCode, estimates.ReplaceAllString(string(body), "")}
			}()
			e.waits(1)
			e.operate("POST", "/admin/v1/runs/"+e.lastRun().ID+"/cancel", "")
			if a := <-got; a.status != test.status || a.body != test.want {
				t.Errorf("it gets %d %q", a.status, a.body)
			}
			close(end)
			<-first
			again.Body = io.NopCloser(strings.NewReader(test.body))
			resp := e.do(again)
			resp.Body.Close()
			if resp.StatusCode != 200 {
				t.Errorf("the key's next request: %d", resp.StatusCode)
			}
			e.idle()
		})
	}
}

// TestPriorityOfAKey: among the requests of one owner the key says who goes first.
func TestPriorityOfAKey(t *testing.T) {
	e := newEdge(t, nil)
	started, end := make(chan string, 3), make(chan struct{})
	e.addNode("n1", 1, func(ctx context.Context, run *tunnel.NodeRun) {
		body, _ := run.Body()
		started <- string(body)
		<-end
		uses(1, 1)(ctx, run)
	}, "m")
	low, high := e.newKey(state.KeySpec{Owner: "o"}), e.newKey(state.KeySpec{Owner: "o", Priority: 5})
	done := make(chan struct{}, 3)
	for i, key := range []string{low, low, high} {
		e.as(key, func() {
			req := e.request(http.MethodPost, chat, `{"model":"m","user":"`+string(rune('a'+i))+`"}`)
			go func() {
				if resp, err := e.client.Do(req); err == nil {
					resp.Body.Close()
				}
				done <- struct{}{}
			}()
		})
		if i == 0 {
			<-started
		} else {
			e.waits(i)
		}
	}
	close(end)
	if second, third := <-started, <-started; !strings.Contains(second, `"c"`) || !strings.Contains(third, `"b"`) {
		t.Errorf("then come %s and %s", second, third)
	}
	for range 3 {
		<-done
	}
	e.idle()
}

// TestNewsOfALongQueue: far behind a place is told less often, so that those who ask do not keep the Edge busy.
func TestNewsOfALongQueue(t *testing.T) {
	const behind = 100
	quick := func(ctx context.Context, run *tunnel.NodeRun) {
		time.Sleep(time.Second)
		answerSSE(chunk("x"), doneEvent)(ctx, run)
	}
	bubble(t, nil, quick, state.KeySpec{Name: "test"}, func(send sender) {
		ended := make(chan struct{}, behind)
		for range behind {
			go func() {
				if resp, err := send(strings.NewReader(`{"model":"m"}`)); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				ended <- struct{}{}
			}()
		}
		synctest.Wait()
		resp, err := send(strings.NewReader(`{"model":"m","stream":true}`), "X-IOP-Queue-Updates", "1")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || !strings.HasSuffix(string(body), chunk("x")+doneEvent) {
			t.Errorf("%q, %v", body, err)
		}
		places := regexp.MustCompile(`position=(\d+)`).FindAllStringSubmatch(string(body), -1)
		for i, place := range places {
			n, _ := strconv.Atoi(place[1])
			if i == 0 && n != behind-1 {
				t.Errorf("it begins at place %d", n)
			} else if i > 0 {
				before, _ := strconv.Atoi(places[i-1][1])
				if n >= before {
					t.Errorf("from place %d to %d", before, n)
				}
			}
		}
		// Two places a second are given, for fifty seconds.
		if len(places) < 25 || len(places) > 40 {
			t.Errorf("%d places were told", len(places))
		}
		for range behind {
			<-ended
		}
	})
}
