package gateway_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"iop/execution"
	"iop/gateway"
	"iop/tunnel"
)

// TestMetricsAreExplained: docs/metrics.md names each metric that the Edge shows, and no other.
func TestMetricsAreExplained(t *testing.T) {
	doc, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, _ := certificate(t)
	secure := newEdge(t, func(c *gateway.Config) { c.TLSCert, c.TLSKey = cert, key })
	_, page := secure.operate(http.MethodGet, "/metrics", "")
	shown := slices.Concat(metricNames(t), managedMetricNames(t), namesIn(page))
	names := regexp.MustCompile(`\biop_[a-z_]+`)
	var explained []string
	for line := range strings.Lines(string(doc)) {
		if strings.HasPrefix(line, "| `iop_") {
			cell, _, _ := strings.Cut(line[2:], "|")
			explained = append(explained, names.FindAllString(cell, -1)...)
		}
	}
	for _, name := range shown {
		if !slices.Contains(explained, name) {
			t.Errorf("%s is shown and not explained", name)
		}
	}
	for _, name := range explained {
		if !slices.Contains(shown, name) {
			t.Errorf("%s is explained and not shown", name)
		}
	}
}

// metricNames returns the names of the metrics of an Edge that has seen runs of all kinds.
func metricNames(t *testing.T) (names []string) {
	t.Helper()
	e := newEdge(t, nil)
	seen := make(chan struct{})
	e.addNode("n1", 4, func(_ context.Context, run *tunnel.NodeRun) {
		_ = run.Head(head(http.StatusOK, "text/event-stream"))
		_ = run.Write([]byte(chunk("a")), true)
		<-seen
		_ = run.Write([]byte(doneEvent), true)
		run.End(execution.Terminal{
			Outcome: execution.Completed, Phase: execution.PhaseProviderDone,
			Usage: execution.Usage{Input: 1, Output: 1, Known: true},
		})
	}, "m")
	resp := e.do(e.request(http.MethodPost, chat, `{"model":"m","stream":true}`))
	if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	close(seen)
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	e.eventually("the models settle", func() bool { // then an unknown one is a run that is rejected
		status, _, _ := e.post(chat, `{"model":"nobody"}`)
		return status == http.StatusNotFound
	})
	e.post(chat, `{`) // refused
	wrong := e.request(http.MethodPost, chat, `{"model":"m"}`)
	wrong.Header.Set("Authorization", "Bearer wrong")
	e.do(wrong).Body.Close()
	e.idle()
	status, body := e.operate(http.MethodGet, "/metrics", "")
	if status != http.StatusOK {
		t.Fatalf("/metrics: %d", status)
	}
	return namesIn(body)
}

// managedMetricNames are those of an Edge in managed mode.
func managedMetricNames(t *testing.T) []string {
	t.Helper()
	status, body := newManaged(t, slotFile).operate(http.MethodGet, "/metrics", "")
	if status != http.StatusOK {
		t.Fatalf("/metrics: %d", status)
	}
	return namesIn(body)
}

func namesIn(body string) (names []string) {
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (iop_[a-z_]+) `).FindAllStringSubmatch(body, -1) {
		names = append(names, m[1])
	}
	return names
}
