package admin_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/gateway/admin"
)

// audited are the entries about models, the oldest first.
func (d *desk) audited() []string {
	d.t.Helper()
	var page admin.AuditPage
	d.must(&page, "GET", v1+"/audit?action=model_pulled,model_deleted", "")
	var lines []string
	for _, e := range slices.Backward(page.Data) {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s %s %s %s", e.Actor, e.Action, e.Node, e.Subject, e.Outcome, e.Reason)))
	}
	return lines
}

// Who pulls and deletes models is in the audit with the end that it came to; who only looks is not.
func TestChangesOfModelsAreAudited(t *testing.T) {
	d := newDesk(t)
	const n1 = v1 + "/nodes/n1/ollama/"
	send := func(path, body, answer string, status int, fault error) {
		t.Helper()
		d.edge.body = newFakeBody(status, answer, fault)
		d.ask("POST", path, body)
		<-d.edge.body.closed
	}
	cut := &admin.CommandError{Status: 502, Code: "node_failed", Message: "the session was lost"}
	send(n1+"tags", "", `{"models":[]}`, 200, nil)
	send(n1+"show", `{"model":"m"}`, `{}`, 200, nil)
	send(n1+"pull", `{"model":"m:1b"}`, `{"status":"pulling manifest"}`+"\n"+`{"status":"success"}`+"\n", 200, nil)
	send(n1+"pull", `{"name":"old","stream":false}`, `{"status":"success"}`, 200, nil)
	send(n1+"pull", `{"model":"m"}`, `{"status":"pulling"}`+"\n"+`{"error":"no space left"}`+"\n\n", 200, nil)
	send(n1+"pull", `{"model":"m"}`, `{"status":"success"}`+"\n"+`{"status":"`+strings.Repeat("x", 8<<10)+`"}`, 200, nil)
	send(n1+"pull", `{"model":"m"}`, `{"status":"success"}`, 200, cut)
	send(n1+"pull", `{"model":"m"}`, ``, 500, nil)
	send(n1+"delete", `{"model":"m"}`, ``, 200, nil)
	send(n1+"delete", `{"model":"none"}`, `{"error":"sk-1 not found"}`, 404, nil)
	send(n1+"delete", `{"model":"m"}`, `{`, 200, cut)
	d.refused(404, "node_not_found", "node", "POST", v1+"/nodes/n9/ollama/delete?provider=q", `{"model":"m"}`)
	want := []string{
		"admin model_pulled n1 p/m:1b done", "admin model_pulled n1 p/old done", "admin model_pulled n1 p/m failed provider_error",
		"admin model_pulled n1 p/m failed provider_error", "admin model_pulled n1 p/m failed node_failed",
		"admin model_pulled n1 p/m failed provider_error", "admin model_deleted n1 p/m done", "admin model_deleted n1 p/none refused provider_error",
		"admin model_deleted n1 p/m failed node_failed", "admin model_deleted n9 q/m refused node_not_found",
	}
	if got := d.audited(); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// A pull that its operator leaves is one that was cancelled.
func TestPullThatIsLeftIsAudited(t *testing.T) {
	d := newDesk(t)
	more, writer := io.Pipe()
	d.edge.body = newFakeBody(200, "", nil)
	d.edge.body.Reader = more
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	r, err := http.NewRequestWithContext(ctx, "POST", d.server.URL+v1+"/nodes/n1/ollama/pull", strings.NewReader(`{"model":"m"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+d.token)
	r.Header.Set("Content-Type", "application/json")
	go func() { _, _ = writer.Write([]byte(`{"status":"pulling"}` + "\n")) }()
	resp, err := d.server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	leave()
	go func() { // the progress goes on until a write fails
		for {
			if _, err := writer.Write([]byte(`{"status":"pulling"}` + "\n")); err != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	<-d.edge.body.closed
	_ = more.Close()
	if got := d.audited(); !slices.Equal(got, []string{"admin model_pulled n1 p/m failed cancelled"}) {
		t.Errorf("%q", got)
	}
}
