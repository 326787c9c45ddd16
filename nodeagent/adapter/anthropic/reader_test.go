package anthropic

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"iop/execution"
	"iop/nodeagent/adapter"
	"iop/nodeagent/adapter/adaptertest"
)

func newReader() adapter.Reader { return New().Reader(adapter.Spec{Model: "m"}) }

func TestGolden(t *testing.T) { adaptertest.Golden(t, newReader) }

// TestHugeEvent: an event that never ends is given up, whatever the pieces it comes in.
func TestHugeEvent(t *testing.T) {
	r := newReader()
	piece := []byte(strings.Repeat("x", 64<<10))
	_, err := r.Push([]byte("data: {\"id\":\""), nil)
	for i := 0; err == nil && i < 32; i++ {
		_, err = r.Push(piece, nil)
	}
	s, ok := err.(*adapter.StreamError)
	if !ok || s.Code != execution.CodeResponseTooLarge {
		t.Errorf("it ends as %v", err)
	}
}

func FuzzReader(f *testing.F) {
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
	f.Fuzz(func(t *testing.T, body []byte) { adaptertest.Sound(t, newReader, body) })
}
