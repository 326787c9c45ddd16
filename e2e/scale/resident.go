package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// residence is a process's resident set in bytes, by what the pages are of.
type residence struct {
	total   int64
	heap    int64 // of Go: objects and stacks
	program int64 // the binary, of which the kernel maps what was executed or read
	shared  int64 // mapped files: the index of the state's log
	rest    int64 // anonymous and outside Go's heap: the runtime's own books, and all that SQLite allocates
}

// Go puts its heap far below where the kernel maps what nobody gave an address, on 64-bit Linux.
const (
	goHeapFrom = 0x00c000000
	goHeapTo   = 0x7e0000000000
)

// residence reads /proc/PID/smaps.
func (p *process) residence() (residence, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", p.cmd.Process.Pid))
	if err != nil {
		return residence{}, err
	}
	return parseSmaps(data, filepath.Base(p.cmd.Path))
}

func parseSmaps(data []byte, program string) (r residence, err error) {
	var class *int64
	sc := bufio.NewScanner(bytes.NewReader(data))
	for sc.Scan() {
		fields := strings.Fields(sc.Text())
		if len(fields) >= 5 && strings.Contains(fields[0], "-") {
			if class, err = r.classOf(fields, program); err != nil {
				return r, err
			}
			continue
		}
		if len(fields) != 3 || fields[0] != "Rss:" || class == nil {
			continue
		}
		kib, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return r, fmt.Errorf("smaps: %w", err)
		}
		*class += kib << 10
		r.total += kib << 10
	}
	return r, sc.Err()
}

// classOf is where the pages of a mapping count. fields are those of its first line in smaps.
func (r *residence) classOf(fields []string, program string) (*int64, error) {
	from, _, _ := strings.Cut(fields[0], "-")
	start, err := strconv.ParseUint(from, 16, 64)
	if err != nil {
		return nil, fmt.Errorf("smaps: %w", err)
	}
	name := ""
	if len(fields) > 5 {
		name = fields[5]
	}
	switch {
	case filepath.Base(name) == program:
		return &r.program, nil
	case strings.HasPrefix(name, "/"):
		return &r.shared, nil
	case name == "" && start >= goHeapFrom && start < goHeapTo, strings.HasPrefix(name, "[anon: Go: heap"):
		return &r.heap, nil
	}
	return &r.rest, nil
}
