package filewatch

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

const every = 10 * time.Second

// pair is a Watcher of two files, with what it took and refused.
type pair struct {
	*Watcher
	t        *testing.T
	a, b     string
	kept     [][]byte // the slices of the last call of Take
	taken    []string
	attempts int
	refusals []string
	fault    error // of Take
}

func newPair(t *testing.T) *pair {
	t.Helper()
	dir := t.TempDir()
	p := &pair{t: t, a: filepath.Join(dir, "a"), b: filepath.Join(dir, "b")}
	p.write(p.a, "a1")
	p.write(p.b, "b1")
	return p
}

func (p *pair) open() {
	p.t.Helper()
	var err error
	p.Watcher, err = Open(Config{
		Files: []File{{Path: p.a, Max: 8}, {Path: p.b, Max: 8, Private: true}},
		Take: func(contents [][]byte) error {
			p.attempts++
			if p.fault != nil {
				return p.fault
			}
			p.kept = contents
			p.taken = append(p.taken, string(bytes.Join(contents, []byte("+"))))
			return nil
		},
		Refused: func(err error) { p.refusals = append(p.refusals, err.Error()) },
		Settle:  time.Second,
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) write(path, content string) {
	p.t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// took returns what was taken so far.
func (p *pair) took() []string {
	p.loading.Lock()
	defer p.loading.Unlock()
	return slices.Clone(p.taken)
}

// TestSetsTakeEffectWhole: contents are taken when two looks have found the same, the second of them soon after the first, and are
// overwritten afterwards.
func TestSetsTakeEffectWhole(t *testing.T) {
	p := newPair(t)
	synctest.Test(t, func(t *testing.T) {
		p.open()
		for _, content := range p.kept {
			if len(content) != 2 || slices.Max(content) != 0 {
				t.Errorf("%q is left in memory", content)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { p.Run(ctx, every); close(done) }()
		time.Sleep(every / 2)
		p.write(p.a, "a2")
		time.Sleep(every/2 + 500*time.Millisecond) // one look
		p.write(p.b, "b2")                         // the other file comes before the second
		time.Sleep(time.Second)
		if took := p.took(); !slices.Equal(took, []string{"a1+b1"}) {
			t.Errorf("took %q before two looks found the same", took)
		}
		time.Sleep(time.Second)
		if took := p.took(); !slices.Equal(took, []string{"a1+b1", "a2+b2"}) {
			t.Errorf("took %q", took)
		}
		stop()
		<-done
	})
}

// TestFaultsAreReportedOnce: what is refused is tried again at each look, and reported once for each fault.
func TestFaultsAreReportedOnce(t *testing.T) {
	p := newPair(t)
	p.open()
	looks := func(n int) {
		for range n {
			p.Look()
		}
	}
	p.fault = errors.New("too early")
	p.write(p.a, "a2")
	looks(5)
	if p.attempts != 1+4 || !slices.Equal(p.refusals, []string{"too early"}) || p.Status().Fault != "too early" {
		t.Errorf("%d attempts, %q, %+v", p.attempts, p.refusals, p.Status())
	}
	if err := p.Reload(); err == nil || len(p.refusals) != 1 {
		t.Errorf("%v, %q", err, p.refusals)
	}
	p.fault = nil // its time has come
	looks(1)
	if p.Status() != (Status{}) || len(p.taken) != 2 {
		t.Errorf("%+v, took %q", p.Status(), p.taken)
	}
	if err := p.Reload(); err != nil || len(p.taken) != 2 {
		t.Errorf("%v; what is in force was taken again: %q", err, p.taken)
	}
}
