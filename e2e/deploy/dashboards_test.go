package deploy

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dashboard is what Grafana reads of a file, as far as it is ours.
type dashboard struct {
	UID, Title string
	Templating struct {
		List []struct{ Name, Query string }
	}
	Panels []struct {
		ID         int
		Type       string
		Title      string
		Datasource struct{ UID string }
		GridPos    struct{ X, Y, W, H int }
		Targets    []struct{ RefID, Expr string }
	}
}

// panelQuery is one expression of a panel.
type panelQuery struct{ panel, expr string }

// expression is the query as Grafana sends it, for all Edges.
func (q panelQuery) expression(interval string) string {
	return strings.NewReplacer("$instance", ".*", "$__rate_interval", interval).Replace(q.expr)
}

func readDashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(deployDir, "grafana/dashboards/*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %d dashboards", err, len(files))
	}
	all := map[string]dashboard{}
	for _, file := range files {
		var d dashboard
		if err := json.Unmarshal([]byte(readFile(t, file)), &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[filepath.Base(file)] = d
	}
	return all
}

func allQueries(t *testing.T) (queries []panelQuery) {
	t.Helper()
	for _, d := range readDashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				queries = append(queries, panelQuery{d.Title + ": " + p.Title, target.Expr})
			}
		}
	}
	return queries
}

// TestDashboards: each file is one that Grafana can provision, and no panel hides another.
func TestDashboards(t *testing.T) {
	source := readFile(t, deployDir, "grafana/provisioning/datasources/prometheus.yml")
	uids := map[string]bool{}
	for file, d := range readDashboards(t) {
		if d.UID+".json" != file || d.Title == "" || uids[d.UID] || len(d.Panels) == 0 {
			t.Errorf("%s: uid %q, title %q, %d panels", file, d.UID, d.Title, len(d.Panels))
		}
		uids[d.UID] = true
		ids, taken := map[int]bool{}, map[[2]int]string{}
		for _, p := range d.Panels {
			at := p.GridPos
			if p.Title == "" || ids[p.ID] || len(p.Targets) == 0 || !slices.Contains([]string{"stat", "timeseries"}, p.Type) || at.X+at.W > 24 {
				t.Errorf("%s: panel %d %q, %s at %v, %d targets", file, p.ID, p.Title, p.Type, at, len(p.Targets))
			}
			ids[p.ID] = true
			if !strings.Contains(source, "uid: "+p.Datasource.UID+" ") {
				t.Errorf("%s: %q asks %q, which nobody provisions", file, p.Title, p.Datasource.UID)
			}
			for x := at.X; x < at.X+at.W; x++ {
				for y := at.Y; y < at.Y+at.H; y++ {
					if other, ok := taken[[2]int{x, y}]; ok {
						t.Fatalf("%s: %q lies on %q", file, p.Title, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
		}
	}
}

// metricNames are the metrics of docs/metrics.md, which a test of the Edge holds to the code.
func metricNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, m := range regexp.MustCompile("`(iop_[a-z_]+)`").FindAllStringSubmatch(readFile(t, docsDir, "metrics.md"), -1) {
		names[m[1]] = true
	}
	return names
}

// checkMetrics checks that an expression names metrics of ours that exist.
func checkMetrics(t *testing.T, where, expression string) {
	t.Helper()
	known := metricNames(t)
	for _, name := range regexp.MustCompile(`\b(?:iop|go|process)_[a-z_]+`).FindAllString(expression, -1) {
		base := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(name, "")
		if strings.HasPrefix(name, "iop_") && !known[name] && !known[base] {
			t.Errorf("%s: %s is no metric of docs/metrics.md", where, name)
		}
	}
}

// TestDashboardsNameRealMetrics: no panel stays empty because a metric has another name.
func TestDashboardsNameRealMetrics(t *testing.T) {
	queries := allQueries(t)
	if len(queries) < 40 {
		t.Fatalf("%d queries", len(queries))
	}
	for _, q := range queries {
		checkMetrics(t, q.panel, q.expr)
	}
}

// TestDashboardsParse: Prometheus's own parser takes each query. A rule is the form in which promtool reads one.
func TestDashboardsParse(t *testing.T) {
	promtool := needs(t, "promtool")
	var rules strings.Builder
	rules.WriteString("groups:\n  - name: dashboards\n    rules:\n")
	for _, q := range allQueries(t) {
		expression, err := json.Marshal(q.expression("5m"))
		if err != nil {
			t.Fatal(err)
		}
		panel, err := json.Marshal(q.panel)
		if err != nil {
			t.Fatal(err)
		}
		rules.WriteString("      - alert: Panel\n        expr: " + string(expression) + "\n        annotations: {panel: " + string(panel) + "}\n")
	}
	file := filepath.Join(t.TempDir(), "dashboards.yml")
	writeFile(t, file, rules.String())
	command(t, nil, promtool, "check", "rules", "--lint=none", file)
}
