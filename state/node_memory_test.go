package state

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/execution"
)

func TestNodeMemory(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		seen := time.Now().UTC().Truncate(time.Millisecond)
		want := func(what string, want ...NodeMemory) {
			t.Helper()
			got, err := s.RememberedNodes(ctx)
			if err != nil || !reflect.DeepEqual(got, want) && len(got)+len(want) > 0 {
				t.Errorf("%s: %+v, %v; want %+v", what, got, err, want)
			}
		}
		note := func(nodes ...NodeMemory) {
			t.Helper()
			if err := s.RememberNodes(ctx, nodes); err != nil {
				t.Fatal(err)
			}
		}
		want("nothing was noted")
		a := NodeMemory{Node: "a", Seen: seen, Models: []string{"m", "\"quoted\", [é]"}}
		b := NodeMemory{Node: "b", Seen: seen.Add(-time.Hour), Cause: "connection_lost", Drained: "boot", Models: []string{}}
		note(b, a)
		want("two", a, b)
		note(NodeMemory{Node: "a", Seen: seen.Add(time.Second), Cause: "shutdown"}, NodeMemory{Node: "b", Seen: b.Seen, Models: []string{"n"}})
		a.Seen, a.Cause = seen.Add(time.Second), "shutdown"
		b.Cause, b.Drained, b.Models = "", "", []string{"n"}
		want("models stay unless they are named", a, b)
		note(NodeMemory{Node: "c", Seen: time.Now().Add(-NodeMemoryLife - time.Minute), Models: []string{"m"}})
		want("one that is too old", a, b)
		for range 2 {
			if err := s.ForgetNode(ctx, "a"); err != nil {
				t.Error(err)
			}
		}
		want("one is forgotten", b)
	})
}

// TestNodeMemoryIsBounded: neither a Node with ever new models nor ever new Nodes fill the state, or push out what others have.
func TestNodeMemoryIsBounded(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		now := time.Now()
		long := func(prefix string, bytes int) (names []string) {
			for i := range bytes / 103 {
				names = append(names, fmt.Sprintf("%s%0*d", prefix, 100-len(prefix), i))
			}
			return names
		}
		note := func(nodes ...NodeMemory) {
			t.Helper()
			if err := s.RememberNodes(t.Context(), nodes); err != nil {
				t.Fatal(err)
			}
		}
		note(NodeMemory{Node: "small", Seen: now, Models: []string{"m"}})
		greedy := make([]NodeMemory, 70)
		for i := range greedy {
			greedy[i] = NodeMemory{Node: execution.NodeID(fmt.Sprint("greedy-", i)), Seen: now, Models: long("x", 2*maxNodeModels), Cause: strings.Repeat("é", 600)}
		}
		note(greedy...)
		nodes, err := s.RememberedNodes(t.Context())
		if err != nil || len(nodes) != 71 {
			t.Fatalf("%d Nodes, %v", len(nodes), err)
		}
		total := 0
		for _, n := range nodes {
			bytes := 0
			for _, m := range n.Models {
				bytes += len(m) + 3
			}
			if total += bytes; bytes > maxNodeModels || len(n.Cause) > maxUsageText {
				t.Errorf("%s: %d bytes of models, %d of a cause", n.Node, bytes, len(n.Cause))
			}
			if n.Node == "small" && !slices.Equal(n.Models, []string{"m"}) {
				t.Errorf("others pushed out %v", n.Models)
			}
		}
		if total > maxNodeModelsAll || total < maxNodeModelsAll*9/10 {
			t.Errorf("%d bytes of models, the bound is %d", total, maxNodeModelsAll)
		}
		var crowd []NodeMemory
		for i := range maxNodesSeen {
			crowd = append(crowd, NodeMemory{Node: execution.NodeID(fmt.Sprint("crowd-", i)), Seen: now.Add(time.Second), Models: []string{}})
		}
		note(crowd...)
		if nodes, err = s.RememberedNodes(t.Context()); err != nil || len(nodes) != maxNodesSeen {
			t.Errorf("%d Nodes, %v", len(nodes), err)
		}
	})
}
