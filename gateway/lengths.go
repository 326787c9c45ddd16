package gateway

import (
	"slices"
	"sync"
	"sync/atomic"

	"iop/execution"
)

const (
	// firstOutput is the length of an answer, in tokens, until a route has seen some.
	firstOutput = 256
	// lengthWindow is of how many answers of a Node the median is taken.
	lengthWindow = 32
	// lengthNodes bounds the Nodes that a route's lengths are kept of; the one not heard of for longest makes room.
	lengthNodes = 64
)

// lengths is how long the answers of a route are. Nodes report that, so it is the median over Nodes of each one's
// median: neither a single answer nor a single Node, however many runs it serves, decides for the others. The zero value
// knows nothing. Any goroutine may call its methods.
type lengths struct {
	median atomic.Int64 // 0: none seen

	mu    sync.Mutex
	nodes []*nodeLengths
	count uint64 // answers seen
}

// nodeLengths are a Node's last answers.
type nodeLengths struct {
	node   execution.NodeID
	last   [lengthWindow]int64
	seen   int
	median int64
	heard  uint64 // lengths.count of the last one
}

// expected is how long an answer is, in tokens, as far as is known; at least 1.
func (l *lengths) expected() int64 {
	if n := l.median.Load(); n > 0 {
		return n
	}
	return firstOutput
}

// learn takes in the length of one answer of a Node.
func (l *lengths) learn(node execution.NodeID, tokens int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	n := l.ofLocked(node)
	n.heard = l.count
	n.last[n.seen%lengthWindow] = max(tokens, 1)
	n.seen++
	var room [lengthWindow]int64
	n.median = lowerMedian(append(room[:0], n.last[:min(n.seen, lengthWindow)]...))
	var all [lengthNodes]int64
	for i, n := range l.nodes {
		all[i] = n.median
	}
	l.median.Store(lowerMedian(all[:len(l.nodes)]))
}

// ofLocked returns what is kept of a Node.
func (l *lengths) ofLocked(node execution.NodeID) *nodeLengths {
	oldest := 0
	for i, n := range l.nodes {
		if n.node == node {
			return n
		}
		if n.heard < l.nodes[oldest].heard {
			oldest = i
		}
	}
	n := &nodeLengths{node: node}
	if len(l.nodes) < lengthNodes {
		l.nodes = append(l.nodes, n)
	} else {
		l.nodes[oldest] = n
	}
	return n
}

// lowerMedian sorts the list, which is not empty. Of two in the middle it is the less: too low an estimate is settled
// after the run, too high a one refuses it.
func lowerMedian(list []int64) int64 {
	slices.Sort(list)
	return list[(len(list)-1)/2]
}
