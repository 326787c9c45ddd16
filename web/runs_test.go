package web_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"iop/execution"
	"iop/gateway/admin"
	"iop/state"
	"iop/web"
)

// TestMoreRuns holds that the page of the runs says when there are more than it shows, and only then.
func TestMoreRuns(t *testing.T) {
	done := make(chan struct{})
	defer close(done)
	for _, there := range []int{99, 100, 101} {
		api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
			if err != nil {
				t.Error(err)
			}
			runs := make([]admin.Run, min(there, limit))
			for i := range runs {
				runs[i].ID = execution.RunID(fmt.Sprintf("run_%d.", i))
				runs[i].Usage = &execution.Usage{Input: int64(1000 + i), Output: 7, Known: true, Estimated: i == 0}
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"data": runs})
		})
		console := web.New(admin.Parts{
			API: api, Public: http.NotFoundHandler(), Listen: func() string { return "127.0.0.1:1" }, Metrics: http.NotFoundHandler(),
			Verify: func(token string) bool { return token == "t" }, Logger: slog.New(slog.DiscardHandler), Done: done,
		})
		form := httptest.NewRequest(http.MethodPost, "/admin/sign-in", strings.NewReader("token=t"))
		form.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		in := httptest.NewRecorder()
		console.ServeHTTP(in, form)
		for _, part := range []bool{false, true} {
			req := httptest.NewRequest(http.MethodGet, "/admin/runs", nil)
			req.AddCookie(in.Result().Cookies()[0])
			if part {
				req.Header.Set("Hx-Request", "true")
			}
			got := httptest.NewRecorder()
			console.ServeHTTP(got, req)
			page := got.Body.String()
			if !strings.Contains(page, fmt.Sprintf(">run_%d.<", min(there, 100)-1)) || strings.Contains(page, ">run_100.<") {
				t.Errorf("of %d runs (part: %v) not the newest hundred are shown", there, part)
			}
			if !strings.Contains(page, ">~1000 / 7<") || !strings.Contains(page, ">1001 / 7<") {
				t.Error("estimates, and they alone, are not marked")
			}
			if said := strings.Contains(page, "Showing the newest 100 runs"); said != (there > 100) {
				t.Errorf("of %d runs (part: %v): more is said: %v", there, part, said)
			}
		}
	}
}

// TestRunsNameTheirKey holds that a run's key is called by its name where runs are listed and shown, and by its id where
// it has none.
func TestRunsNameTheirKey(t *testing.T) {
	done := make(chan struct{})
	defer close(done)
	for _, test := range []struct{ key, name, principal, want, absent string }{
		{"0Ab3dE9z", "alice", "key:0Ab3dE9z", ">alice</a>", "of key:"},
		{"0Ab3dE9z", "alice", "team-a", ">alice</a>", "of key:"},
		{"0Ab3dE9z", "", "key:0Ab3dE9z", ">0Ab3dE9z</a>", "of key:"},
		{"", "anyone", "key:", "anyone", "/admin/keys/\""},
	} {
		run := admin.Run{ID: "run_1", Key: state.KeyID(test.key), KeyName: test.name, Principal: test.principal, State: "ended", Outcome: "completed"}
		api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var v any = run
			if strings.HasSuffix(r.URL.Path, "/runs") {
				v = list(run)
			}
			_ = json.NewEncoder(w).Encode(v)
		})
		console := web.New(admin.Parts{
			API: api, Public: http.NotFoundHandler(), Listen: func() string { return "127.0.0.1:1" }, Metrics: http.NotFoundHandler(),
			Verify: func(token string) bool { return token == "t" }, Logger: slog.New(slog.DiscardHandler), Done: done,
		})
		form := httptest.NewRequest(http.MethodPost, "/admin/sign-in", strings.NewReader("token=t"))
		form.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		in := httptest.NewRecorder()
		console.ServeHTTP(in, form)
		for _, path := range []string{"/admin/runs", "/admin/runs/run_1"} {
			req := httptest.NewRequest(http.MethodGet, path, nil)
			req.AddCookie(in.Result().Cookies()[0])
			got := httptest.NewRecorder()
			console.ServeHTTP(got, req)
			if page := got.Body.String(); !strings.Contains(page, test.want) || strings.Contains(page, test.absent) {
				t.Errorf("%s of %+v:\n%s", path, test, page)
			}
		}
	}
}
