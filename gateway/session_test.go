package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"iop/execution"
	"iop/tunnel"
)

func TestSessionsAreIndependent(t *testing.T) {
	e := newEdge(t, nil)
	codes := make(chan execution.Code, 2)
	seen := make(chan string, 2)
	e.addNode("n1", 4, waiting(codes, func(run *tunnel.NodeRun) {
		seen <- run.Open().GetSessionId()
		startStream(run)
	}), "m")
	type answer struct {
		resp *http.Response
		err  error
	}
	ask := func(header, body string) answer {
		req := e.request(http.MethodPost, "/v1/chat/completions", body)
		if header != "" {
			req.Header.Set("X-Session-Id", header)
		}
		resp, err := e.client.Do(req)
		return answer{resp, err}
	}
	one := ask("s1", `{"model":"m","stream":true,"session_id":"other"}`)
	two := ask("", `{"model":"m","stream":true,"metadata":{"session_id":"s1"}}`)
	for _, a := range []answer{one, two} {
		if a.err != nil {
			t.Fatal(a.err)
		}
		defer a.resp.Body.Close()
		if got := a.resp.Header.Get("X-Iop-Session-Id"); got != "s1" || <-seen != "s1" {
			t.Errorf("session %q", got)
		}
	}
	id := one.resp.Header.Get("X-Iop-Run-Id")
	if status, _, body := e.post("/iop/v1/runs/"+id+"/cancel", ""); status != 200 || !strings.Contains(body, `"session_id":"s1"`) {
		t.Fatalf("%d %s", status, body)
	}
	if code := <-codes; code != execution.CodeCancelledByCaller {
		t.Errorf("cancelled with %v", code)
	}
	if rest, err := io.ReadAll(one.resp.Body); err != nil || !strings.Contains(string(rest), "run_cancelled") {
		t.Errorf("%q, %v", rest, err)
	}
	if body := e.get("/iop/v1/runs/" + two.resp.Header.Get("X-Iop-Run-Id")); !strings.Contains(body, `"state":"active"`) {
		t.Errorf("the other run of the session: %s", body)
	}
	two.resp.Body.Close()
	<-codes
	e.idle()
}
