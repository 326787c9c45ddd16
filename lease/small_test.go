package lease

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
)

func TestParseTarget(t *testing.T) {
	for address, want := range map[string]Target{
		"https://api.example.com":           "https://api.example.com",
		"HTTPS://API.Example.com/":          "https://api.example.com",
		"https://api.example.com:443/v1/":   "https://api.example.com",
		"http://127.0.0.1:80":               "http://127.0.0.1",
		"http://127.0.0.1:8000/v1":          "http://127.0.0.1:8000",
		"http://[::1]:8000/base/v1":         "http://[::1]:8000/base",
		"https://host:80/a/b":               "https://host:80/a/b",
		"https://host/v1/x":                 "https://host/v1/x",
		"https://openrouter.example/api/v1": "https://openrouter.example/api",
	} {
		got, err := ParseTarget(address)
		if err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", address, got, err, want)
		}
		if got.Validate() != nil {
			t.Errorf("%s is not in its own spelling", got)
		}
	}
	for _, address := range []string{
		"", "host", "//host", "ftp://host", "https://", "https://:80", "https://host:", "https://host:0", "https://host:08", "https://host:65536",
		"https://host:x", "https://host/v1/v1", "https://host/a/v1/v1/", "https://user@host", "https://u:hunter2@host", "https://host?", "https://host?q", "https://host#", "https://host/a?b", "https://host/../a",
		"https://host/a//b", "https://host/./a", "https://host/a%2fb", "https://ho st", "https://host/\n", `https://host\@evil`, "https:host", "https://hôst",
		"https://" + strings.Repeat("a", maxTargetLength),
	} {
		if got, err := ParseTarget(address); err == nil {
			t.Errorf("%q: %s", address, got)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

// TestRequestDigest holds the digest to its definition, and its parts apart.
func TestRequestDigest(t *testing.T) {
	body := sum([]byte("{}"))
	got, err := RequestDigest("POST", "/v1/x", "application/json", body)
	if err != nil {
		t.Fatal(err)
	}
	const hexBody = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
	if want := sum([]byte("POST\n/v1/x\napplication/json\n" + hexBody)); got != Digest(want) {
		t.Errorf("%s, want %s", got, Digest(want))
	}
	seen := map[Digest]bool{}
	for _, parts := range [][3]string{{"POST", "/a", "b"}, {"POST", "/ab", ""}, {"POST/a", "", "b"}, {"", "POST/a", "b"}} {
		d, err := RequestDigest(parts[0], parts[1], parts[2], body)
		if err != nil || seen[d] {
			t.Errorf("%q: the digest of another request, or %v", parts, err)
		}
		seen[d] = true
	}
	for _, bad := range []string{"a\nb", "a\rb", "\x00", "\x7f"} {
		for i := range 3 {
			parts := [3]string{"POST", "/a", "b"}
			parts[i] = bad
			if _, err := RequestDigest(parts[0], parts[1], parts[2], body); err == nil {
				t.Errorf("accepted: %q", parts)
			}
		}
	}
}

// TestReasonNames: metrics show each reason under a name of its own.
func TestReasonNames(t *testing.T) {
	var names []string
	for _, r := range Reasons() {
		names = append(names, r.String())
	}
	slices.Sort(names)
	if len(names) != len(reasonNames)-1 || len(slices.Compact(names)) != len(reasonNames)-1 || names[0] == "" {
		t.Errorf("%d names for %d reasons: %q", len(names), len(reasonNames)-1, names)
	}
	if Reason(0).String() != "" || Reason(200).String() != "unknown_200" || Header(200).String() != "unknown_200" {
		t.Error("unknown ones have no name")
	}
}

func TestRevocationMatches(t *testing.T) {
	c := &Claims{ID: "l", Run: "r", Principal: "p", Slot: "s", Revision: 5}
	for r, want := range map[Revocation]bool{
		{}:                                    false,
		{Below: 6}:                            false, // of no slot
		{Lease: "l"}:                          true,
		{Lease: "x"}:                          false,
		{Run: "r"}:                            true,
		{Run: "x"}:                            false,
		{Principal: "p"}:                      true,
		{Principal: "x"}:                      false,
		{Slot: "s"}:                           true,
		{Slot: "x"}:                           false,
		{Slot: "s", Below: 6}:                 true,
		{Slot: "s", Below: 5}:                 false,
		{Slot: "x", Below: 6}:                 false,
		{Run: "r", Principal: "p"}:            true,
		{Run: "r", Principal: "x"}:            false,
		{Lease: "l", Run: "r", Slot: "s"}:     true,
		{Lease: "l", Run: "r", Slot: "x"}:     false,
		{Principal: "p", Slot: "s", Below: 9}: true,
	} {
		if got := r.Matches(c); got != want {
			t.Errorf("%+v: %v", r, got)
		}
		if invalid := r.Validate() != nil; invalid != (r == Revocation{} || r == Revocation{Below: 6}) {
			t.Errorf("%+v: invalid %v", r, invalid)
		}
	}
	w := newWorld(t)
	if _, err := w.Revoke(Revocation{}); err == nil {
		t.Error("a revocation of nothing")
	}
}

// TestTombstonesEnd: a revocation is remembered until every lease that was issued before it has expired, and not longer.
func TestTombstonesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		if _, err := w.Revoke(Revocation{Run: "run_abc"}); err != nil {
			t.Fatal(err)
		}
		late := func(id string) *draft {
			d := newDraft()
			now, _ := w.cfg.Clock.Now()
			d.claims.set("iat", unix(now))
			d.claims.set("nbf", unix(now))
			d.claims.set("exp", unix(now.Add(MaxLife)))
			d.claims.set("jti", quoted(b64([]byte(id))))
			return d
		}
		time.Sleep(keepFor - 10*time.Millisecond)
		w.refuses(t, ReasonRevoked, late("0000000000000001"))
		time.Sleep(10 * time.Millisecond)
		w.refuses(t, 0, late("0000000000000002"))
	})
}

// TestTombstonesOverflow: with more revocations than there is room for everything that was issued until then is refused,
// for as long as it may live; room comes back.
//
// Seen to fail: with an add that dropped the new one.
func TestTombstonesOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		numbered := func(n int) *draft {
			d := newDraft()
			now, _ := w.cfg.Clock.Now()
			d.claims.set("iat", unix(now))
			d.claims.set("nbf", unix(now))
			d.claims.set("exp", unix(now.Add(DefaultLife)))
			id := numberedID(n)
			d.claims.set("jti", quoted(b64(id[:])))
			return d
		}
		revoke := func(n int) {
			for range n {
				if _, err := w.Revoke(Revocation{Run: execution.NewRunID()}); err != nil {
					t.Fatal(err)
				}
			}
		}
		revoke(maxTombstones)
		w.refuses(t, 0, numbered(1))
		revoke(1)
		w.refuses(t, ReasonRevoked, numbered(2))
		if len(w.stones.stones) > maxTombstones {
			t.Errorf("%d tombstones", len(w.stones.stones))
		}
		time.Sleep(keepFor)
		w.refuses(t, 0, numbered(3))
		revoke(1)
		if len(w.stones.stones) != 1 {
			t.Errorf("%d tombstones when all but one are past", len(w.stones.stones))
		}
		w.refuses(t, 0, numbered(4))
	})
}

// TestClosedOpener: nothing opens after the session, even if its key were still there.
func TestClosedOpener(t *testing.T) {
	w := newWorld(t)
	w.Close()
	w.Close()
	w.cfg.Recipient.private.Store(recipientKey)
	w.refuses(t, ReasonClosed, newDraft())
}
