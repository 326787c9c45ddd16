package route

import (
	"slices"
	"strings"
	"testing"
)

// TestFirstRouteShutsOutNothing: a file that names one model leaves all others as they were without a file.
func TestFirstRouteShutsOutNothing(t *testing.T) {
	t.Parallel()
	table := parse(t, "routes: [{model: fast, targets: [{model: m}]}]")
	for _, model := range []string{"m", "other"} {
		if r := table.Resolve(model); r == nil || !r.Advertised {
			t.Errorf("%s: %+v", model, r)
		}
	}
	table = parse(t, "advertised_models: refuse\nroutes: [{model: fast, targets: [{model: m}]}]")
	for _, model := range []string{"m", "other"} {
		if r := table.Resolve(model); r != nil {
			t.Errorf("%s, refused: %+v", model, r)
		}
	}
}

// TestTargetsOfLimitedRoutesAreReserved: whoever a route limits can't get round it by its targets' own names.
func TestTargetsOfLimitedRoutesAreReserved(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, route, limits string }{
		{"principals", "principals: [a]", "principals"},
		{"a pattern that may be all", "principals: ['**']", "principals"},
		{"everyone by name", "principals: ['*']", ""},
		{"caps", "parameters: {caps: {temperature: 1}}", "caps"},
		{"refused members", "parameters: {refuse: [num_gpu]}", "refuse"},
		{"defaults", "parameters: {defaults: {temperature: 1}, allow: [provider]}", ""},
		{"total", "timeouts: {total: 1m}", "timeouts.total"},
		{"other timeouts", "timeouts: {queue: 1m, first_byte: 2m}", ""},
		{"queue", "queue_limit: 3", "queue_limit"},
		{"all", "principals: [a], parameters: {caps: {n: 1}}, timeouts: {total: 1s}, queue_limit: 1", "principals caps timeouts.total queue_limit"},
		{"nothing", "policy: weighted", ""},
	} {
		text := "routes: [{model: free, targets: [{model: Qwen:Latest}]}, {model: fast, " + c.route + ", groups: [{targets: [{model: Qwen}]}, {targets: [{node: x, model: big:70b}]}]}]"
		table := parse(t, text)
		fast := table.Routes()[1]
		if got := strings.Join(table.Limits(fast), " "); got != c.limits {
			t.Errorf("%s: limits %q", c.name, got)
		}
		if fast.Limited() != (c.limits != "") || table.Routes()[0].Limited() || table.Resolve("other").Limited() {
			t.Errorf("%s: limited %v", c.name, fast.Limited())
		}
		for _, model := range []string{"Qwen", "qwen", "Qwen:latest", "QWEN:LATEST", "big:70b", "BIG:70b", "big:70b:latest"} {
			r, by := table.Resolve(model), table.ReservedFor(model)
			if c.limits == "" && (r == nil || !r.Advertised || by != nil) || c.limits != "" && (r != nil || by != fast) {
				t.Errorf("%s: %s is %+v, reserved for %+v", c.name, model, r, by)
			}
		}
		for _, model := range []string{"qwen:7b", "big", "other", "x/qwen"} {
			if r := table.Resolve(model); r == nil || !r.Advertised {
				t.Errorf("%s: %s is %+v", c.name, model, r)
			}
		}
		if got, want := table.Reserved(), map[bool][]string{true: {"Qwen", "Qwen:Latest", "big:70b"}, false: nil}[c.limits != ""]; !slices.Equal(got, want) {
			t.Errorf("%s: reserved %q", c.name, got)
		}
	}
}

// TestReservedNames: routes that name a model decide for themselves, and the file's defaults limit everybody alike.
func TestReservedNames(t *testing.T) {
	t.Parallel()
	table := parse(t, "routes: [{model: big, principals: [a], targets: [{model: m}]}, {model: m}]")
	if r := table.Resolve("m"); r != table.Routes()[1] || table.ReservedFor("m") != nil || table.Resolve("m:latest") != nil {
		t.Errorf("%+v", r)
	}
	table = parse(t, "defaults: {timeouts: {total: 1m}, queue_limit: 5}\nroutes: [{model: a, targets: [{model: m}]}, {model: b, timeouts: {total: 2m}, queue_limit: 6, targets: [{model: m}]}]")
	if r := table.Resolve("m"); r == nil || r.Timeouts.Total == 0 || r.QueueLimit != 5 {
		t.Errorf("%+v", r)
	}
	// A route without targets has its own name as one, and keeps the other spelling of it.
	table = parse(t, "routes: [{model: llama3.2, principals: [a]}]")
	if r := table.Resolve("llama3.2:latest"); r != nil {
		t.Errorf("%+v", r)
	}
	slot, err := Parse("f", []byte("routes: [{model: chat, targets: [{model: gpt-4o, slot: s}]}]"), Managed(true))
	if err != nil || slot.Resolve("gpt-4o") != nil || strings.Join(slot.Limits(slot.Routes()[0]), " ") != "slot" || !slot.Routes()[0].Limited() {
		t.Errorf("%v: a model is called without the credential of its target", err)
	}
}
