package nodeagent

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	// procDir is where the kernel shows processes, see proc(5).
	procDir = "/proc"
	// maxSocketTable bounds what is read of the table of sockets: more than a hundred thousand of them.
	maxSocketTable = 32 << 20
	// maxEnviron bounds what is read of a process's variables.
	maxEnviron = 1 << 20
	// listening is a socket's state in that table.
	listening = "0A"
)

// Why a process's variables can't be had.
var (
	errNoListener = errors.New("its process can't be found: it belongs to another user, runs in a container, or is not called ollama")
	errUnreadable = errors.New("its process can't be read")
)

// listenerEnviron returns the variables of the process called ollama that listens on the port of a loopback address. They may
// hold secrets: whoever gets them takes one value out.
func listenerEnviron(port uint16) ([]byte, error) {
	inodes, err := listeners(port)
	if err != nil {
		return nil, err
	}
	processes, err := filepath.Glob(procDir + "/[0-9]*")
	if err != nil {
		return nil, errUnreadable
	}
	for _, process := range processes {
		if name, err := os.ReadFile(process + "/comm"); err != nil || strings.TrimSpace(string(name)) != "ollama" {
			continue
		}
		if holds(process, inodes) {
			return readEnviron(process)
		}
	}
	return nil, errNoListener
}

// listeners returns the sockets that listen on the port of a loopback address, by their links' names.
func listeners(port uint16) (links []string, err error) {
	for _, table := range []string{"/net/tcp", "/net/tcp6"} {
		f, err := os.Open(procDir + table)
		if err != nil {
			continue // a kernel without IPv6
		}
		links = append(links, listenersIn(io.LimitReader(f, maxSocketTable), port)...)
		f.Close()
	}
	if len(links) == 0 {
		return nil, errNoListener
	}
	return links, nil
}

// listenersIn reads one of the kernel's tables.
func listenersIn(table io.Reader, port uint16) (links []string) {
	suffix := fmt.Sprintf(":%04X", port)
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		// sl local_address rem_address st queues timer retransmits uid timeout inode
		f := strings.Fields(lines.Text())
		if len(f) > 9 && f[3] == listening && strings.HasSuffix(f[1], suffix) && isHere(strings.TrimSuffix(f[1], suffix)) {
			links = append(links, "socket:["+f[9]+"]")
		}
	}
	return links
}

// isHere reports whether a socket of this address takes what comes to a loopback address. The kernel writes each word of an
// address as a number of the machine's own byte order; those here are of a little-endian one, as are all that Ollama runs on.
func isHere(address string) bool {
	switch address {
	case "00000000", strings.Repeat("0", 32), // any
		"00000000000000000000000001000000", // ::1
		"0000000000000000FFFF00000100007F": // ::ffff:127.0.0.1
		return true
	}
	return len(address) == 8 && strings.HasSuffix(address, "7F") // 127.0.0.0/8
}

// holds reports whether the process has one of the sockets open. Of another user's process nobody but root is told.
func holds(process string, links []string) bool {
	files, err := os.ReadDir(process + "/fd")
	if err != nil {
		return false
	}
	for _, f := range files {
		if _, err := strconv.Atoi(f.Name()); err != nil {
			continue
		}
		if link, err := os.Readlink(process + "/fd/" + f.Name()); err == nil && slices.Contains(links, link) {
			return true
		}
	}
	return false
}

func readEnviron(process string) ([]byte, error) {
	f, err := os.Open(process + "/environ")
	if err != nil {
		return nil, errUnreadable
	}
	defer f.Close()
	environ, err := io.ReadAll(io.LimitReader(f, maxEnviron))
	if err != nil {
		return nil, errUnreadable
	}
	return environ, nil
}
