// Package spelling finds the names that a person may have meant by one that does not exist. Who may see a name is the
// caller's to decide: only such names come in here. The work for one typed name is bounded, as strangers choose it.
package spelling

import (
	"cmp"
	"slices"
	"strings"
)

const (
	// maxNames bounds the names that one typed name is compared with.
	maxNames = 2000
	// maxLetters bounds the letters and digits of a name that is compared; longer ones are passed over.
	maxLetters = 64
	// maxSlips bounds the mistakes in one name.
	maxSlips = 3
	// minPart is the fewest letters and digits by which a name may be meant that has more of them.
	minPart = 3
)

// Nearest returns the one of names, which are few and fixed, that was most likely meant by a mistyped one; empty: none is near.
func Nearest(typed string, names []string) (best string) {
	least := len(typed)/5 + 2
	for _, name := range names {
		if d := Distance(strings.ToLower(typed), strings.ToLower(name), least); d < least {
			best, least = name, d
		}
	}
	return best
}

// Distance returns how many letters must be changed, inserted, removed or swapped with the next to turn a into b; limit if
// it is that many or more.
func Distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	rows := make([]int, 3*(len(b)+1))
	before, last, row := rows[:len(b)+1], rows[len(b)+1:2*(len(b)+1)], rows[2*(len(b)+1):]
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		// What is further than limit from the diagonal can't be part of the answer.
		from, to := max(1, i-limit), min(len(b), i+limit)
		row[from-1] = limit
		if from == 1 {
			row[0] = i
		}
		for j := from; j <= to; j++ {
			change := last[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(change, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		if to < len(b) {
			row[to+1] = limit
		}
		before, last, row = last, row, before
	}
	return min(last[len(b)], limit)
}

// Models returns those of names, at most most, that may be meant by the typed name of a model, the likeliest first. Case,
// separators, an organisation before the name and Ollama's tag behind it count less than the letters of the name itself.
func Models(typed string, names []string, most int) []string {
	type candidate struct {
		name string
		far  int
	}
	var found []candidate
	want, ok := partsOf(typed)
	if !ok {
		return nil
	}
	for _, name := range names[:min(len(names), maxNames)] {
		if p, ok := partsOf(name); ok && name != typed {
			if far, near := want.from(p); near {
				found = append(found, candidate{name, far})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(a.far, b.far) })
	var list []string
	for _, c := range found[:min(len(found), most)] {
		list = append(list, c.name)
	}
	return list
}

// parts are a model's name in small letters and digits alone: org/Name-7B:q4 is orgname7bq4, name7bq4 and name7b.
type parts struct{ whole, name, base string }

func partsOf(model string) (p parts, ok bool) {
	model = strings.TrimSuffix(model, ":latest")
	name := model[strings.LastIndexByte(model, '/')+1:]
	base, _, _ := strings.Cut(name, ":")
	p = parts{letters(model), letters(name), letters(base)}
	return p, p.base != "" && len(p.whole) <= maxLetters
}

func letters(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r > '~':
			return r
		}
		return -1
	}, s)
}

// from says how far one name is from another, and whether that is near enough to be meant.
func (p parts) from(q parts) (far int, near bool) {
	switch slips := 1 + len(p.name)/6; {
	case p.whole == q.whole:
		return 0, true
	case p.name == q.name:
		return 1, true
	case p.base == q.base:
		return 2, true
	case len(p.name) >= minPart && strings.HasPrefix(q.name, p.name), len(q.name) >= minPart && strings.HasPrefix(p.name, q.name):
		return 3, true
	case len(p.name) > minPart:
		limit := min(slips, maxSlips) + 1
		far = min(Distance(p.name, q.name, limit), Distance(p.base, q.base, limit))
		return 3 + far, far < limit
	}
	return 0, false
}
