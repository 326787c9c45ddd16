package state

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxChangeText bounds what an audit entry says of a change, in bytes.
const maxChangeText = 500

// changes says what differs between a key before a change and after it; empty if nothing does.
func changes(before, after *Key) string {
	text := func(s string) string { return strconv.Quote(s) }
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	until := func(t time.Time) string {
		if t.IsZero() {
			return "never"
		}
		return t.UTC().Format(time.RFC3339)
	}
	return changeText([]change{
		{"name", text(before.Name), text(after.Name)}, {"owner", text(before.Owner), text(after.Owner)},
		{"routes", listed(before.Routes), listed(after.Routes)},
		{"rpm", number(before.RPM), number(after.RPM)}, {"tpm", number(before.TPM), number(after.TPM)},
		{"concurrency", number(before.Concurrency), number(after.Concurrency)},
		{"monthly_tokens", number(before.MonthlyTokens), number(after.MonthlyTokens)},
		{"weight", strconv.Itoa(before.Weight), strconv.Itoa(after.Weight)},
		{"priority", strconv.Itoa(before.Priority), strconv.Itoa(after.Priority)},
		{"expires", until(before.Expires), until(after.Expires)},
	})
}

// claims says what the Nodes of a new join token may claim, where that is not what they may by default.
func claims(t *JoinToken) string {
	usual := JoinTokenBounds{}.complete(t.Node != "")
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	until := "never"
	if !t.Expires.IsZero() {
		until = t.Expires.UTC().Format(time.RFC3339)
	}
	return changeText([]change{
		{"labels", listed(nil), listed(t.Labels)}, {"models", listed(nil), listed(t.Models)},
		{"max_nodes", number(usual.MaxNodes), number(t.MaxNodes)},
		{"max_sessions", number(usual.MaxSessions), number(t.MaxSessions)},
		{"max_models", number(usual.MaxModels), number(t.MaxModels)},
		{"max_inventory_bytes", number(usual.MaxInventoryBytes), number(t.MaxInventoryBytes)},
		{"expires", "never", until},
	})
}

// change is a field before and after.
type change struct{ field, before, after string }

// changeText says what differs: "rpm 0 -> 60, owner "" -> "team-a"".
func changeText(all []change) string {
	differing := slices.DeleteFunc(all, func(c change) bool { return c.before == c.after })
	words := make([]string, 0, len(differing))
	for _, c := range differing {
		words = append(words, fmt.Sprintf("%s %s -> %s", c.field, c.before, c.after))
	}
	text := strings.Join(words, ", ")
	if len(text) <= maxChangeText {
		return text
	}
	end := maxChangeText
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "..."
}

// listed is a list of patterns, which hold neither spaces nor commas.
func listed(patterns []string) string { return "[" + strings.Join(patterns, " ") + "]" }
