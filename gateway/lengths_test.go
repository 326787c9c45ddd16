package gateway

import (
	"fmt"
	"testing"

	"iop/execution"
)

func TestLengths(t *testing.T) {
	var l lengths
	expect := func(what string, want int64) {
		t.Helper()
		if got := l.expected(); got != want {
			t.Errorf("%s: %d tokens are expected, want %d", what, got, want)
		}
	}
	learn := func(node execution.NodeID, lengths ...int64) {
		for _, n := range lengths {
			l.learn(string(node), node, n)
		}
	}
	expect("before any", firstOutput)
	learn("a", 100)
	expect("one answer", 100)
	learn("a", 1e9, 100)
	expect("with an outlier", 100)
	learn("liar", 1e9)
	expect("two Nodes that differ", 100)
	learn("b", 120)
	for range 1000 {
		learn("liar", 1e9)
	}
	expect("a Node that serves most runs", 120)
	for range lengthWindow {
		learn("a", 300)
		learn("b", 310)
	}
	expect("longer answers", 310)
	learn("liar", 0, -5)
	if l.expected() < 1 {
		t.Errorf("%d tokens are expected", l.expected())
	}
	for i := range 10 * lengthNodes {
		learn(execution.NodeID(fmt.Sprint(i)), 50)
	}
	expect("other Nodes", 50)
	if len(l.nodes) != lengthNodes {
		t.Errorf("%d Nodes are remembered", len(l.nodes))
	}
	if n := testing.AllocsPerRun(1000, func() { l.learn("0", "0", 5); l.expected() }); n > 0 {
		t.Errorf("%v allocations for an answer", n)
	}
}

// TestLengthsOfManyNodes: the Nodes of one join token are one voice, and push no others out, however many they are.
func TestLengthsOfManyNodes(t *testing.T) {
	t.Parallel()
	var l lengths
	for i := range 5 {
		l.learn("fleet", execution.NodeID(fmt.Sprint("honest", i)), 100)
	}
	l.learn("bound", "bound", 120)
	for range 3 {
		for i := range 2 * lengthNodes {
			l.learn("liar", execution.NodeID(fmt.Sprint("liar", i)), 1e9)
		}
		if got := l.expected(); got != 120 {
			t.Fatalf("%d tokens are expected, want 120", got)
		}
	}
	owners := map[string]int{}
	for _, n := range l.nodes {
		owners[n.owner]++
	}
	if len(l.nodes) != lengthNodes || owners["fleet"] != 5 || owners["bound"] != 1 {
		t.Errorf("kept are %v", owners)
	}
}
