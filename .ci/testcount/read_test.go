package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const events = `go: downloading something v1.0.0
{"Action":"start","Package":"iop/a"}
{"Action":"run","Package":"iop/a","Test":"TestGood"}
{"Action":"output","Package":"iop/a","Test":"TestGood","Output":"chatter of a test that passed\n"}
{"Action":"pass","Package":"iop/a","Test":"TestGood","Elapsed":0.1}
{"Action":"output","Package":"iop/a","Test":"TestSkipped","Output":"    a_test.go:5: no browser here\n"}
{"Action":"output","Package":"iop/a","Test":"TestSkipped","Output":"--- SKIP: TestSkipped (0.00s)\n"}
{"Action":"skip","Package":"iop/a","Test":"TestSkipped","Elapsed":0}
{"Action":"output","Package":"iop/a","Test":"TestBad","Output":"    a_test.go:9: got 1, want 2\n"}
{"Action":"fail","Package":"iop/a","Test":"TestBad","Elapsed":0}
{"Action":"fail","Package":"iop/a","Elapsed":0.2}
{"ImportPath":"iop/b","Action":"build-output","Output":"b.go:1: undefined: x\n"}
{"Action":"fail","Package":"iop/b","Elapsed":0}
{"Action":"skip","Package":"iop/empty","Elapsed":0}
{"Action":"output","Package":"iop/c","Test":"TestHung","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"iop/c","Elapsed":600}
`

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "result.json")
	var out strings.Builder
	ok, err := read(strings.NewReader(events), &out, path)
	if err != nil || ok {
		t.Fatalf("read = %v, %v; want false: there are failures", ok, err)
	}
	for _, want := range []string{"go: downloading", "got 1, want 2", "undefined: x", "test timed out", "FAIL  iop/a"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "chatter") {
		t.Errorf("the report repeats what a passed test printed:\n%s", out.String())
	}
	r, err := load(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"iop/a TestBad", "iop/b", "iop/c"}; r.Passed != 1 || !slices.Equal(r.Failed, want) {
		t.Errorf("passed %d, failed %q; want 1, %q", r.Passed, r.Failed, want)
	}
	if want := []skipped{{"iop/a TestSkipped", "no browser here"}}; !slices.Equal(r.Skipped, want) {
		t.Errorf("skipped %v, want %v", r.Skipped, want)
	}
}

func TestSum(t *testing.T) {
	why := skipped{"iop/a TestSkipped", "no browser here"}
	tests := []struct {
		name    string
		results []result
		ok      bool
		line    string
	}{
		{"good", []result{{Passed: 2}, {Passed: 1}}, true, "3 passed, 0 failed"},
		{"skipped", []result{{Passed: 2, Skipped: []skipped{why}}}, true, "2 passed, 0 failed, 1 skipped"},
		{"skipped silently", []result{{Passed: 2, Skipped: []skipped{{Test: "x"}}}}, false, "2 passed, 1 failed, 1 skipped"},
		{"failed", []result{{Passed: 2}, {Failed: []string{"x"}}}, false, "2 passed, 1 failed"},
		{"ran nothing", []result{{}}, false, "0 passed, 0 failed"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			var paths []string
			for i, r := range test.results {
				paths = append(paths, filepath.Join(dir, string(rune('a'+i))))
				if err := r.save(paths[i]); err != nil {
					t.Fatal(err)
				}
			}
			var out strings.Builder
			summary := filepath.Join(dir, "summary")
			ok, err := sum(&out, summary, paths)
			if err != nil || ok != test.ok {
				t.Errorf("sum = %v, %v; want %v", ok, err, test.ok)
			}
			if !strings.HasSuffix("\n"+out.String(), "\n"+test.line+"\n") {
				t.Errorf("the last line is not %q:\n%s", test.line, out.String())
			}
			if kept, _ := os.ReadFile(summary); string(kept) != test.line+"\n" {
				t.Errorf("the summary holds %q, want %q", kept, test.line)
			}
		})
	}
}

// TestSumMissesARun: a run that died before it wrote its counts must not pass unseen.
func TestSumMissesARun(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	if err := (result{Passed: 1}).save(good); err != nil {
		t.Fatal(err)
	}
	ok, err := sum(&strings.Builder{}, filepath.Join(dir, "summary"), []string{good, filepath.Join(dir, "missing")})
	if err != nil || ok {
		t.Errorf("sum = %v, %v; want false", ok, err)
	}
}

func TestCheck(t *testing.T) {
	tests := []struct {
		script string
		ok     bool
		want   result
	}{
		{"true", true, result{Passed: 1}},
		{"echo broken; exit 3", false, result{Failed: []string{"step"}}},
		{"echo chatter; echo no network; exit 77", true, result{Skipped: []skipped{{"step", "no network"}}}},
	}
	for _, test := range tests {
		path := filepath.Join(t.TempDir(), "result")
		ok, err := check(path, "step", []string{"sh", "-c", test.script})
		if err != nil || ok != test.ok {
			t.Errorf("%s: check = %v, %v; want %v", test.script, ok, err, test.ok)
		}
		if r, err := load(path); err != nil || !reflect.DeepEqual(r, test.want) {
			t.Errorf("%s: kept %+v, %v; want %+v", test.script, r, err, test.want)
		}
	}
}

// TestReadNothing: the go command that refuses its arguments prints no event, and must not count as a green run.
func TestReadNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "result")
	ok, err := read(strings.NewReader("flag provided but not defined: -x\n"), &strings.Builder{}, path)
	if err != nil || ok {
		t.Errorf("read = %v, %v; want false", ok, err)
	}
}
