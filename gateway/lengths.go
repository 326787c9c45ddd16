package gateway

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"iop/execution"
)

const (
	// firstOutput is the length of an answer, in tokens, until a route has seen some.
	firstOutput = 256
	// lengthWindow is of how many answers of a Node the median is taken.
	lengthWindow = 32
	// lengthNodes bounds the Nodes that a route's lengths are kept of.
	lengthNodes = 64
)

// lengths is how long the answers of a route are. Nodes report that, so it is the median over owners of the median over each
// one's Nodes of each Node's median: neither a single answer, nor a single Node, however many runs it serves, nor a join token
// with many Nodes decides for the others. The zero value knows nothing. Any goroutine may call its methods.
type lengths struct {
	median atomic.Int64 // 0: none seen

	mu    sync.Mutex
	nodes []*nodeLengths
	count uint64 // answers seen
}

// nodeLengths are a Node's last answers.
type nodeLengths struct {
	owner  string // see registry.Owner
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

// learn takes in the length of one answer of an owner's Node.
func (l *lengths) learn(owner string, node execution.NodeID, tokens int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	n := l.ofLocked(owner, node)
	n.owner, n.heard = owner, l.count
	n.last[n.seen%lengthWindow] = max(tokens, 1)
	n.seen++
	var room [lengthWindow]int64
	n.median = lowerMedian(append(room[:0], n.last[:min(n.seen, lengthWindow)]...))
	l.median.Store(l.ofOwnersLocked())
}

// ofOwnersLocked is the median over owners.
func (l *lengths) ofOwnersLocked() int64 {
	slices.SortFunc(l.nodes, func(a, b *nodeLengths) int { return strings.Compare(a.owner, b.owner) })
	var owners, own [lengthNodes]int64
	count, n := 0, 0
	for i, at := range l.nodes {
		own[n] = at.median
		n++
		if i+1 == len(l.nodes) || l.nodes[i+1].owner != at.owner {
			owners[count] = lowerMedian(own[:n])
			count, n = count+1, 0
		}
	}
	return lowerMedian(owners[:count])
}

// ofLocked returns what is kept of a Node. Where there is no room for another one, the owner with most of them loses the one
// that was not heard of for longest.
func (l *lengths) ofLocked(owner string, node execution.NodeID) *nodeLengths {
	for _, n := range l.nodes {
		if n.node == node {
			return n
		}
	}
	n := &nodeLengths{owner: owner, node: node}
	if len(l.nodes) < lengthNodes {
		l.nodes = append(l.nodes, n)
		return n
	}
	oldest, most := 0, 0
	for i, at := range l.nodes {
		has := 0
		for _, other := range l.nodes {
			if other.owner == at.owner {
				has++
			}
		}
		if has > most || has == most && at.heard < l.nodes[oldest].heard {
			oldest, most = i, has
		}
	}
	l.nodes[oldest] = n
	return n
}

// lowerMedian sorts the list, which is not empty. Of two in the middle it is the less: too low an estimate is settled
// after the run, too high a one refuses it.
func lowerMedian(list []int64) int64 {
	slices.Sort(list)
	return list[(len(list)-1)/2]
}
