package web

import (
	"fmt"
	"html/template"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"iop/state"
)

// functions are those that templates call.
var functions = template.FuncMap{
	"owner":   ownerOf,
	"past":    func(t *time.Time) bool { return !t.IsZero() && t.Before(time.Now()) },
	"ago":     ago,
	"ms":      milliseconds,
	"count":   count,
	"bytes":   byteCount,
	"clock":   func(v any) string { return timeOf(v).UTC().Format("2006-01-02 15:04:05 UTC") },
	"pathseg": url.PathEscape,
	"has":     slices.Contains[[]string],
	"share":   func(part, whole int) int { return 100 * part / max(whole, 1) },
	"share64": func(part, whole int64) int64 { return 100 * part / max(whole, 1) },
	"words":   strings.Fields,
	"sum":     func(a, b int) int { return a + b },
	"lasted":  func(from, to time.Time) string { return span(to.Sub(from)) },
	"took":    func(from, to float64) string { return milliseconds(to - from) },
	"short":   func(id any) string { s := fmt.Sprint(id); return s[:min(len(s), 12)] },
	"field":   fieldName,
	"wrong":   wrong,
	"former":  func(field string) string { return former + field },
	"item":    func(page, name, path, label string) navItem { return navItem{path, label, page == name} },
}

// ownerOf is the owner that a principal is; empty: it is a key without one.
func ownerOf(principal string) string {
	if strings.HasPrefix(principal, state.KeyPrincipal) {
		return ""
	}
	return principal
}

// navItem is one place of the navigation.
type navItem struct {
	Path, Name string
	Current    bool
}

// ago says how long ago v was, a time or a pointer to one, in the two greatest units.
func ago(v any) string {
	t := timeOf(v)
	if t.IsZero() {
		return "never"
	}
	return span(time.Since(t))
}

// timeOf is a time that a template has, the zero one where it has none.
func timeOf(v any) time.Time {
	switch t := v.(type) {
	case time.Time:
		return t
	case *time.Time:
		if t != nil {
			return *t
		}
	}
	return time.Time{}
}

// span is a duration in at most two units.
func span(d time.Duration) string {
	d = max(d, 0).Round(time.Second)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d d %d h", int(d.Hours())/24, int(d.Hours())%24)
}

// milliseconds is a number of milliseconds for people.
func milliseconds(v any) string {
	ms, err := strconv.ParseFloat(fmt.Sprint(v), 64)
	switch {
	case err != nil:
		return "?"
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0f ms", ms)
	case ms < 60_000:
		return fmt.Sprintf("%.2f s", ms/1000)
	}
	return span(time.Duration(ms) * time.Millisecond)
}

// count is a number with a unit of thousands.
func count(v any) string {
	n, err := strconv.ParseFloat(fmt.Sprint(v), 64)
	switch {
	case err != nil:
		return "?"
	case n < 10_000:
		return strconv.FormatFloat(n, 'f', -1, 64)
	case n < 1_000_000:
		return fmt.Sprintf("%.1f k", n/1e3)
	case n < 1_000_000_000:
		return fmt.Sprintf("%.1f M", n/1e6)
	}
	return fmt.Sprintf("%.1f G", n/1e9)
}

// byteCount is a size for people.
func byteCount(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
