package web_test

import (
	"html"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// TestUsageCSV follows the page's own link.
func TestUsageCSV(t *testing.T) {
	r := newRig(t).signIn()
	page := r.get("/admin/usage?from=2026-03-01&to=2026-03-31&route=chat")
	link := regexp.MustCompile(`href="(/admin/usage/records[^"]*)"`).FindStringSubmatch(page.body)
	if link == nil {
		t.Fatalf("no link to the records:\n%s", page.body)
	}
	address := html.UnescapeString(link[1])
	if !strings.Contains(address, "route=chat") || !strings.Contains(address, "to=2026-04-01") {
		t.Errorf("the link %s is not of what the page shows", address)
	}
	got := r.get(address)
	if got.status != http.StatusOK || !strings.HasPrefix(got.header.Get("Content-Type"), "text/csv") || !strings.Contains(got.header.Get("Content-Disposition"), ".csv") {
		t.Errorf("%d %v", got.status, got.header)
	}
	if !strings.HasPrefix(got.body, "run,") && !strings.Contains(strings.SplitN(got.body, "\n", 2)[0], "input") {
		t.Errorf("no heading: %.200s", got.body)
	}
	if got := r.get("/admin/usage/records?format=csv&from=yesterday"); got.status != http.StatusBadRequest || strings.Contains(got.header.Get("Content-Disposition"), "attachment") {
		t.Errorf("a fault is saved as a file: %d %v", got.status, got.header)
	}
}
