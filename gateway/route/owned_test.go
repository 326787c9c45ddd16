package route_test

import (
	"testing"

	"iop/gateway/route"
)

// TestOtherSpellingOfRoute: Ollama's other spelling of a route's name is no model of its own, unless the file names it or the route is
// for whatever offers it.
func TestOtherSpellingOfRoute(t *testing.T) {
	t.Parallel()
	table, err := route.Parse("iop.yaml", []byte(`
routes:
  - model: big
    aliases: [gpt-4, "tagged:latest"]
    targets: [{model: "llama3.1:70b"}]
  - model: gold
    targets: [{node: gold-*, model: gold}]
  - model: any
  - model: "any7:latest"
    aliases: [any8]
    targets: [{model: any7}]
  - model: two
    targets: [{model: x}]
  - model: "two:latest"
    targets: [{model: y}]
`))
	if err != nil {
		t.Fatal(err)
	}
	for model, want := range map[string]string{
		"big:latest": "big", "gpt-4:latest": "big", "tagged": "big", "gold:latest": "gold", "any8:latest": "any7:latest",
		"any:latest": "", "any7": "", "two": "", "two:latest": "", "big:7b": "", "BIG": "", "x:latest": "",
	} {
		owner := ""
		if r := table.OwnedBy(model); r != nil {
			owner = r.Name
		}
		r := table.Resolve(model)
		if owner != want || (r == nil) != (want != "") {
			t.Errorf("%s belongs to %q, want %q; it is %v", model, owner, want, r)
		}
	}
}
