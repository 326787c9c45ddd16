package main

import (
	"encoding/json"
	"strings"
	"testing"

	"iop/bench"
)

func TestBenchCommand(t *testing.T) {
	url := startSim(t).URL()
	args := []string{"bench", "--url", url, "--model", "sim-small", "--requests", "6", "--concurrency", "2", "--max-tokens", "8"}
	status, stdout, stderr := execute(t, append(args, "--json")...)
	var report bench.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || status != exitOK {
		t.Fatalf("status %d, %v: %s%s", status, err, stdout, stderr)
	}
	if report.Requests != 6 || report.Failed != 0 || report.Tokens == 0 || report.InterToken.Max == 0 {
		t.Errorf("report %+v", report)
	}
	if _, stdout, _ := execute(t, args...); !strings.Contains(stdout, "first token") || !strings.Contains(stdout, "6 requests") {
		t.Errorf("printed:\n%s", stdout)
	}
}

func TestBenchCommandAgainst(t *testing.T) {
	url := startSim(t).URL()
	args := []string{"bench", "--url", url, "--model", "sim-small", "--requests", "6", "--against", url, "--against-model", "sim-large"}
	status, stdout, stderr := execute(t, append(args, "--json")...)
	var comparison bench.Comparison
	if err := json.Unmarshal([]byte(stdout), &comparison); err != nil || status != exitOK {
		t.Fatalf("status %d, %v: %s%s", status, err, stdout, stderr)
	}
	if comparison.Against.Model != "sim-large" || comparison.Against.Requests != 6 || comparison.Ratios.LatencyP50 == 0 {
		t.Errorf("comparison %+v", comparison)
	}
	if _, stdout, _ := execute(t, args...); !strings.Contains(stdout, "ratio") {
		t.Errorf("printed:\n%s", stdout)
	}
}

func TestBenchCommandFails(t *testing.T) {
	url := startSim(t).URL()
	status, stdout, stderr := execute(t, "bench", "--url", url, "--model", "no-such-model", "--requests", "2")
	if status != exitFailed || !strings.Contains(stdout, "http_404 2") || !strings.Contains(stderr, "every request") {
		t.Errorf("status %d\n%s\n%s", status, stdout, stderr)
	}
}
