package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
)

// readAll returns the events as "type|id|data".
func readAll(r *EventReader) (all []string, err error) {
	for {
		e, err := r.Next()
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return all, err
		}
		all = append(all, e.Type+"|"+e.ID+"|"+string(e.Data))
	}
}

func TestEventReader(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []string
	}{
		{"data: a\n\ndata:b\n\ndata:  c\n\n", []string{"||a", "||b", "|| c"}},
		{"data: a\ndata: b\ndata\n\n", []string{"||a\nb\n"}},
		{"data: a\r\n\r\ndata: b\r\rdata: c\n\n", []string{"||a", "||b", "||c"}},
		{"event: x\ndata: a\n\ndata: b\n\n", []string{"x||a", "||b"}},
		{"event: x\n\ndata: b\n\n", []string{"||b"}},
		{"id: 7\ndata: a\n\ndata: b\n\nid\ndata: c\n\n", []string{"|7|a", "|7|b", "||c"}},
		{"id: a\x00b\ndata: a\n\n", []string{"||a"}},
		{": c\n:\ndata: a\n\n", []string{"||a"}},
		{"\ufeffdata: a\n\n", []string{"||a"}},
		{"data: a\n\n\ufeffdata: b\n\n", []string{"||a"}},
		{"data:\n\n", []string{"||"}},
		{"data\n\n", []string{"||"}},
		{"data: cut off\n", nil},
		{"data: cut off", nil},
		{": ping\nretry: 1500\n\n: ping\nretry: x\nretry: -1\ndata: a\n\n", []string{"||a"}},
		{"unknown: x\nDATA: y\n data: z\n\n", nil},
		{"", nil},
	} {
		for _, r := range []io.Reader{strings.NewReader(c.in), iotest.OneByteReader(strings.NewReader(c.in)), iotest.DataErrReader(strings.NewReader(c.in))} {
			got, err := readAll(NewEventReader(r))
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%q: %q %v, want %q", c.in, got, err, c.want)
			}
		}
	}
}

func TestEventReaderFaults(t *testing.T) {
	broken := errors.New("broken")
	if _, err := readAll(NewEventReader(io.MultiReader(strings.NewReader("data: a\n"), iotest.ErrReader(broken)))); !errors.Is(err, broken) {
		t.Errorf("the reader's error is lost: %v", err)
	}
	endless := io.MultiReader(strings.NewReader("data: "), endlessReader{})
	if _, err := readAll(NewEventReader(endless)); !errors.Is(err, ErrEventTooLarge) {
		t.Errorf("an endless line: %v", err)
	}
	if _, err := readAll(NewEventReader(io.MultiReader(endlessLines{}))); !errors.Is(err, ErrEventTooLarge) {
		t.Errorf("endless data lines: %v", err)
	}
}

// TestEventReaderIsPrompt: an event is out at its blank line, even one of CR, before another byte arrives.
func TestEventReaderIsPrompt(t *testing.T) {
	pr, pw := io.Pipe()
	defer pr.Close()
	go func() { _, _ = pw.Write([]byte("data: a\r\n\r")) }()
	if e, err := NewEventReader(pr).Next(); err != nil || string(e.Data) != "a" {
		t.Fatal(e, err)
	}
}

type endlessReader struct{}

func (endlessReader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

type endlessLines struct{}

func (endlessLines) Read(p []byte) (int, error) {
	return copy(p, "data: "+strings.Repeat("x", 8000)+"\n"), nil
}

var anyLine = regexp.MustCompile("\r\n|\r|\n")

// standard is the standard's algorithm, word for word and without any regard to speed.
func standard(in string) (events []string) {
	in = strings.TrimPrefix(in, "\ufeff")
	lines := anyLine.Split(in, -1)
	var data, typ, id string
	for _, line := range lines[:len(lines)-1] { // the last one has no end
		if line == "" {
			if data != "" {
				events = append(events, typ+"|"+id+"|"+strings.TrimSuffix(data, "\n"))
			}
			data, typ = "", ""
			continue
		}
		field, value, colon := strings.Cut(line, ":")
		if colon && field == "" {
			continue
		}
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "data":
			data += value + "\n"
		case "event":
			typ = value
		case "id":
			if !strings.Contains(value, "\x00") {
				id = value
			}
		}
	}
	return events
}

func FuzzEventReader(f *testing.F) {
	for _, g := range golden {
		f.Add(readStream(f, g.file))
	}
	f.Add([]byte("\ufeff:\r\rdata\revent:x\r\n\rid:\x00\ndata:  a\n\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		want := standard(string(in))
		for i, r := range []io.Reader{bytes.NewReader(in), iotest.OneByteReader(bytes.NewReader(in)), iotest.HalfReader(bytes.NewReader(in))} {
			got, err := readAll(NewEventReader(r))
			if err != nil || !slices.Equal(got, want) {
				t.Fatalf("reader %d: %q, %v; the standard says %q", i, got, err, want)
			}
		}
	})
}

func ExampleEventReader() {
	r := NewEventReader(strings.NewReader("event: greeting\ndata: hello\ndata: world\n\n"))
	e, _ := r.Next()
	fmt.Println(e.Type, strconv.Quote(string(e.Data)))
	// Output: greeting "hello\nworld"
}
