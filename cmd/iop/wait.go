package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// waitShown is how long something may take before a person is told that it does.
const waitShown = time.Second

// onlyOnTerminal shows a line of progress if something takes long, and w is a terminal. What it returns ends that and
// takes the line away; it must be called, and may be called more than once.
func onlyOnTerminal(w io.Writer, what string) (stop func()) {
	if !isTerminal(w) {
		return func() {}
	}
	return showWait(w, what)
}

// showWait writes a line anew each second, from the first second on, until what it returns is called.
func showWait(w io.Writer, what string) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(waitShown)
		defer tick.Stop()
		begin, width := time.Now(), 0
		for {
			select {
			case <-done:
				if width > 0 {
					fmt.Fprintf(w, "\r%s\r", strings.Repeat(" ", width))
				}
				return
			case <-tick.C:
				line := fmt.Sprintf("%s, %s", what, brief(time.Since(begin)))
				width = max(width, len(line))
				fmt.Fprintf(w, "\r%-*s", width, line)
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(done)
		patience := time.NewTimer(waitShown)
		defer patience.Stop()
		select {
		case <-ended:
		case <-patience.C: // a terminal that is stopped (XOFF) must not keep the process
		}
	})
}

// progress is one line that is written anew, on a terminal only.
type progress struct {
	w     io.Writer // nil where it is no terminal
	width int
}

func newProgress(w io.Writer) *progress {
	if !isTerminal(w) {
		w = nil
	}
	return &progress{w: w}
}

func (p *progress) show(line string) {
	if p.w != nil {
		p.width = max(p.width, len(line))
		fmt.Fprintf(p.w, "\r%-*s", p.width, line)
	}
}

func (p *progress) clear() {
	if p.w != nil && p.width > 0 {
		fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", p.width))
	}
}
