package tunnel

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"iop/tunnel/wire"
)

// knownDetails are details with all that there is.
func knownDetails() *ModelDetails {
	return &ModelDetails{
		Size: 4912898304, Digest: strings.Repeat("ab", 32), Modified: 1764406800, Family: "qwen3", ParameterSize: "8.2B",
		Quantization: "Q4_K_M", Capabilities: []string{"completion", "tools"}, ContextLength: 40960,
	}
}

// What a Node says of a model's file arrives, and what it does not know is unknown at the Edge.
func TestModelDetailsArrive(t *testing.T) {
	var inv inventory
	info := models(2, func(i int) string { return "mn"[i : i+1] })
	info.Models[0].Details = knownDetails()
	info.Models[1].Details = &ModelDetails{}
	inv.set(info)
	r := newRigWith(t, echo, rigOptions{supervisor: func(cfg *SupervisorConfig) { cfg.Describe = inv.describe }})
	got := r.session().Info().Models
	if len(got) != 2 || !reflect.DeepEqual(got[0].Details, knownDetails()) || got[1].Details != nil {
		t.Errorf("models %+v, %+v", got, got[0].Details)
	}
	r.close()
	r.checkEmpty()
}

// Every field of the details crosses the wire: one that was forgotten would stay zero.
func TestModelDetailsAreComplete(t *testing.T) {
	var m wire.Model
	d := knownDetails()
	d.describe(&m)
	for i, v := 0, reflect.ValueOf(*parseDetails(&m)); i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("%s is lost", v.Type().Field(i).Name)
		}
	}
}

// A provider or a Node that lies about a file costs nobody the session, and nothing that it says is longer than it may
// be or does harm where it is shown.
func TestHostileModelDetails(t *testing.T) {
	long := strings.Repeat("\u00fc\x1b", 4<<10)
	hostile := &wire.Model{
		Provider: "p", Id: "m", Size: math.MinInt64, Digest: long, ModifiedUnix: math.MaxInt64, Family: long, ParameterSize: long,
		Quantization: long, ContextLength: -1,
		Capabilities: append([]string{"", "tools", strings.Repeat("x", 33), "a\nb"}, slices.Repeat([]string{"vision"}, 100)...),
	}
	var sent wire.Model
	(&ModelDetails{
		Size: hostile.Size, Digest: long, Modified: hostile.ModifiedUnix, Family: long, ParameterSize: long, Quantization: long,
		Capabilities: hostile.Capabilities, ContextLength: -1,
	}).describe(&sent)
	sent.Provider, sent.Id = "p", "m"
	for name, m := range map[string]*wire.Model{"a Node that lies": hostile, "a Node that passes lies on": &sent} {
		info := &NodeInfo{}
		if _, err := appendPage(info, &wire.NodeRefresh{Models: []*wire.Model{m}}, nil); err != nil || len(info.Models) != 1 {
			t.Fatalf("%s: %v", name, err)
		}
		d := info.Models[0].Details
		if d.Size != 0 || d.Modified != 0 || d.ContextLength != 0 || len(d.Capabilities) != 13 || d.Capabilities[0] != "tools" {
			t.Errorf("%s: %+v", name, d)
		}
		for text, limit := range map[string]int{d.Digest: 128, d.Family: 64, d.ParameterSize: 64, d.Quantization: 64} {
			if text == "" || len(text) > limit || !plain(text) || !utf8.ValidString(text) {
				t.Errorf("%s: %d bytes %q", name, len(text), text)
			}
		}
	}
	if sent.Size != 0 || len(sent.Digest) > 128 || len(sent.Capabilities) != 13 {
		t.Errorf("the Node sent %v", &sent)
	}
}
