package spelling

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestModels(t *testing.T) {
	names := []string{
		"Qwen/Qwen2.5-Coder-7B-Instruct", "claude-sonnet", "gpt-oss:20b", "gpt-oss:120b", "llama3.2:1b", "llama3.2:latest", "nomic-embed-text:latest", "phi4",
	}
	for _, tt := range []struct{ typed, want string }{
		{"llama3.2:3b", "llama3.2:1b llama3.2:latest"},
		{"llama3.1", "llama3.2:1b llama3.2:latest"},
		{"llama-3.2", "llama3.2:latest llama3.2:1b"},
		{"Llama3.2:latest", "llama3.2:latest llama3.2:1b"},
		{"lama3.2", "llama3.2:1b llama3.2:latest"},
		{"llama", "llama3.2:1b llama3.2:latest"},
		{"qwen2.5-coder-7b-instruct", "Qwen/Qwen2.5-Coder-7B-Instruct"},
		{"qwen2.5-coder", "Qwen/Qwen2.5-Coder-7B-Instruct"},
		{"gpt-oss", "gpt-oss:20b gpt-oss:120b"},
		{"openai/gpt-oss-20b", "gpt-oss:20b gpt-oss:120b"},
		{"nomic-embed-txet", "nomic-embed-text:latest"},
		{"phi3", "phi4"},
		{"phi4", ""}, // it exists
		{"gpt-4o", ""},
		{"x", ""},
		{"", ""},
		{":latest", ""},
		{strings.Repeat("llama", 100), ""},
	} {
		if got := strings.Join(Models(tt.typed, names, 3), " "); got != tt.want {
			t.Errorf("%q may mean %q, want %q", tt.typed, got, tt.want)
		}
	}
	if got := Models("llama", []string{"llama1", "llama2", "llama3", "llama4"}, 3); len(got) != 3 {
		t.Errorf("more than three: %q", got)
	}
}

// The work is bounded by the number of names and their length, whatever is typed.
func TestOnlySoManyNames(t *testing.T) {
	var names []string
	for i := range maxNames {
		names = append(names, fmt.Sprintf("other-%d", i))
	}
	if got := Models("needle", append(names, "needle2"), 3); got != nil {
		t.Errorf("%q is behind the last name that is compared", got)
	}
	if got := Models("needle", append(names[1:], "needle2"), 3); !slices.Equal(got, []string{"needle2"}) {
		t.Errorf("got %q", got)
	}
}

// slow is Distance by its definition, without limits.
func slow(a, b string) int {
	table := make([][]int, len(a)+1)
	for i := range table {
		table[i] = make([]int, len(b)+1)
		for j := range table[i] {
			switch {
			case i == 0 || j == 0:
				table[i][j] = i + j
				continue
			case a[i-1] == b[j-1]:
				table[i][j] = table[i-1][j-1]
			default:
				table[i][j] = 1 + min(table[i-1][j-1], table[i-1][j], table[i][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				table[i][j] = min(table[i][j], table[i-2][j-2]+1)
			}
		}
	}
	return table[len(a)][len(b)]
}

func FuzzDistance(f *testing.F) {
	for _, seed := range []struct {
		a, b  string
		limit int
	}{{"model", "modle", 2}, {"targets", "tragets", 3}, {"", "abc", 2}, {"kitten", "sitting", 4}, {"aaaaaa", "b", 9}, {"x", "x", 0}} {
		f.Add(seed.a, seed.b, seed.limit)
	}
	f.Fuzz(func(t *testing.T, a, b string, limit int) {
		if len(a) > 100 || len(b) > 100 || limit < 0 || limit > 50 {
			return
		}
		if got, want := Distance(a, b, limit), min(slow(a, b), limit); got != want {
			t.Errorf("from %q to %q within %d: %d, want %d", a, b, limit, got, want)
		}
	})
}

func FuzzModels(f *testing.F) {
	f.Add("llama3.2", "llama3.2:latest\norg/Llama-3.2")
	f.Add("\xff/:", "a\n\n:latest")
	f.Fuzz(func(t *testing.T, typed, list string) {
		names := strings.Split(list, "\n")
		got := Models(typed, names, 3)
		if len(got) > 3 {
			t.Fatalf("%d names", len(got))
		}
		for _, name := range got {
			if name == typed || !slices.Contains(names, name) {
				t.Errorf("%q is the typed name, or none of the list", name)
			}
		}
	})
}
