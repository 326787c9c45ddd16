package gateway_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/gateway/admin"
	"iop/state"
	"iop/tunnel"
)

// estimates are what a place in the queue is told with, where it is known.
var estimates = regexp.MustCompile(` estimate_ms=\d+`)

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

// TestWhoHearsOfItsPlace: only event streams that ask for it.
func TestWhoHearsOfItsPlace(t *testing.T) {
	tests := map[string]struct {
		path, body string
		header     []string
		news       bool
	}{
		"asked":         {chat, `{"model":"m","stream":true}`, []string{"1"}, true},
		"asked, true":   {chat, `{"model":"m","stream":true}`, []string{"True"}, true},
		"not asked":     {chat, `{"model":"m","stream":true}`, nil, false},
		"asked not to":  {chat, `{"model":"m","stream":true}`, []string{"0"}, false},
		"twice":         {chat, `{"model":"m","stream":true}`, []string{"1", "1"}, false},
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
				if estimates.ReplaceAllString(line, "") != ": queue position=1\n" || err != nil {
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
			if rest, err := io.ReadAll(r); string(rest) != chunk("x")+doneEvent || err != nil {
				t.Errorf("then %q, %v", rest, err)
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

// TestPlaceIsToldAsItChanges: each change within a second, with an estimate once there is a rate; silence in between is
// filled as any other, and comments stop where the answer begins.
func TestPlaceIsToldAsItChanges(t *testing.T) {
	slow := func(ctx context.Context, run *tunnel.NodeRun) {
		time.Sleep(40 * time.Second)
		answerSSE(chunk("x"), doneEvent)(ctx, run)
	}
	bubble(t, nil, slow, state.KeySpec{Name: "test"}, func(send sender) {
		ended := make(chan struct{}, 3)
		background := func() {
			go func() {
				if resp, err := send(strings.NewReader(`{"model":"m","stream":true}`)); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				ended <- struct{}{}
			}()
			synctest.Wait()
		}
		background() // runs until 40 s
		time.Sleep(20 * time.Second)
		background() // runs until 60 s
		background() // is next
		began := time.Now()
		resp, err := send(strings.NewReader(`{"model":"m","stream":true}`), "X-IOP-Queue-Updates", "1")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if took := time.Since(began); took != 0 {
			t.Errorf("the head came after %v", took)
		}
		if resp.Header.Get("X-Iop-Queue-Position") != "2" {
			t.Errorf("position %q", resp.Header.Get("X-Iop-Queue-Position"))
		}
		var got []string
		times := map[string]time.Duration{}
		lines := bufio.NewReader(resp.Body)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				break
			}
			line = strings.TrimSpace(estimates.ReplaceAllString(line, " estimate_ms=N"))
			if line == "" {
				continue
			}
			if line = strings.ReplaceAll(line, strings.TrimSpace(chunk("x")), "x"); len(got) == 0 || line != got[len(got)-1] {
				got = append(got, line)
			}
			if _, ok := times[line]; !ok {
				times[line] = time.Since(began)
			}
		}
		// 20 s later the first run ends and the one before this begins; 40 s later this one.
		want := ": queue position=2 estimate_ms=N, : ping, : queue position=1 estimate_ms=N, : ping, x, data: [DONE]"
		if all := strings.Join(got, ", "); all != want && all != strings.Replace(want, " estimate_ms=N", "", 1) {
			t.Errorf("it heard %s", all)
		}
		if at := times[": queue position=1 estimate_ms=N"]; at < 20*time.Second || at > 22*time.Second {
			t.Errorf("the change was told after %v", at)
		}
		if at := times["x"]; at != 80*time.Second {
			t.Errorf("the answer came after %v", at)
		}
		for range 3 {
			<-ended
		}
	})
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
		"news":      {`{"model":"m","stream":true}`, 200, ": queue position=1\ndata: " + told + "\n\n"},
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
