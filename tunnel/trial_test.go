package tunnel

import (
	"maps"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"iop/tunnel/wire"
)

func TestTrialHeaders(t *testing.T) {
	t.Parallel()
	whole := Trial{Node: "gpu-3", Labels: map[string]string{"site": "lab", "a b": "ü=&%"}, Models: []string{"org/m:1", "x y"}}
	value, models, err := whole.Header()
	if err != nil || models != 2 {
		t.Fatal(value, models, err)
	}
	got, err := parseTrial(value)
	if err != nil || !reflect.DeepEqual(*got, whole) {
		t.Errorf("%q: %+v, %v", value, got, err)
	}
	many := Trial{Node: "n", Models: make([]string, 5000)}
	for i := range many.Models {
		many.Models[i] = strings.Repeat("m", 50)
	}
	value, models, err = many.Header()
	if got, parseErr := parseTrial(value); err != nil || parseErr != nil || models == 0 || len(got.Models) != models {
		t.Errorf("%d models, %v, %v", models, err, parseErr)
	}
	long := Trial{Node: "n", Labels: map[string]string{"k": strings.Repeat("v", maxTrial)}}
	if _, _, err := long.Header(); err == nil {
		t.Error("labels that don't fit")
	}
	for _, bad := range []string{"", "node=a&node=b", "label=a%3Db", "node=%zz", "node=a&label=k%3D1&label=k%3D2", "node=a" + strings.Repeat("&model=", maxTrialFields), "node=" + strings.Repeat("a", maxTrial)} {
		if got, err := parseTrial(bad); err == nil {
			t.Errorf("%.40q: %+v", bad, got)
		}
	}
	for value, want := range map[string]bool{"": false, "ignored=3": true, "ignored=-1": false, "ignored=x": false, "ignored=1&ignored=2": false} {
		if n, ok := TrialAnswer(http.Header{wire.HeaderTrial: {value}}); ok != want || ok && n != 3 {
			t.Errorf("%q: %d, %v", value, n, ok)
		}
	}
}

// FuzzTrial: what is parsed stays the same when it is written and parsed again.
func FuzzTrial(f *testing.F) {
	for _, seed := range []string{"node=gpu-3", "node=n&label=site%3Dlab&model=org%2Fm", "node=n&label=x", "node=&model=", "node=%zz"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		first, err := parseTrial(value)
		if err != nil {
			return
		}
		again, models, err := first.Header()
		if err != nil {
			return // percent-encoding made it longer
		}
		second, err := parseTrial(again)
		if err != nil || second.Node != first.Node || !maps.Equal(second.Labels, first.Labels) || len(second.Models) != models {
			t.Errorf("%q became %q: %+v, %v", value, again, second, err)
		}
	})
}
