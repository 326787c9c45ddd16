package web_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"iop/gateway"
	"iop/state"
	"iop/web"
)

// rig is a real Edge with its console, and a browser without a window.
type rig struct {
	t      *testing.T
	store  *state.Store
	admin  string // http://127.0.0.1:port
	public string
	token  string
	client *http.Client
}

func newRig(t *testing.T, change ...func(*gateway.Config)) *rig {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	store, err := state.Open(t.Context(), "sqlite://"+filepath.Join(t.TempDir(), "iop.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	token, _, err := store.AdminToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	config := gateway.Config{Store: store, Listen: "127.0.0.1:0", AdminListen: "127.0.0.1:0", Logger: log, Console: web.New}
	for _, set := range change {
		set(&config)
	}
	edge, err := gateway.New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- edge.Run(ctx) }()
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the Edge: %v", err)
		}
	})
	return &rig{
		t: t, store: store, token: token.Reveal(), admin: "http://" + edge.AdminAddr().String(), public: "http://" + edge.Addr().String(),
		client: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
}

// reply is an answer that has been read.
type reply struct {
	status int
	header http.Header
	body   string
}

func (r *rig) do(method, path string, form url.Values, header ...string) reply {
	r.t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.admin+path, body)
	if err != nil {
		r.t.Fatal(err)
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, string(text)}
}

func (r *rig) get(path string) reply { return r.do(http.MethodGet, path, nil) }

func (r *rig) post(path string, form url.Values) reply { return r.do(http.MethodPost, path, form) }

// signIn takes a session. The jar would not send a Secure cookie to http: what a browser does for loopback is done here.
func (r *rig) signIn() *rig {
	r.t.Helper()
	got := r.post("/admin/sign-in", url.Values{"token": {" " + r.token + "\n"}})
	if got.status != http.StatusSeeOther || got.header.Get("Location") != "/admin/" {
		r.t.Fatalf("sign-in: %d %s", got.status, got.body)
	}
	cookie, err := http.ParseSetCookie(got.header.Get("Set-Cookie"))
	if err != nil {
		r.t.Fatal(err)
	}
	if !cookie.HttpOnly || !cookie.Secure || cookie.SameSite != http.SameSiteStrictMode || cookie.Path != "/admin" {
		r.t.Errorf("the cookie: %v", got.header.Get("Set-Cookie"))
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		r.t.Fatal(err)
	}
	at, err := url.Parse(r.admin + "/admin/")
	if err != nil {
		r.t.Fatal(err)
	}
	cookie.Secure = false
	jar.SetCookies(at, []*http.Cookie{cookie})
	r.client.Jar = jar
	return r
}

func (r *rig) follow(got reply, want string) reply {
	r.t.Helper()
	if got.status != http.StatusSeeOther {
		r.t.Fatalf("%d, want a redirect: %s", got.status, got.body)
	}
	page := r.get(got.header.Get("Location"))
	if !strings.Contains(page.body, want) {
		r.t.Fatalf("%s does not say %q:\n%s", got.header.Get("Location"), want, page.body)
	}
	return page
}

func TestSignIn(t *testing.T) {
	r := newRig(t)
	if got := r.get("/"); got.status != http.StatusSeeOther || got.header.Get("Location") != "/admin/" {
		t.Errorf("/: %d to %s", got.status, got.header.Get("Location"))
	}
	for _, path := range []string{"/admin/", "/admin/keys", "/admin/nodes/x", "/admin/series", "/admin/usage/records"} {
		got := r.get(path)
		if got.status != http.StatusSeeOther || !strings.HasPrefix(got.header.Get("Location"), "/admin/sign-in") {
			t.Errorf("%s without a session: %d to %q", path, got.status, got.header.Get("Location"))
		}
		if got := r.do(http.MethodGet, path, nil, "Hx-Request", "true"); got.status != http.StatusUnauthorized || got.header.Get("Hx-Redirect") != "/admin/sign-in" {
			t.Errorf("a part of %s without a session: %d %v", path, got.status, got.header)
		}
	}
	if got := r.post("/admin/keys", url.Values{"name": {"x"}}); got.status != http.StatusSeeOther {
		t.Errorf("a form without a session: %d", got.status)
	}
	if got := r.post("/admin/sign-in", url.Values{"token": {"adm-iop_wrong"}}); got.status != http.StatusUnauthorized || got.header.Get("Set-Cookie") != "" || strings.Contains(got.body, "adm-iop_wrong") {
		t.Errorf("a wrong token: %d %v", got.status, got.header)
	}
	for next, want := range map[string]string{
		"/admin/keys?done=x": "/admin/keys?done=x", "//evil.test/": "/admin/", "https://evil.test/admin/": "/admin/", "/admin/\\evil": "/admin/", "/v1": "/admin/", "/admin/../x": "/admin/",
	} {
		if got := r.post("/admin/sign-in", url.Values{"token": {r.token}, "next": {next}}); got.header.Get("Location") != want {
			t.Errorf("next %q leads to %q, want %q", next, got.header.Get("Location"), want)
		}
	}
	r.signIn()
	if got := r.get("/admin/"); got.status != http.StatusOK || !strings.Contains(got.body, "No Node has connected yet") {
		t.Errorf("the overview: %d %s", got.status, got.body)
	}
	if got := r.post("/admin/sign-out", url.Values{}); got.status != http.StatusSeeOther {
		t.Errorf("sign-out: %d", got.status)
	}
	if got := r.get("/admin/"); got.status != http.StatusSeeOther {
		t.Errorf("after signing out: %d", got.status)
	}
}

// TestThreat61ConsoleForms holds that no page of another origin can make a browser change anything here.
func TestThreat61ConsoleForms(t *testing.T) {
	r := newRig(t).signIn()
	for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.test"}, {"Origin", "null"}} {
		if got := r.do(http.MethodPost, "/admin/keys", url.Values{"name": {"stolen"}}, header...); got.status != http.StatusForbidden {
			t.Errorf("%v: %d", header, got.status)
		}
	}
	keys, err := r.store.Keys(t.Context())
	if err != nil || len(keys) != 0 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
	// No GET changes anything: every path that changes something takes POST alone.
	for _, path := range []string{"/admin/keys/x/revoke", "/admin/nodes/x/drain", "/admin/runs/x/cancel", "/admin/slots/x/disable", "/admin/sign-out"} {
		if got := r.get(path); got.status != http.StatusNotFound && got.status != http.StatusMethodNotAllowed {
			t.Errorf("GET %s: %d", path, got.status)
		}
	}
}

var inline = regexp.MustCompile(`(?i)<script(?:\s[^>]*)?>[^<]|\son[a-z]+=|\sstyle=|<style|javascript:|(?:src|href)="(?:https?:)?//`)

// TestPagesAreSelfContained holds that pages have no script or style of their own and load nothing from elsewhere.
func TestPagesAreSelfContained(t *testing.T) {
	r := newRig(t).signIn()
	for _, path := range []string{"", "nodes", "runs", "routes", "keys", "slots", "usage", "playground", "audit", "nothing-here"} {
		got := r.get("/admin/" + path)
		if found := inline.FindString(got.body); found != "" {
			t.Errorf("/admin/%s has %q", path, found)
		}
		policy := got.header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("/admin/%s: the policy lacks %q: %s", path, want, policy)
			}
		}
		if strings.Contains(policy, "unsafe") || got.header.Get("Cache-Control") != "no-store" || got.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("/admin/%s: %v", path, got.header)
		}
		if !strings.Contains(got.body, "</html>") {
			t.Errorf("/admin/%s ends before its end: %d\n%s", path, got.status, got.body)
		}
	}
	for _, asset := range regexp.MustCompile(`/admin/assets/[^"]+`).FindAllString(r.get("/admin/playground").body, -1) {
		if got := r.get(asset); got.status != http.StatusOK || len(got.body) == 0 {
			t.Errorf("%s: %d", asset, got.status)
		}
	}
	if got := r.get("/admin/assets/"); got.status != http.StatusNotFound {
		t.Errorf("the assets are listed: %d", got.status)
	}
}

func TestKeys(t *testing.T) {
	r := newRig(t).signIn()
	made := r.post("/admin/keys", url.Values{"name": {`<img src=x onerror=alert(1)>`}, "owner": {`"><script>`}, "routes": {"chat-*, b"}, "rpm": {"60"}, "expires": {"2099-03-31"}})
	secret := regexp.MustCompile(`sk-iop_[A-Za-z0-9]+`).FindString(made.body)
	if made.status != http.StatusOK || secret == "" {
		t.Fatalf("%d %s", made.status, made.body)
	}
	if strings.Contains(made.body, "<img") || strings.Contains(made.body, `"><script>`) {
		t.Error("a name is not text")
	}
	keys, err := r.store.Keys(t.Context())
	if err != nil || len(keys) != 1 || keys[0].RPM != 60 || len(keys[0].Routes) != 2 || keys[0].Expires.Format("2006-01-02") != "2099-04-01" {
		t.Fatalf("%+v, %v", keys, err)
	}
	page := "/admin/keys/" + string(keys[0].ID)
	for _, path := range []string{"/admin/keys", page} {
		if got := r.get(path); strings.Contains(got.body, secret) || !strings.Contains(got.body, "&lt;img src=x onerror=alert(1)&gt;") {
			t.Errorf("%s shows the secret, or not the name", path)
		}
	}
	for field, value := range map[string]string{"rpm": "-1", "tpm": "many", "expires": "tomorrow", "name": ""} {
		form := url.Values{"name": {"kept"}, "owner": {"typed in"}}
		form.Set(field, value)
		got := r.post("/admin/keys", form)
		if got.status != http.StatusUnprocessableEntity || !strings.Contains(got.body, `role="alert"`) || !strings.Contains(got.body, "typed in") {
			t.Errorf("%s=%q: %d\n%s", field, value, got.status, got.body)
		}
	}
	r.follow(r.post(page, url.Values{"name": {"alice"}, "rpm": {"0"}, "weight": {"3"}}), "The key was changed")
	if key, err := r.store.Key(t.Context(), keys[0].ID); err != nil || key.Name != "alice" || key.RPM != 0 || key.Weight != 3 || key.Owner != "" || len(key.Routes) != 0 {
		t.Errorf("%+v, %v", key, err)
	}
	r.follow(r.post(page+"/revoke", url.Values{}), "The key was revoked")
	if got := r.get(page); !strings.Contains(got.body, "Revoked") || strings.Contains(got.body, "Revoke the key") {
		t.Error("a revoked key can be revoked")
	}
	if got := r.get("/admin/keys/nobody"); got.status != http.StatusNotFound {
		t.Errorf("no such key: %d", got.status)
	}
	if got := r.get("/admin/keys?done=%3Cb%3E"); strings.Contains(got.body, "<b>") || strings.Contains(got.body, "&lt;b&gt;") {
		t.Error("an address can make the page say something")
	}
}

func TestJoinTokens(t *testing.T) {
	r := newRig(t).signIn()
	got := r.post("/admin/join-tokens", url.Values{"node": {"gpu-1"}})
	command := regexp.MustCompile(`iop node --edge (\S+) --join-token (\S+) --name gpu-1`).FindStringSubmatch(got.body)
	if got.status != http.StatusOK || command == nil || command[1] != strings.Replace(r.public, "http", "ws", 1)+"/tunnel/v1" {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if again := r.get("/admin/nodes"); strings.Contains(again.body, command[2]) || !strings.Contains(again.body, "Join tokens (1)") {
		t.Error("the token is shown again, or not listed")
	}
	if bad := r.post("/admin/join-tokens", url.Values{"node": {"no spaces"}}); bad.status != http.StatusUnprocessableEntity || !strings.Contains(bad.body, `role="alert"`) {
		t.Errorf("a faulty name: %d", bad.status)
	}
	tokens, err := r.store.JoinTokens(t.Context())
	if err != nil || len(tokens) != 1 {
		t.Fatalf("%v %v", tokens, err)
	}
	r.follow(r.post("/admin/join-tokens/"+string(tokens[0].ID)+"/revoke", url.Values{}), "The join token was revoked")
}

// TestPlayground calls the public API with a key that nobody sees and that ends with the session.
func TestPlayground(t *testing.T) {
	r := newRig(t).signIn()
	got := r.do(http.MethodPost, "/admin/playground/chat", nil, "Content-Type", "application/json")
	if got.status != http.StatusBadRequest || !strings.Contains(got.body, `"error"`) {
		t.Errorf("an empty request: %d %s", got.status, got.body)
	}
	keys, err := r.store.Keys(t.Context())
	if err != nil || len(keys) != 1 || keys[0].Expires.IsZero() || keys[0].Concurrency == 0 {
		t.Fatalf("%+v %v", keys, err)
	}
	r.do(http.MethodPost, "/admin/playground/chat", nil)
	if keys, err = r.store.Keys(t.Context()); err != nil || len(keys) != 1 {
		t.Errorf("%d keys for one session, %v", len(keys), err)
	}
	if page := r.get("/admin/keys").body; !strings.Contains(page, string(keys[0].ID)) || strings.Contains(page, "Not shown") {
		t.Errorf("the key in use is not shown:\n%s", page)
	}
	r.post("/admin/sign-out", url.Values{})
	if key, err := r.store.Key(t.Context(), keys[0].ID); err != nil || key.RevokedAt.IsZero() {
		t.Errorf("the key outlives the session: %+v %v", key, err)
	}
	if page := r.signIn().get("/admin/keys").body; strings.Contains(page, string(keys[0].ID)) || !strings.Contains(page, "Not shown: 1 ") {
		t.Errorf("the key that has ended is among the keys:\n%s", page)
	}
}

// TestSignInIsLimited: who guesses is told to wait, and the admin token is let in meanwhile.
func TestSignInIsLimited(t *testing.T) {
	r := newRig(t)
	limited := 0
	for range 30 {
		got := r.post("/admin/sign-in", url.Values{"token": {"adm-iop_wrong"}})
		if got.status == http.StatusTooManyRequests && got.header.Get("Retry-After") != "" && strings.Contains(got.body, "Try again in") {
			limited++
		} else if got.status != http.StatusUnauthorized {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	if limited == 0 {
		t.Error("30 wrong tokens, and no limit")
	}
	r.signIn()
}
