package e2e

import (
	"bufio"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

func readFile(name string) (string, error) {
	data, err := os.ReadFile(name)
	return string(data), err
}

// TestMainJob is the product's one sentence: a client streams from a provider behind a Node.
func TestMainJob(t *testing.T) {
	s := newStack(t, stackConfig{})
	req := s.request("POST", "/v1/chat/completions", chat("sim-small", "tokens=20,itl=20ms", true), nil)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("%s, %v", res.Status, res.Header)
	}
	if !strings.HasPrefix(res.Header.Get("X-Iop-Run-Id"), "run_") || res.Header.Get("X-Request-Id") == "" {
		t.Fatalf("headers %v", res.Header)
	}
	var events int
	var last string
	var first, end time.Time
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			if events == 0 {
				first = time.Now()
			}
			events++
			last = data
		}
	}
	end = time.Now()
	if lines.Err() != nil || last != "[DONE]" || events < 20 {
		t.Fatalf("%d events, the last %q, %v", events, last, lines.Err())
	}
	if spread := end.Sub(first); spread < 200*time.Millisecond {
		t.Fatalf("all events came within %s: the stream was buffered", spread)
	}
	s.settled()
}
