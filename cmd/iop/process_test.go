package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is how long a test waits for what must happen soon. It only decides how late a failure is reported.
const patience = time.Minute

// command is one that runs in this process until it is stopped.
type command struct {
	t      *testing.T
	stop   context.CancelFunc
	status chan int

	mu    sync.Mutex
	lines []string      // guarded by mu; of both outputs
	more  chan struct{} // guarded by mu; closed and replaced at each line
}

// begin starts a command line. It is stopped with the test, and must then end with status 0.
func begin(t *testing.T, args ...string) *command {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	c := &command{t: t, stop: stop, status: make(chan int, 1), more: make(chan struct{})}
	r, w := io.Pipe()
	go func() {
		c.status <- run(ctx, args, w, w)
		w.Close()
	}()
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(r); lines.Scan(); {
			c.mu.Lock()
			c.lines = append(c.lines, lines.Text())
			close(c.more)
			c.more = make(chan struct{})
			c.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		if stop != nil {
			c.end()
		}
		<-read
	})
	return c
}

// end stops the command and reports how long that took.
func (c *command) end() time.Duration {
	c.t.Helper()
	begin := time.Now()
	c.stop()
	select {
	case status := <-c.status:
		c.status <- status
		if status != exitOK {
			c.t.Errorf("status %d; output:\n%s", status, c.output())
		}
	case <-time.After(patience):
		c.t.Fatalf("the command does not end; output:\n%s", c.output())
	}
	return time.Since(begin)
}

func (c *command) output() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.lines, "\n")
}

// object waits for a line of JSON that holds text, and decodes it.
func (c *command) object(text string, v any) {
	c.t.Helper()
	timeout := time.After(patience)
	for seen := 0; ; {
		c.mu.Lock()
		fresh, more := c.lines[seen:], c.more
		seen = len(c.lines)
		c.mu.Unlock()
		for _, line := range fresh {
			if strings.Contains(line, text) && json.Unmarshal([]byte(line), v) == nil {
				return
			}
		}
		select {
		case <-more:
		case <-timeout:
			c.t.Fatalf("no line with %q; output:\n%s", text, c.output())
		}
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(patience); !holds(); {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("never: %s", what)
		}
	}
}

// testClient keeps no connection, so that none outlives its test.
var testClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// chat begins a chat completion; knobs are the simulator's.
func chat(t *testing.T, baseURL, key, model, knobs string) *http.Response {
	t.Helper()
	body := `{"model":"` + model + `","stream":true,"user":"sim:` + knobs + `","messages":[{"role":"user","content":"hello"}]}`
	request, err := http.NewRequest("POST", baseURL+"/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+key)
	request.Header.Set("Content-Type", "application/json")
	response, err := testClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

// streamed reads a stream to its end, which must be a good one.
func streamed(t *testing.T, response *http.Response) {
	t.Helper()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
		t.Fatalf("%s, %v: %s", response.Status, err, body)
	}
}
