package gateway

import (
	"strings"
	"testing"
)

func TestViaTrail(t *testing.T) {
	const self = "iop-e1.00"
	many := strings.Repeat("1.1 iop-a.1, ", maxViaEdges)
	for name, test := range map[string]struct {
		lines  []string
		trail  string
		looped bool
	}{
		"none":                    {},
		"another proxy":           {lines: []string{"1.1 varnish, 2 cdn.example.org:443 (a comment)"}},
		"ours":                    {lines: []string{"1.1 iop-e1.00"}, looped: true},
		"ours behind others":      {lines: []string{"1.0 fred, HTTP/1.1 iop-e1.00"}, looped: true},
		"ours in another line":    {lines: []string{"1.0 fred", "1.1 iop-e1.00 (x)"}, looped: true},
		"ours in capitals":        {lines: []string{"1.1 IOP-E1.00"}, looped: true},
		"ours with a port":        {lines: []string{"1.1 iop-e1.00:80"}, looped: true},
		"ours with tabs":          {lines: []string{",,\t1.1\tiop-e1.00\t,"}, looped: true},
		"begins with ours":        {lines: []string{"1.1 iop-e1.001"}, trail: "1.1 iop-e1.001"},
		"ours without its end":    {lines: []string{"1.1 iop-e1.0"}, trail: "1.1 iop-e1.0"},
		"another of the name":     {lines: []string{"1.1 iop-e1.ff"}, trail: "1.1 iop-e1.ff"},
		"ours in a comment":       {lines: []string{"1.1 fred (1.1 iop-e1.00, 1.1 iop-e1.00)"}},
		"ours in a nested one":    {lines: []string{`1.1 fred (a (b) \), 1.1 iop-e1.00), 1.1 iop-x.1`}, trail: "1.1 iop-x.1"},
		"ours behind a comment":   {lines: []string{`1.1 fred (a (b) \)), 1.1 iop-e1.00`}, looped: true},
		"a comment that goes on":  {lines: []string{"1.1 fred (a, 1.1 iop-x.1", "1.1 iop-y.1"}, trail: "1.1 iop-y.1"},
		"ours as the protocol":    {lines: []string{"iop-e1.00 fred"}},
		"ours alone":              {lines: []string{"iop-e1.00"}},
		"what is no member":       {lines: []string{`1.1 iop-e1.00"x", 1.1 iop-e1.00@y`}},
		"two Edges":               {lines: []string{"1.1 iop-a.1 (x), 1.1 cdn", "2 iop-b.2:8480"}, trail: "1.1 iop-a.1, 1.1 iop-b.2"},
		"too many Edges":          {lines: []string{many}, looped: true},
		"as many Edges as may":    {lines: []string{many[len("1.1 iop-a.1, "):]}, trail: strings.TrimSuffix(many[len("1.1 iop-a.1, "):], ", ")},
		"a name too long for one": {lines: []string{"1.1 iop-" + strings.Repeat("a", 200)}},
	} {
		t.Run(name, func(t *testing.T) {
			trail, looped := viaTrail(test.lines, self)
			if trail != test.trail || looped != test.looped {
				t.Errorf("got %q, %t; want %q, %t", trail, looped, test.trail, test.looped)
			}
		})
	}
}

func TestPseudonymsOfOneNameDiffer(t *testing.T) {
	a, b := pseudonym("main"), pseudonym("main")
	if a == b || !strings.HasPrefix(a, "iop-main.") {
		t.Errorf("%s, %s", a, b)
	}
	if longest := pseudonym(strings.Repeat("a", 128)); len(longest) != maxPseudonym {
		t.Errorf("a pseudonym has up to %d bytes, not %d", len(longest), maxPseudonym)
	}
}

// What is sent on is a Via of the RFC's form: it is read as it was written, and finds each Edge in it.
func FuzzViaTrail(f *testing.F) {
	for _, line := range []string{"", "1.1 iop-e1.00", "1.1 a (b, (c) \\)), HTTP/2 iop-x.1:80,", "1.1 iop-x.1 iop-e1.00", "((((", "\x00\xff"} {
		f.Add(line, line)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		trail, looped := viaTrail([]string{a, b}, "iop-e1.00")
		if looped {
			return
		}
		again, looped := viaTrail([]string{trail}, "iop-e1.00")
		if again != trail || looped {
			t.Fatalf("%q is read as %q, %t", trail, again, looped)
		}
		for i := range len(trail) {
			if c := trail[i]; !tokenByte(c) && c != ' ' && c != ',' {
				t.Fatalf("%q goes on to a provider", trail)
			}
		}
		if _, looped := viaTrail([]string{trail, viaMember("iop-e1.00")}, "iop-e1.00"); !looped {
			t.Fatalf("behind %q this Edge does not find itself", trail)
		}
	})
}
