package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
)

// memoryPiece is how much of a process's memory is read at a time; pieces overlap by memoryOverlap, which is longer than
// anything that is looked for.
const (
	memoryPiece   = 4 << 20
	memoryOverlap = 16 << 10
)

// readMemory calls each with pieces of all memory that the process can write to, which overlap: its heap, stacks and
// variables. The process goes on meanwhile. A machine that does not allow it skips the test.
func (p *process) readMemory(t *testing.T, each func(piece []byte)) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.pid()))
	if err != nil {
		t.Fatal(err)
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", p.pid()))
	if errors.Is(err, os.ErrPermission) {
		t.Skip("this machine does not let a test read the memory of its own child")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	read := 0
	for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || !strings.HasPrefix(fields[1], "rw") {
			continue
		}
		from, to, ok := mapping(fields[0])
		if !ok {
			t.Fatalf("/proc/PID/maps: %s", lines.Text())
		}
		read += readMapping(memory, from, to, each)
	}
	if read < 1<<20 {
		t.Fatalf("%d bytes of memory could be read", read)
	}
}

func mapping(text string) (from, to int64, ok bool) {
	low, high, _ := strings.Cut(text, "-")
	from, errLow := strconv.ParseInt(low, 16, 64)
	to, errHigh := strconv.ParseInt(high, 16, 64)
	return from, to, errLow == nil && errHigh == nil
}

// readMapping reads what there is of a mapping: parts of it may be gone, or were never there.
func readMapping(memory io.ReaderAt, from, to int64, each func([]byte)) (read int) {
	piece := make([]byte, memoryPiece)
	for at := from; at < to; at += memoryPiece - memoryOverlap {
		n, err := memory.ReadAt(piece[:min(memoryPiece, to-at)], at)
		if n > 0 {
			each(piece[:n])
			read += n
		}
		if err != nil {
			break
		}
	}
	return read
}

// leasesInMemory returns the texts of the sealed leases that lie in the process's memory.
func (p *process) leasesInMemory(t *testing.T) (tokens []string) {
	t.Helper()
	seen := map[string]bool{}
	p.readMemory(t, func(piece []byte) {
		for rest := piece; ; {
			at := bytes.Index(rest, []byte(leaseBeginning))
			if at < 0 {
				return
			}
			rest = rest[at:]
			end := bytes.IndexFunc(rest, func(r rune) bool {
				return !(r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.')
			})
			if end < 0 {
				end = len(rest)
			}
			token := string(rest[:end])
			if strings.Count(token, ".") == 4 && len(token) > 1000 && !seen[token] {
				seen[token] = true
				tokens = append(tokens, token)
			}
			rest = rest[end:]
		}
	})
	return tokens
}

// findInMemory counts, for each form of a canary, how often it lies in the process's memory; with a little of what stands
// before the first few.
func (p *process) findInMemory(t *testing.T, forms []string) (count int, around []string) {
	t.Helper()
	p.readMemory(t, func(piece []byte) {
		for _, form := range forms {
			for from := 0; ; {
				at := bytes.Index(piece[from:], []byte(form))
				if at < 0 {
					break
				}
				at += from
				count++
				if len(around) < 8 {
					around = append(around, fmt.Sprintf("%.200q", piece[max(0, at-80):min(len(piece), at+len(form)+40)]))
				}
				from = at + len(form)
			}
		}
	})
	return count, around
}
