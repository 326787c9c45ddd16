package identity

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestParseID(t *testing.T) {
	for _, s := range []string{
		"spiffe://example.org/edge/main", "spiffe://iop/node/gpu-1", "spiffe://a_b.c-d.9/node/A.b_c-9",
		"spiffe://example.org/node/" + strings.Repeat("x", MaxNameLength), "spiffe://example.org/node/...",
	} {
		id, err := ParseID(s)
		if err != nil || id.String() != s {
			t.Errorf("%s: %q, %v", s, id, err)
		}
		if again, err := NewID(id.TrustDomain(), id.Role(), id.Name()); err != nil || again != id {
			t.Errorf("%s: put together again: %q, %v", s, again, err)
		}
	}
	for _, s := range []string{
		"", "spiffe://", "spiffe:///node/x", "spiffe://example.org", "spiffe://example.org/", "spiffe://example.org/node",
		"spiffe://example.org/node/", "spiffe://example.org/node/x/", "spiffe://example.org//node/x", "spiffe://example.org/node//x",
		"spiffe://example.org/node/.", "spiffe://example.org/node/..", "spiffe://example.org/Node/x", "spiffe://example.org/nodes/x",
		"SPIFFE://example.org/node/x", "spiffe://Example.org/node/x", "spiffe://example.org:1/node/x", "spiffe://a@example.org/node/x",
		"spiffe://example.org/node/x?", "spiffe://example.org/node/x#", "spiffe://example.org/node/x y", "spiffe://example.org/node/x:1",
		"spiffe://example.org/node/%78", "spiffe://example.org/node/x\n", " spiffe://example.org/node/x", "spiffe://example.org/node/ü",
		"spiffe://.example.org/node/x", "spiffe://example..org/node/x", "spiffe://example.org./node/x", "spiffe://-a/node/x",
		"spiffe://127.0.0.1/node/x", "spiffe://*.example.org/node/x", "spiffe://example.org/node/*",
		"spiffe://example.org/node/" + strings.Repeat("x", MaxNameLength+1), "spiffe://" + strings.Repeat("a", 64) + "/node/x",
		"spiffe://" + strings.Repeat("a.", 128) + "a/node/x",
	} {
		if id, err := ParseID(s); err == nil {
			t.Errorf("%q was taken for %q", s, id)
		}
	}
}

func TestIDInConfiguration(t *testing.T) {
	var config struct{ ID ID }
	if err := json.Unmarshal([]byte(`{"ID":"spiffe://example.org/node/gpu-1"}`), &config); err != nil || config.ID != nodeID {
		t.Errorf("%q, %v", config.ID, err)
	}
	if err := json.Unmarshal([]byte(`{"ID":"node/gpu-2"}`), &config); err == nil || config.ID != nodeID {
		t.Errorf("%q, %v", config.ID, err)
	}
	var zero ID
	if zero.Validate() == nil || zero.Name() != "" || zero.Role() != "" || zero.TrustDomain() != "" {
		t.Error("the zero ID is somebody")
	}
}

// TestReasonsHaveNames: each value of the closed list is a label of its own.
func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{"invalid": true, "": true}
	for _, r := range Reasons() {
		if seen[r.String()] {
			t.Errorf("reason %d is called %q", r, r)
		}
		seen[r.String()] = true
	}
	if !seen[NotAllowed.String()] || Reason(0).String() != "invalid" || Reason(200).String() != "invalid" {
		t.Error("the list is not whole")
	}
}

func FuzzParseID(f *testing.F) {
	for _, s := range []string{string(edgeID), string(nodeID), "spiffe://a/node/..", "spiffe://A/node/x", "spiffe://a/node/x/y", "https://a/node/x", "spiffe://[::1]/node/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(s)
		if err != nil {
			if id != "" {
				t.Fatalf("%q: %v, and still %q", s, err, id)
			}
			return
		}
		if string(id) != s {
			t.Fatalf("%q became %q: there is more than one spelling", s, id)
		}
		again, err := NewID(id.TrustDomain(), id.Role(), id.Name())
		if err != nil || again != id {
			t.Fatalf("%q is made of parts that make %q: %v", s, again, err)
		}
		// What url and x509 make of it is the same: no other reader sees another name.
		if u := uris(s)[0]; u.String() != s || u.Host != string(id.TrustDomain()) || u.Path != "/"+string(id.Role())+"/"+id.Name() {
			t.Fatalf("%q is %q to net/url", s, u)
		}
	})
}
