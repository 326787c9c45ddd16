package admin_test

import (
	"net/http"
	"strconv"
	"testing"
)

func host(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }

// TestWrongTokensAreLimited: who goes on guessing is told to wait; the right token is let in meanwhile, and no token is no guess.
func TestWrongTokensAreLimited(t *testing.T) {
	d := newDesk(t)
	limited := 0
	for range 30 {
		a := d.ask("GET", v1+"/status", "", with("Authorization", "Bearer adm-iop_x"))
		switch a.status {
		case 401:
			if limited > 0 {
				t.Fatal("the limit ended at once")
			}
		case 429:
			limited++
			if seconds, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || seconds < 1 || seconds > 11 {
				t.Errorf("Retry-After: %q", a.header.Get("Retry-After"))
			}
		default:
			t.Fatal(a.status)
		}
	}
	if limited == 0 {
		t.Error("30 wrong tokens, and no limit")
	}
	if a := d.ask("GET", v1+"/status", ""); a.status != 200 {
		t.Errorf("the right token: %d", a.status)
	}
	if a := d.ask("GET", v1+"/status", "", without("Authorization")); a.status != 401 {
		t.Errorf("no token: %d", a.status)
	}
}

// TestThreat61ReboundName: a page whose name was made to resolve to this machine reads nothing without the token. Without the
// check in open it reads the metrics.
func TestThreat61ReboundName(t *testing.T) {
	d := newDesk(t)
	for path, served := range map[string]int{"/metrics": 404, "/healthz": 200} { // this desk has no metrics
		for _, name := range []string{"evil.example", "evil.example:8481", "127.0.0.1.evil.example", "localhost.evil.example", "local.", "evil.example."} {
			want := 403
			if name == "local." { // one label
				want = served
			}
			if a := d.ask("GET", path, "", without("Authorization"), host(name)); a.status != want {
				t.Errorf("%s at %s: %d", path, name, a.status)
			}
			if a := d.ask("GET", path, "", host(name)); a.status != served {
				t.Errorf("%s at %s with the token: %d", path, name, a.status)
			}
		}
		for _, name := range []string{"127.0.0.1:8481", "[::1]:8481", "10.1.2.3", "localhost", "edge:8481", "edge.iop.svc.cluster.local", "Edge.Internal"} {
			if a := d.ask("GET", path, "", without("Authorization"), host(name)); a.status != served {
				t.Errorf("%s at %s: %d", path, name, a.status)
			}
		}
		if a := d.ask("GET", path, "", without("Authorization"), with("Sec-Fetch-Site", "cross-site")); a.status != 403 {
			t.Errorf("%s for another page: %d", path, a.status)
		}
	}
}
