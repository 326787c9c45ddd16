package tunnel

import (
	"strings"
	"testing"

	"iop/tunnel/wire"
)

func TestPlain(t *testing.T) {
	for _, good := range []string{"", "llama3.2:1b", "org/模型-7b", "Ünïcode é", "a b"} {
		if !plain(good) {
			t.Errorf("%q is refused", good)
		}
	}
	for _, bad := range []string{"\x1b[31mred", "a\nb", "a\tb", "\x7f", "\u009b0m", "a\u202eb", "\u200b", "\ufeff", "\xff", "a\u2028b"} {
		if plain(bad) {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestTruncate(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"plain", 10, "plain"}, {"plain", 3, "pla"}, {"é", 1, ""}, {"aé", 2, "a"},
		{"a\x1b]0;x\a", 20, "a\uFFFD]0;x\uFFFD"}, {"a\xffb", 20, "a\uFFFDb"}, {"a\nb", 3, "a"},
	} {
		if got := truncate(c.in, c.n); got != c.want {
			t.Errorf("truncate(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
}

// TestHostileNames: a name that could not be shown safely is refused where the Node makes it up, and left out where it
// only passes it on.
func TestHostileNames(t *testing.T) {
	const bad = "x\x1b[2J"
	info := &NodeInfo{}
	page := &wire.NodeRefresh{
		Providers: []*wire.Provider{{Id: "p", Adapter: "openai", Capacity: 1}},
		Models:    []*wire.Model{{Provider: "p", Id: "m"}, {Provider: "p", Id: bad}, {Provider: "p", Id: "n", OwnedBy: bad}},
	}
	if _, err := appendPage(info, page, nil); err != nil || len(info.Models) != 1 || info.Models[0].ID != "m" {
		t.Errorf("%+v, %v", info.Models, err)
	}
	for name, p := range map[string]*wire.Provider{
		"id": {Id: bad, Adapter: "openai", Capacity: 1}, "adapter": {Id: "p", Adapter: bad, Capacity: 1},
	} {
		if _, err := appendPage(&NodeInfo{}, &wire.NodeRefresh{Providers: []*wire.Provider{p}}, nil); err == nil {
			t.Errorf("a provider's %s is accepted", name)
		}
	}
	good := func() *wire.RegisterRequest {
		return &wire.RegisterRequest{ProtocolVersions: []uint32{wire.ProtocolVersion}, NodeName: "n", BootId: "b"}
	}
	if err := checkRegister(good()); err != nil {
		t.Fatal(err)
	}
	boot, label := good(), good()
	boot.BootId, label.Labels = bad, map[string]string{"gpu": bad}
	for _, r := range []*wire.RegisterRequest{boot, label} {
		if err := checkRegister(r); err == nil || strings.Contains(err.Error(), bad) {
			t.Errorf("%v: %v", r, err)
		}
	}
}

// TestHostileHead: what would not be a header field of HTTP (RFC 9110, section 5.5) is no head.
func TestHostileHead(t *testing.T) {
	for _, h := range []*wire.Header{
		{Name: "content-type", Value: "a\r\nset-cookie: x"}, {Name: "x\n", Value: "a"}, {Name: "", Value: "a"}, {Name: "a b", Value: "a"}, {Name: "a", Value: "\x00"},
	} {
		if validHead(&wire.Head{Status: 200, Headers: []*wire.Header{h}}) == nil {
			t.Errorf("%q: %q is accepted", h.Name, h.Value)
		}
	}
	if err := validHead(&wire.Head{Status: 200, Headers: []*wire.Header{{Name: "content-type", Value: "text/plain;\tcharset=\"utf-8\" é"}}}); err != nil {
		t.Error(err)
	}
}
