package nodeagent

import (
	"context"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"iop/execution"
	"iop/tunnel/wire"
)

func TestAccepts(t *testing.T) {
	p, err := newProvider(ProviderSpec{ID: "p", URL: "https://h.example/openai/v1/", Models: []string{"m"}, Slots: []string{"openai-*", "x?"}})
	if err != nil {
		t.Fatal(err)
	}
	for slot, want := range map[execution.SlotName]bool{
		"openai-1": true, "openai-": true, "xy": true, "x": false, "xyz": false, "my-openai-1": false, "": false, "openai-/": false, "x\n": false,
	} {
		if p.accepts(slot) != want {
			t.Errorf("%q: want %v", slot, want)
		}
	}
	if p.lease != "https://h.example/openai" {
		t.Errorf("its leases are for %s", p.lease)
	}
}

// TestPrivateAddressThreat44: where leased credentials go, a public name leads to no private address. Seen to fail
// without the call of checkPublic in control.
func TestPrivateAddressThreat44(t *testing.T) {
	for _, tt := range []struct {
		host, addr string
		ok         bool
	}{
		{"api.example.com", "203.0.113.7", true},
		{"api.example.com", "2001:db8::1", true},
		{"api.example.com", "10.0.0.7", false},
		{"api.example.com", "172.16.0.1", false},
		{"api.example.com", "::ffff:192.168.1.1", false},
		{"api.example.com", "fd12::1", false},
		{"api.example.com", "100.64.0.1", false},
		{"api.example.com", "127.0.0.1", false},
		{"api.example.com", "169.254.169.254", false},
		{"api.example.com", "fe80::1%eth0", false},
		{"api.example.com", "100.100.100.200", false},
		{"gpu1", "10.0.0.7", true},
		{"gpu.internal", "fd12::1", true},
		{"gpu.internal", "169.254.169.254", false},
		{"10.0.0.7", "10.0.0.7", true},
		{"203.0.113.7", "10.0.0.7", false},
	} {
		d := newDialer(&url.URL{Scheme: "https", Host: tt.host}, nil)
		d.leased = true
		address := net.JoinHostPort(tt.addr, "443")
		if err := d.control(context.Background(), "tcp", address, nil); (err == nil) != tt.ok {
			t.Errorf("%s at %s: %v, want ok %v", tt.host, tt.addr, err, tt.ok)
		}
		d.leased = false
		if err := d.control(context.Background(), "tcp", address, nil); (err == nil) != (checkAddress(tt.host, netip.MustParseAddr(tt.addr)) == nil) {
			t.Errorf("%s at %s without slots: %v", tt.host, tt.addr, err)
		}
	}
}

// TestProviderAuthority: a provider under an authority of its own is reached with ca=, and without it is not.
func TestProviderAuthority(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, unaryAnswer) }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	spec := ProviderSpec{ID: "p", URL: s.URL, Capacity: 1, CAFile: file}
	if end := serveNow(t, testAgent(t, spec), chatRun(false)); end.Outcome != execution.Completed {
		t.Errorf("with its authority: %+v", end)
	}
	spec.CAFile = ""
	if end := serveNow(t, testAgent(t, spec), chatRun(false)); end.Code != execution.CodeProviderUnreachable {
		t.Errorf("with the system's: %+v", end)
	}
	for content, want := range map[string]string{"": "no certificate", "x": "no certificate", strings.Repeat("x", maxRootsFile+1): "more than"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		spec.CAFile = file
		if _, err := newProvider(spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.10q: %v", content, err)
		}
	}
}

// TestSlotsProviderIsNotQuestioned: one that refuses everybody without a key is alive and offers what is written down.
func TestSlotsProviderIsNotQuestioned(t *testing.T) {
	asked := map[string]int{}
	spec := httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
		asked[r.URL.Path]++
		w.WriteHeader(http.StatusUnauthorized)
	})
	spec.Models, spec.Slots = []string{"m"}, []string{"s"}
	p, _ := looked(t, spec)
	info, offered := p.describe()
	if info.Health != wire.Health_HEALTH_OK || len(offered) != 1 || offered[0].ID != "m" || !offered[0].Loaded || info.Adapter != "openai" {
		t.Errorf("%+v %+v", info, offered)
	}
	if len(asked) != 1 || asked[pathModels] != 1 {
		t.Errorf("asked %v", asked)
	}
}

// TestTokenModeHasNoLeases: neither a slot in its configuration, nor a run.
func TestTokenModeHasNoLeases(t *testing.T) {
	spec := ProviderSpec{ID: "p", URL: "http://127.0.0.1:1", Models: []string{"m"}, Slots: []string{"s"}}
	if _, err := New(Config{Edge: "ws://h", Name: "n", Providers: []ProviderSpec{spec}}); err == nil || !strings.Contains(err.Error(), "managed mode") {
		t.Errorf("New: %v", err)
	}
	r := chatRun(false)
	r.open.ExpectsLease, r.open.Lease = true, &wire.LeaseBinding{Slot: "s"}
	a := testAgent(t, spec)
	if end := serveNow(t, a, r); end.Outcome != execution.Rejected || end.Code != execution.CodeUnsupported {
		t.Errorf("with a lease: %+v", end)
	}
	if end := serveNow(t, a, chatRun(false)); end.Outcome != execution.Rejected || end.Code != execution.CodeUnsupported || a.leases.Missing() != 1 {
		t.Errorf("without a lease: %+v", end)
	}
}
