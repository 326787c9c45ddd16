// Package adaptertest holds what the tests of the Node's adapters share: reading a stream in any pieces, comparing it with a
// recorded one, and what must hold of a reader whatever a provider sends. Nothing but tests may import it.
package adaptertest

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"iop/execution"
	"iop/nodeagent/adapter"
)

var update = flag.Bool("update", false, "write the golden events anew")

// read pushes pieces through a reader, ends it, and returns copies of its events.
func read(r adapter.Reader, pieces ...[]byte) (events []execution.Event, err error) {
	take := func(e *execution.Event) error {
		c := *e
		if e.Usage != nil {
			usage := *e.Usage
			c.Usage = &usage
		}
		events = append(events, c)
		return nil
	}
	for _, p := range pieces {
		p = append([]byte(nil), p...)
		done, err := r.Push(p, take)
		clear(p) // the caller's buffer: nothing may point into it any more
		if done || err != nil {
			return events, err
		}
	}
	return events, r.End(take)
}

// madeID is an id that an adapter makes where the provider gives none: another in each run.
var madeID = regexp.MustCompile(`call_[0-9a-f]{24}`)

// Lines writes events as text, one in a line, for comparisons.
func Lines(events []execution.Event, usage execution.Usage, err error) string {
	var b strings.Builder
	for i := range events {
		e := &events[i]
		fmt.Fprintf(&b, "%d %s\n", e.Choice, madeID.ReplaceAllString(line(e), "made"))
	}
	fmt.Fprintf(&b, "usage %+v\n", usage)
	if s, ok := errors.AsType[*adapter.StreamError](err); ok {
		fmt.Fprintf(&b, "error %s: %s\n", s.Code, s.Detail)
	} else if err != nil {
		fmt.Fprintf(&b, "error %v\n", err)
	}
	return b.String()
}

func line(e *execution.Event) string {
	switch e.Kind {
	case execution.EventStarted:
		return fmt.Sprintf("started id=%q model=%q created=%d usage=%+v", e.Started.ID, e.Started.Model, e.Started.Created.Unix(), e.Started.Usage)
	case execution.EventText:
		return fmt.Sprintf("text %q%s", e.Text, logprobs(e.Logprobs))
	case execution.EventReasoning:
		return fmt.Sprintf("reasoning %q signature=%q redacted=%q", e.Text, e.Signature, e.Redacted)
	case execution.EventToolCall:
		return fmt.Sprintf("call %d id=%q name=%q arguments=%q", e.Call.Index, e.Call.ID, e.Call.Name, e.Call.Arguments)
	case execution.EventRefusal:
		return fmt.Sprintf("refusal %q%s", e.Text, logprobs(e.Logprobs))
	case execution.EventAnnotation:
		return "annotation " + string(e.Annotation)
	case execution.EventUsage:
		return fmt.Sprintf("usage %+v", *e.Usage)
	case execution.EventFinish:
		return fmt.Sprintf("finish %s %q", e.Finish.Reason, e.Finish.StopWord)
	case execution.EventFailure:
		return fmt.Sprintf("failure %+v", *e.Failure)
	}
	return fmt.Sprintf("unknown %d", e.Kind)
}

func logprobs(raw json.RawMessage) string {
	if raw == nil {
		return ""
	}
	return " logprobs=" + string(raw)
}

// Golden compares each testdata/*.stream with the events beside it, read at once and cut at every byte.
func Golden(t *testing.T, newReader func() adapter.Reader) {
	streams, err := filepath.Glob("testdata/*.stream")
	if err != nil || len(streams) == 0 {
		t.Fatal("there are no streams", err)
	}
	for _, path := range streams {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".stream"), func(t *testing.T) {
			body, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			r := newReader()
			events, rerr := read(r, body)
			got := Lines(events, r.Usage(), rerr)
			golden := strings.TrimSuffix(path, ".stream") + ".events"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("events are\n%s\nwant\n%s", got, want)
			}
			chunkings(t, newReader, body)
		})
	}
}

// everyByte is up to which length a stream is cut at every byte; a longer one at every seventh.
const everyByte = 1200

// chunkings reads a stream cut in two everywhere, and byte by byte: the events must be those of it at once.
func chunkings(t *testing.T, newReader func() adapter.Reader, body []byte) {
	t.Helper()
	r := newReader()
	events, err := read(r, body)
	want := Lines(events, r.Usage(), err)
	check := func(where string, pieces ...[]byte) {
		t.Helper()
		r := newReader()
		events, err := read(r, pieces...)
		if got := Lines(events, r.Usage(), err); got != want {
			t.Fatalf("%s: events are\n%s\nwant\n%s", where, got, want)
		}
	}
	single := make([][]byte, len(body))
	for i := range body {
		single[i] = body[i : i+1]
		if len(body) <= everyByte || i%7 == 0 {
			check(fmt.Sprintf("cut at %d", i), body[:i], body[i:])
		}
	}
	check("byte by byte", single...)
}

// sound checks what must hold of the events of any stream, however broken, and that cutting it changes nothing.
func sound(t *testing.T, newReader func() adapter.Reader, body []byte) {
	t.Helper()
	r := newReader()
	events, err := read(r, body)
	var c execution.Collector
	finished := map[int]bool{}
	failed := false
	for i := range events {
		e := &events[i]
		if failed {
			t.Fatalf("event %d after the failure", i)
		}
		if e.Kind == execution.EventStarted && i > 0 {
			t.Fatalf("event %d says that it begins", i)
		}
		if choiceOf(e) && finished[e.Choice] {
			t.Fatalf("event %d is of a choice that has ended", i)
		}
		if err := c.Add(e); err != nil {
			t.Fatalf("event %d breaks the contract: %v", i, err)
		}
		finished[e.Choice] = finished[e.Choice] || e.Kind == execution.EventFinish
		failed = e.Kind == execution.EventFailure
	}
	for _, choice := range c.Result().Choices {
		for _, call := range choice.ToolCalls {
			if call.ID == "" || call.Name == "" {
				t.Fatalf("a call without id or name: %+v", call)
			}
		}
	}
	again := newReader()
	half := len(body) / 2
	others, oerr := read(again, body[:half], body[half:])
	if len(others) != len(events) || (err == nil) != (oerr == nil) || !reflect.DeepEqual(withoutIDs(others), withoutIDs(events)) {
		t.Fatalf("cut in two it is\n%s\nand else\n%s", Lines(others, again.Usage(), oerr), Lines(events, r.Usage(), err))
	}
}

func choiceOf(e *execution.Event) bool {
	switch e.Kind {
	case execution.EventStarted, execution.EventUsage, execution.EventFailure:
		return false
	}
	return true
}

// withoutIDs leaves out the ids that the adapter makes itself.
func withoutIDs(events []execution.Event) []execution.Event {
	for i := range events {
		events[i].Call.ID = ""
	}
	return events
}

// Huge holds that an event that never ends is given up, whatever the pieces it comes in. begin is how one begins.
func Huge(t *testing.T, newReader func() adapter.Reader, begin string) {
	t.Helper()
	r := newReader()
	piece := []byte(strings.Repeat("x", 64<<10))
	_, err := r.Push([]byte(begin), nil)
	for i := 0; err == nil && i < 32; i++ {
		_, err = r.Push(piece, nil)
	}
	if s, ok := errors.AsType[*adapter.StreamError](err); !ok || s.Code != execution.CodeResponseTooLarge {
		t.Errorf("it ends as %v", err)
	}
}

// Fuzz holds a reader to what must be true of any body, beginning with the golden ones in testdata.
func Fuzz(f *testing.F, newReader func() adapter.Reader) {
	f.Helper()
	streams, err := filepath.Glob("testdata/*.stream")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range streams {
		body, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) { sound(t, newReader, body) })
}
