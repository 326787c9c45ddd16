package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"iop/execution"
	"iop/gateway"
	"iop/tunnel"
)

func TestBodiesHaveABudget(t *testing.T) {
	e := newEdge(t, func(c *gateway.Config) { c.MaxBodyBytes, c.BodyBudget, c.QueueTimeout = 1<<20, 3<<20, time.Millisecond })
	codes := make(chan execution.Code, 8)
	started := make(chan struct{}, 8)
	e.addNode("n1", 8, waiting(codes, func(*tunnel.NodeRun) { started <- struct{}{} }), "m")
	body := `{"model":"m","x":"` + strings.Repeat("x", 900_000) + `"}`
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	for range 2 {
		go func() {
			if resp, err := e.client.Do(e.request(http.MethodPost, chat, body).WithContext(ctx)); err == nil {
				resp.Body.Close()
			}
			done <- struct{}{}
		}()
		<-started
	}
	status, h, answer := e.post(chat, body)
	if code, _ := errorOf(t, answer); status != 503 || code != "overloaded" || h.Get("Retry-After") == "" {
		t.Errorf("got %d %s", status, answer)
	}
	leave()
	<-done
	<-done
	e.idle()
}

func TestThreat47StalledBodyIsGivenUp(t *testing.T) {
	timed(t, nil, answerJSON(200, `{}`), func(ask asker) {
		r, w := io.Pipe()
		go func() { _, _ = io.WriteString(w, `{"model":`) }()
		began := time.Now()
		resp, err := ask(r)
		w.Close()
		if err != nil {
			return // cut off while the body was awaited: as good
		}
		defer resp.Body.Close()
		if took := time.Since(began); resp.StatusCode != 400 || took > 2*time.Minute {
			t.Errorf("after %v: %d", took, resp.StatusCode)
		}
	})
}

// TestThreat59Threat60UnknownKeysAreSlowedDown: by the address of the connection, whatever headers say.
func TestThreat59Threat60UnknownKeysAreSlowedDown(t *testing.T) {
	e := newEdge(t, nil)
	// Right in form and checksum, but of another Edge.
	other := newEdge(t, nil)
	e.key = other.key
	limited := false
	for i := range 100 {
		// Threat 60: who the request says that it comes from does not count.
		req := e.request(http.MethodPost, chat, `{"model":"m"}`)
		req.Header.Set("X-Forwarded-For", fmt.Sprintf("203.0.113.%d", i))
		req.Header.Set("Forwarded", fmt.Sprintf("for=203.0.113.%d", i))
		resp := e.do(req)
		resp.Body.Close()
		status, h := resp.StatusCode, resp.Header
		if status == 429 {
			limited = true
			if h.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
			break
		}
		if status != 401 {
			t.Fatalf("got %d", status)
		}
	}
	if !limited {
		t.Error("a hundred guesses and no end")
	}
	// Malformed ones cost nothing and don't count.
	fresh := newEdge(t, nil)
	fresh.key = "sk-nonsense"
	for range 100 {
		if status, _, _ := fresh.post(chat, `{"model":"m"}`); status != 401 {
			t.Fatalf("got %d", status)
		}
	}
}

// A client that stalls in the middle of a stream does not keep its run from being cancelled.
func TestCancelReachesTheNodeOfAStalledClient(t *testing.T) {
	e := newEdge(t, nil)
	id, ended := make(chan string, 1), make(chan struct{})
	e.addNode("n1", 1, func(_ context.Context, run *tunnel.NodeRun) {
		_ = run.Head(head(200, "text/event-stream"))
		id <- run.Open().RunId
		for run.Write([]byte(chunk(strings.Repeat("x", 10_000))), true) == nil {
		}
		run.End(execution.Terminal{Outcome: execution.Cancelled, Code: execution.CodeCancelledByCaller})
		close(ended)
	}, "m")
	conn, err := net.Dial("tcp", e.server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const body = `{"model":"m","stream":true}`
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: edge\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", chat, e.key, len(body), body)
	run := <-id
	// Nothing is read. Once the buffers are full the handler is stuck in a write.
	before := int64(0)
	e.eventually("the client stalls it", func() bool {
		now := e.metric("iop_tunnel_bytes_received_total")
		stalled := now > 1_000_000 && now == before
		before = now
		return stalled
	})
	if status, _, _ := e.post("/iop/v1/runs/"+run+"/cancel", ""); status != 200 {
		t.Errorf("cancel: %d", status)
	}
	<-ended
	conn.Close()
	e.idle()
}

// metric reads one value without labels.
func (e *edge) metric(name string) int64 {
	e.t.Helper()
	resp, err := e.client.Get("http://" + e.server.AdminAddr().String() + "/metrics")
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		if value, ok := strings.CutPrefix(s.Text(), name+" "); ok {
			f, err := strconv.ParseFloat(value, 64)
			if err != nil {
				e.t.Fatal(err)
			}
			return int64(f)
		}
	}
	e.t.Fatalf("no metric %s", name)
	return 0
}

// moody is a provider that does something else each time.
func moody(ctx context.Context, run *tunnel.NodeRun) {
	r := rand.IntN(12)
	switch {
	case r == 0:
		answerJSON(503, `{}`)(ctx, run)
	case r == 1:
		failedWith(execution.CodeProviderUnreachable, execution.PhaseProviderCalled)(ctx, run)
	case r == 2:
		endsWith(execution.Terminal{Outcome: execution.Rejected, Code: execution.CodeCapacity})(ctx, run)
	case r == 3:
		waiting(make(chan execution.Code, 1), startStream)(ctx, run)
	case r < 8:
		answerSSE(chunk("a"), chunk("b"), doneEvent)(ctx, run)
	default:
		answerJSON(200, `{"ok":true}`)(ctx, run)
	}
}

// Requests of every kind, clients that leave at any moment, Nodes that come and go: every gauge returns to 0, and each
// request is counted once.
func TestStorm(t *testing.T) {
	requests := 2000
	if testing.Short() {
		requests = 300
	}
	e := newEdge(t, nil)
	e.client.Transport.(*http.Transport).MaxIdleConnsPerHost = 64
	e.addNode("steady", 8, moody, "m")
	stop := make(chan struct{})
	var flapping, clients sync.WaitGroup
	flapping.Go(func() {
		for i := 0; ; i++ {
			n := e.addNode(fmt.Sprint("flaky-", i%2), 4, moody, "m")
			select {
			case <-stop:
				n.stop()
				return
			case <-time.After(30 * time.Millisecond):
			}
			n.stop()
		}
	})
	work := make(chan struct{}, requests)
	for range requests {
		work <- struct{}{}
	}
	close(work)
	for range 32 {
		clients.Go(func() {
			for range work {
				ctx, leave := context.WithTimeout(t.Context(), time.Duration(rand.IntN(300))*time.Millisecond)
				resp, err := e.client.Do(e.request(http.MethodPost, chat, fmt.Sprintf(`{"model":"m","stream":%v}`, rand.IntN(2) == 0)).WithContext(ctx))
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				leave()
			}
		})
	}
	clients.Wait()
	close(stop)
	flapping.Wait()
	e.idle()
	var runs struct {
		Data []struct{ ID, State, Outcome string }
	}
	e.adminGet("/admin/v1/runs?limit=10000", &runs)
	for _, run := range runs.Data {
		if run.State != "ended" || run.Outcome == "" {
			t.Errorf("run %+v has not ended", run)
		}
	}
	for _, gauge := range []string{"iop_runs_in_flight", "iop_queued", "iop_places_taken", "iop_streams", "iop_body_budget_bytes"} {
		if v := e.metric(gauge); v != 0 {
			t.Errorf("%s is %d", gauge, v)
		}
	}
	if strings.Contains(e.logs.String(), e.key) || strings.Contains(e.logs.String(), e.join) {
		t.Error("a secret is in the log")
	}
}
