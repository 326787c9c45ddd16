package web_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"iop/state"
)

// wantIn fails for each text that a page lacks.
func wantIn(t *testing.T, got reply, status int, texts ...string) {
	t.Helper()
	if got.status != status {
		t.Errorf("status %d, want %d", got.status, status)
	}
	for _, text := range texts {
		if !strings.Contains(got.body, text) {
			t.Errorf("the page lacks %q:\n%s", text, got.body)
		}
	}
}

// TestFormsThatAreNone says what is wrong with a body that is no form, and calls it no fault of the Edge's.
func TestFormsThatAreNone(t *testing.T) {
	r := newRig(t).signIn()
	wantIn(t, r.post("/admin/keys", url.Values{"name": {strings.Repeat("x", 2<<20)}}), http.StatusRequestEntityTooLarge, "The form is too long.")
	wantIn(t, r.do(http.MethodPost, "/admin/keys?%zz", url.Values{"name": {"x"}}), http.StatusBadRequest, "The form could not be read.")
}

// TestEachWrongFieldIsNamed holds that one round is enough to know what is wrong, and that nothing typed is lost.
func TestEachWrongFieldIsNamed(t *testing.T) {
	r := newRig(t).signIn()
	got := r.post("/admin/keys", url.Values{"name": {"typed"}, "rpm": {"many"}, "tpm": {"99999999999999999999"}, "expires": {"soon"}})
	wantIn(t, got, http.StatusUnprocessableEntity, "Requests per minute: must be a whole number", "Tokens per minute: the number is too large", "Expires: must be a date",
		`value="typed"`, `value="many"`, `value="soon"`)
	if marked := strings.Count(got.body, `aria-invalid="true"`); marked != 3 {
		t.Errorf("%d fields are marked, want 3", marked)
	}
	if strings.Contains(got.body, "Field:") {
		t.Error("a field is named twice")
	}
	// The API calls a slot's name slot, as its path does; the field is marked all the same.
	if _, err := r.store.SetProfile(t.Context(), state.Profile{Name: "p", Header: state.HeaderXAPIKey, BaseURLs: []string{"https://provider.test/v1"}}, "test"); err != nil {
		t.Fatal(err)
	}
	got = r.post("/admin/slots", url.Values{"name": {"no spaces"}, "profile": {"p"}, "value": {"v"}})
	wantIn(t, got, http.StatusUnprocessableEntity, `value="no spaces" aria-invalid="true"`)
	got = r.post("/admin/join-tokens", url.Values{"node": {"no spaces"}})
	wantIn(t, got, http.StatusUnprocessableEntity, `value="no spaces" aria-invalid="true"`, "Field: Node name")
}

// TestKeyForm changes keys as a browser does: with all fields, and what they showed.
func TestKeyForm(t *testing.T) {
	r := newRig(t).signIn()
	key, _, err := r.store.CreateKey(t.Context(), state.KeySpec{Name: "alice", Priority: -5, RPM: 60})
	if err != nil {
		t.Fatal(err)
	}
	path := "/admin/keys/" + string(key.ID)
	shown := r.fields(path)
	change := func(name, value string) url.Values {
		form := url.Values{}
		for field, was := range shown {
			form[field] = was
		}
		form.Set(name, value)
		return form
	}
	// A priority below 0 is one of those that there are.
	r.follow(r.post(path, change("owner", "team")), "The key was changed")
	// Somebody else gave it a limit since the page was opened: saving something else leaves that alone.
	rpm := int64(5)
	if _, err := r.store.UpdateKey(t.Context(), key.ID, state.KeyChange{RPM: &rpm}); err != nil {
		t.Fatal(err)
	}
	r.follow(r.post(path, change("expires", "2099-03-31")), "The key was changed")
	now, err := r.store.Key(t.Context(), key.ID)
	if err != nil || now.RPM != 5 || now.Owner != "team" || now.Priority != -5 || now.Expires.Format("2006-01-02") != "2099-04-01" {
		t.Errorf("%+v, %v", now, err)
	}
	if again := r.fields(path); again.Get("expires") != "2099-03-31" {
		t.Errorf("the last day is %q on the page", again.Get("expires"))
	}
	bad := change("rpm", "many")
	bad.Set("owner", "typed in")
	wantIn(t, r.post(path, bad), http.StatusUnprocessableEntity, `value="many" aria-invalid="true"`, `value="typed in"`, `name="was_rpm" value="60"`)
	shown = r.fields(path)
	r.follow(r.post(path, change("expires", "")), "The key was changed")
	if now, err = r.store.Key(t.Context(), key.ID); err != nil || !now.Expires.IsZero() {
		t.Errorf("it still expires: %v, %v", now.Expires, err)
	}
}

var field = regexp.MustCompile(`<input (?:type="hidden" )?name="([^"]*)"[^>]*? value="([^"]*)"`)

// fields are what the fields of a page have.
func (r *rig) fields(path string) url.Values {
	r.t.Helper()
	form := url.Values{}
	for _, found := range field.FindAllStringSubmatch(r.get(path).body, -1) {
		form.Set(found[1], found[2])
	}
	if len(form) == 0 {
		r.t.Fatalf("%s has no field", path)
	}
	return form
}

// TestSessionThatEnded brings who signs in anew back to where they were, and says that a form was not done.
func TestSessionThatEnded(t *testing.T) {
	r := newRig(t)
	got := r.do(http.MethodGet, "/admin/runs", nil, "Hx-Request", "true", "Hx-Current-Url", r.admin+"/admin/runs?state=ended")
	if to := got.header.Get("Hx-Redirect"); got.status != http.StatusUnauthorized || to != "/admin/sign-in?next=%2Fadmin%2Fruns%3Fstate%3Dended" {
		t.Errorf("a part: %d to %q", got.status, to)
	}
	got = r.do(http.MethodGet, "/admin/runs", nil, "Hx-Request", "true", "Hx-Current-Url", "https://evil.test/elsewhere")
	if to := got.header.Get("Hx-Redirect"); to != "/admin/sign-in" {
		t.Errorf("a part of another page: to %q", to)
	}
	got = r.do(http.MethodPost, "/admin/keys", url.Values{"name": {"x"}}, "Referer", r.admin+"/admin/keys")
	if to := got.header.Get("Location"); to != "/admin/sign-in?next=%2Fadmin%2Fkeys&unsent=1" {
		t.Fatalf("a form: to %q", to)
	}
	wantIn(t, r.get(got.header.Get("Location")), http.StatusOK, "your change was not applied", `name="next" value="/admin/keys"`)
	if keys, err := r.store.Keys(t.Context()); err != nil || len(keys) != 0 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
}

// TestPlaygroundKeyRevoked holds that the playground goes on with another key when somebody revoked its own.
func TestPlaygroundKeyRevoked(t *testing.T) {
	r := newRig(t).signIn()
	ask := func() reply {
		return r.do(http.MethodPost, "/admin/playground/chat", nil, "Content-Type", "application/json")
	}
	ask()
	keys, err := r.store.Keys(t.Context())
	if err != nil || len(keys) != 1 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	r.follow(r.post("/admin/keys/"+string(keys[0].ID)+"/revoke", url.Values{}), "The key was revoked")
	wantIn(t, ask(), http.StatusBadRequest, "the request body is empty")
	if keys, err = r.store.Keys(t.Context()); err != nil || len(keys) != 2 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
}
