package deploy

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// alertNames are the rules of deploy/prometheus/alerts.yml.
func alertNames(t *testing.T) (names []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^      - alert: (\w+)$`).FindAllStringSubmatch(readFile(t, deployDir, "prometheus/alerts.yml"), -1) {
		names = append(names, m[1])
	}
	if len(names) < 10 {
		t.Fatalf("%d alerts", len(names))
	}
	return names
}

// TestAlerts: Prometheus takes the configuration and the rules, each rule fires when it should, and none on a quiet day.
func TestAlerts(t *testing.T) {
	promtool := needs(t, "promtool")
	command(t, nil, promtool, "check", "config", "--lint=all", filepath.Join(deployDir, "prometheus/prometheus.yml"))
	command(t, nil, promtool, "check", "rules", filepath.Join(deployDir, "prometheus/alerts.yml"))
	command(t, nil, promtool, "test", "rules", "testdata/alerts.yml")
}

// TestEachAlertIsTestedAndExplained: a case that fires it, a heading of the runbook that its annotation names, metrics that
// exist.
func TestEachAlertIsTestedAndExplained(t *testing.T) {
	rules, cases := readFile(t, deployDir, "prometheus/alerts.yml"), readFile(t, "testdata/alerts.yml")
	runbook := readFile(t, docsDir, "operations.md")
	for _, name := range alertNames(t) {
		if !strings.Contains(cases, "  - name: "+name+"\n") {
			t.Errorf("%s: nothing shows that it fires", name)
		}
		if !strings.Contains(rules, "runbook: docs/operations.md#"+strings.ToLower(name)+"\n") {
			t.Errorf("%s: its annotations do not name its runbook", name)
		}
		if !strings.Contains(runbook, "### "+name+"\n") {
			t.Errorf("%s: docs/operations.md has no heading for it", name)
		}
	}
	checkMetrics(t, "alerts.yml", rules)
	if n := strings.Count(runbook, "\n### IOP"); n != len(alertNames(t)) {
		t.Errorf("docs/operations.md explains %d alerts", n)
	}
}
