package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// runSimCommand runs `iop sim` with a listener of its own until the test ends, and returns its first line.
func runSimCommand(t *testing.T, args ...string) string {
	t.Helper()
	out, in := io.Pipe()
	cmd := newSimCommand()
	cmd.SetOut(in)
	cmd.SetArgs(append([]string{"--listen", "127.0.0.1:0"}, args...))
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		err := cmd.ExecuteContext(ctx)
		in.Close()
		done <- err
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("iop sim: %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("no line: %v", err)
	}
	return line
}

func TestSimSaysWhereItListens(t *testing.T) {
	var ready struct {
		URL    string
		Models []string
		Slots  int
	}
	t.Setenv("IOP_SIM_MODELS", "a,b")
	t.Setenv("IOP_SIM_SLOTS", "9")
	line := runSimCommand(t, "--json", "--slots", "3")
	if err := json.Unmarshal([]byte(line), &ready); err != nil {
		t.Fatal(err)
	}
	if len(ready.Models) != 2 || ready.Slots != 3 {
		t.Errorf("%+v", ready)
	}
	resp, err := http.Get(ready.URL + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(body), `"id":"b"`) {
		t.Errorf("%v %s", err, body)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestSimForPeople(t *testing.T) {
	if line := runSimCommand(t, "--flavour", "vllm"); !strings.Contains(line, "vllm listens on http://127.0.0.1:") {
		t.Errorf("%q", line)
	}
}

func TestSimRefusesWrongSettings(t *testing.T) {
	for _, args := range [][]string{{"--slots", "0"}, {"--flavour", "gpt"}, {"--listen", "nowhere"}, {"--ttft", "5"}} {
		cmd := newSimCommand()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetOut(&bytes.Buffer{})
		cmd.SetArgs(args)
		err := cmd.ExecuteContext(t.Context())
		if _, ok := err.(usageError); !ok {
			t.Errorf("%v: %v", args, err)
		}
	}
}
