package state

import (
	"errors"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"

	"iop/execution"
)

const testSerial = CertificateSerial("1f00ba")

func TestNodeLists(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		allowed := func(node execution.NodeID, serial CertificateSerial, want error) NodeAllow {
			t.Helper()
			allow, err := s.NodeAllowed(ctx, node, serial)
			if !errors.Is(err, want) || err != nil && !reflect.DeepEqual(allow, NodeAllow{}) {
				t.Errorf("NodeAllowed(%s, %s): %+v, %v; want %v", node, serial, allow, err, want)
			}
			return allow
		}
		allowed("gpu-1", testSerial, ErrNodeNotAllowed)
		set, err := s.AllowNode(ctx, NodeAllow{Node: "gpu-1", Profiles: []string{"bearer"}, Slots: []string{"openai*"}}, "ops")
		if err != nil || set.By != "ops" || set.Updated.IsZero() {
			t.Fatal(set, err)
		}
		if got := allowed("gpu-1", testSerial, nil); !reflect.DeepEqual(got, set) {
			t.Errorf("%+v, want %+v", got, set)
		}
		allowed("gpu-2", testSerial, ErrNodeNotAllowed)
		if _, err := s.AllowNode(ctx, NodeAllow{Node: "gpu-1"}, "ops2"); err != nil {
			t.Fatal(err)
		}
		if got := allowed("gpu-1", testSerial, nil); len(got.Profiles)+len(got.Slots) != 0 || got.By != "ops2" {
			t.Errorf("%+v", got)
		}
		for range 2 { // the second changes nothing
			if err := s.DenyNode(ctx, Denial{Serial: testSerial}, "ops"); err != nil {
				t.Fatal(err)
			}
		}
		allowed("gpu-1", testSerial, ErrNodeDenied)
		allowed("gpu-1", testSerial+"0", nil)
		if err := s.DenyNode(ctx, Denial{Node: "gpu-1"}, "ops"); err != nil {
			t.Fatal(err)
		}
		allowed("gpu-1", testSerial+"0", ErrNodeDenied)
		denials, err := s.Denials(ctx)
		if err != nil || len(denials) != 2 || denials[0].Node != "gpu-1" || denials[1].Serial != testSerial || denials[1].By != "ops" || denials[0].At.IsZero() {
			t.Errorf("%+v, %v", denials, err)
		}
		if err := s.UndenyNode(ctx, Denial{Node: "gpu-1"}, "ops"); err != nil {
			t.Error(err)
		}
		allowed("gpu-1", testSerial, ErrNodeDenied) // still its certificate
		if err := s.UndenyNode(ctx, Denial{Serial: testSerial}, "ops"); err != nil {
			t.Error(err)
		}
		allowed("gpu-1", testSerial, nil)
		if err := s.DisallowNode(ctx, "gpu-1", "ops"); err != nil {
			t.Error(err)
		}
		allowed("gpu-1", testSerial, ErrNodeNotAllowed)
		if err := errors.Join(s.DisallowNode(ctx, "gpu-1", "ops"), s.UndenyNode(ctx, Denial{Node: "gpu-1"}, "ops")); !errors.Is(err, ErrNotFound) {
			t.Errorf("%v", err)
		}
		entries, _ := auditPage(t, s, AuditQuery{})
		var got []string
		for _, e := range slices.Backward(entries) {
			got = append(got, e.Action.String()+":"+string(e.Node)+e.Subject)
		}
		want := "node_allowed:gpu-1 node_allowed:gpu-1 node_denied:1f00ba node_denied:gpu-1 node_undenied:gpu-1 node_undenied:1f00ba node_disallowed:gpu-1"
		if text := strings.Join(got, " "); text != want {
			t.Errorf("audit %s\nwant  %s", text, want)
		}
	})
}

// A Node's name that looks like a serial number, and the reverse, are not each other.
func TestDenialKinds(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	for _, node := range []execution.NodeID{"1f00ba", "n"} {
		if _, err := s.AllowNode(t.Context(), NodeAllow{Node: node}, "ops"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.DenyNode(t.Context(), Denial{Node: "1f00ba"}, "ops"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.NodeAllowed(t.Context(), "n", testSerial); err != nil {
		t.Errorf("a certificate with a denied Node's name as its number: %v", err)
	}
}

func TestNodeListFaults(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	ctx := t.Context()
	many := slices.Repeat([]string{"a"}, 101)
	for field, allow := range map[string]NodeAllow{
		"node": {Node: "a b"}, "profiles": {Node: "n", Profiles: []string{"["}}, "slots": {Node: "n", Slots: []string{""}},
		"slots ": {Node: "n", Slots: many}, "profiles ": {Node: "n", Profiles: many},
	} {
		_, err := s.AllowNode(ctx, allow, "ops")
		if fault, ok := errors.AsType[*SpecError](err); !ok || fault.Field != strings.TrimSpace(field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, denial := range []Denial{{}, {Node: "n", Serial: "1"}, {Node: "a b"}, {Serial: "01"}, {Serial: "1F"}, {Serial: "xyz"}} {
		if s.DenyNode(ctx, denial, "ops") == nil || s.UndenyNode(ctx, denial, "ops") == nil {
			t.Errorf("%+v is taken", denial)
		}
	}
	if _, err := s.AllowNode(ctx, NodeAllow{Node: "n"}, ""); err == nil {
		t.Error("allowed by nobody")
	}
	if s.DenyNode(ctx, Denial{Node: "n"}, "") == nil || s.UndenyNode(ctx, Denial{Node: "n"}, "") == nil || s.DisallowNode(ctx, "n", "") == nil {
		t.Error("changed by nobody")
	}
	if _, err := s.AllowNode(ctx, NodeAllow{Node: "n"}, "ops"); err != nil {
		t.Fatal(err)
	}
	for _, serial := range []CertificateSerial{"", "0", "00ff", "FF", "-1", "' OR 1=1"} { // whoever forgets it is not let in
		if _, err := s.NodeAllowed(ctx, "n", serial); err == nil {
			t.Errorf("allowed with serial %q", serial)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.NodeAllowed(ctx, "n", "1"); err == nil || errors.Is(err, ErrNodeNotAllowed) {
		t.Errorf("without a database: %v", err)
	}
}

func TestNodeAllowAllows(t *testing.T) {
	allow := NodeAllow{Profiles: []string{"bearer", "az*"}, Slots: []string{"team-?", "shared"}}
	for names, want := range map[[2]string]bool{
		{"bearer", "team-a"}: true, {"azure", "shared"}: true, {"bearer", "team-aa"}: false, {"other", "shared"}: false,
		{"bearer", ""}: false, {"", "shared"}: false, {"Bearer", "shared"}: false,
	} {
		if got := allow.Allows(execution.ProfileName(names[0]), execution.SlotName(names[1])); got != want {
			t.Errorf("%q: %v", names, got)
		}
	}
	for _, nothing := range []NodeAllow{{}, {Profiles: []string{"*"}}, {Slots: []string{"*"}}} {
		if nothing.Allows("bearer", "team-a") {
			t.Errorf("%+v allows", nothing)
		}
	}
	if all := (NodeAllow{Profiles: []string{"*"}, Slots: []string{"*"}}); !all.Allows("p", "s") || all.Allows("", "") {
		t.Error("everything")
	}
}

func TestCertificateSerial(t *testing.T) {
	n, ok := new(big.Int).SetString("ab00cdef0123456789abcdef01234567", 16)
	if !ok {
		t.Fatal("no number")
	}
	for _, text := range []string{"AB:00:CD:EF:01:23:45:67:89:AB:CD:EF:01:23:45:67", "00ab00cdef0123456789abcdef01234567", string(SerialOf(n))} {
		if serial, err := ParseCertificateSerial(text); err != nil || serial != SerialOf(n) {
			t.Errorf("%s: %s, %v", text, serial, err)
		}
	}
	for _, text := range []string{"", "0", "00:00", "xyz", "0x12", "-5", "12 34", strings.Repeat("f", 43)} {
		if serial, err := ParseCertificateSerial(text); err == nil {
			t.Errorf("%q is %s", text, serial)
		}
	}
	if SerialOf(big.NewInt(0)).Validate() == nil || SerialOf(big.NewInt(-5)).Validate() == nil || SerialOf(big.NewInt(255)) != "ff" {
		t.Error("odd numbers")
	}
}

func BenchmarkNodeAllowed(b *testing.B) {
	s := openURL(b, fileURL(b))
	if _, err := s.AllowNode(b.Context(), NodeAllow{Node: "gpu-1", Profiles: []string{"*"}, Slots: []string{"team-*"}}, "ops"); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.NodeAllowed(b.Context(), "gpu-1", testSerial); err != nil {
			b.Fatal(err)
		}
	}
}
