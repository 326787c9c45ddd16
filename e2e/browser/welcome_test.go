package browser

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestWelcome opens the root of the public listener, as somebody does who has nothing but the URL.
func TestWelcome(t *testing.T) {
	listen, admin := freePort(t), freePort(t)
	start(t, "edge", "edge", "--listen", listen, "--admin-listen", admin, "--state", "sqlite://"+filepath.Join(t.TempDir(), "iop.db"))
	eventually(t, "the Edge is ready", func() bool {
		res, err := http.Get("http://" + listen + "/healthz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	s := &story{tab: openTab(t, "http://"+otherHost+listen[strings.LastIndexByte(listen, ':'):]), whole: t}
	s.open("/?from=a-link")
	s.shows("Base URL")
	for i, part := range strings.Split(s.text(`[...document.querySelectorAll("[data-origin]")].map((e) => e.textContent).join(" ")`), " ") {
		if part != s.origin {
			t.Errorf("place %d of the page says %q, and the browser is at %s", i, part, s.origin)
		}
	}
	s.looksAt(t, "welcome", map[string]string{"page": "/"})
}
