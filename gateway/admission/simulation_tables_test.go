//go:build tables

package admission

import (
	"testing"

	"iop/gateway/route"
)

// TestPoliciesTables prints the tables of docs/policies.md. It is a benchmark in virtual time, which only a test may have.
func TestPoliciesTables(t *testing.T) {
	all := []route.Policy{route.LeastBusy, route.Weighted, route.LowestWait, route.WarmFirst, route.PrefixAffinity}
	for _, load := range []struct {
		name string
		load func(uint64) *simLoad
	}{
		{"Shared prefixes, 8 slots", sharedPrefixes},
		{"Shared prefixes, 4 slots", fewSlots},
		{"A hot prefix at half the load", hotPrefix},
		{"Shared prefixes, more than the Nodes can take", tooMuch},
		{"Six models, two in memory", manyModels},
	} {
		results := measure(t, load.load, 5, all...)
		t.Logf("%s\n%s", load.name, table(results))
	}
}
