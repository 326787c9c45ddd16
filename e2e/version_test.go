package e2e

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"
)

// TestOneVersion: whoever tells the version of the binary tells the same one.
func TestOneVersion(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{})
	var built struct{ Version, Revision string }
	s.json(&built, "version", "--json")
	if built.Version == "" {
		t.Fatal("iop version has none")
	}
	if line := iop(t, nil, "version"); !strings.HasPrefix(line, "iop "+built.Version+" ") {
		t.Errorf("iop version: %s", line)
	}
	var status struct{ Version string }
	s.operator("/status", &status)
	var nodes struct {
		Data []struct{ Sessions []struct{ Version string } }
	}
	s.operator("/nodes", &nodes)
	var says struct{ Version string }
	s.operator("/nodes/node-1/capabilities", &says)
	for where, got := range map[string]string{
		"GET /status": status.Version, "a Node's registration": nodes.Data[0].Sessions[0].Version, "what a Node says": says.Version,
	} {
		if got != built.Version {
			t.Errorf("%s: version %q, and the binary is %q", where, got, built.Version)
		}
	}
	for command, want := range map[string]string{"status": "version " + built.Version, "nodes show node-1": "version " + built.Version} {
		if out := iop(t, s.env, strings.Fields(command)...); !strings.Contains(out, want+"\n") {
			t.Errorf("iop %s does not say %q:\n%s", command, want, out)
		}
	}
	if page := s.adminPage(t, "/metrics"); !strings.Contains(page, `iop_build_info{`) || !strings.Contains(page, `version="`+built.Version+`"`) {
		t.Errorf("the metrics do not have version %s", built.Version)
	}
	if page := s.console(t, "/admin/"); !strings.Contains(page, "version "+built.Version+".") {
		t.Errorf("the console does not have version %s", built.Version)
	}
}

// adminPage gets a page of the admin listener that needs no session.
func (s *stack) adminPage(t *testing.T, path string) string {
	t.Helper()
	res, err := http.Get(s.admin + path)
	if err != nil {
		t.Fatal(err)
	}
	return pageOf(t, res)
}

func pageOf(t *testing.T, res *http.Response) string {
	t.Helper()
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", res.Request.URL, res.Status, err)
	}
	return string(body)
}

// console signs in and gets a page of the console.
func (s *stack) console(t *testing.T, path string) string {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Jar: jar}
	res, err := client.PostForm(s.admin+"/admin/sign-in", url.Values{"token": {s.adminToken()}})
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res, err = client.Get(s.admin + path); err != nil {
		t.Fatal(err)
	}
	return pageOf(t, res)
}
