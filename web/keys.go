package web

import (
	"net/http"

	"iop/gateway/admin"
)

// keysData is what the page of the keys shows.
type keysData struct {
	Keys    []admin.Key
	Outcome string
	// New is the key that was just made, with its secret, which is shown this once.
	New    *admin.Key
	Base   string // of the public API, for a line that uses the key
	Fault  *formFault
	Filled map[string]string // what the refused form had
}

func (c *console) keys(w http.ResponseWriter, r *http.Request) error {
	data := keysData{Outcome: outcome(r)}
	return c.showKeys(w, r, http.StatusOK, data)
}

func (c *console) showKeys(w http.ResponseWriter, r *http.Request, status int, data keysData) error {
	var list listOf[admin.Key]
	if err := c.api.get(r.Context(), "/keys", nil, &list); err != nil {
		return err
	}
	data.Keys = list.Data
	if isPart(r) {
		c.pages.part(w, "keys", "keys-live", data)
		return nil
	}
	c.pages.show(w, r, status, "keys", data)
	return nil
}

// createKey makes a key and shows it, this once.
func (c *console) createKey(w http.ResponseWriter, r *http.Request) error {
	f, err := formOf(r)
	if err != nil {
		return err
	}
	body := admin.NewKey{
		Name: f.text("name"), Owner: f.text("owner"), Routes: f.words("routes"), RPM: f.number("rpm"), TPM: f.number("tpm"),
		Concurrency: f.number("concurrency"), MonthlyTokens: f.number("monthly_tokens"),
		Weight: int(f.number("weight")), Priority: int(f.number("priority")), Expires: f.day("expires"),
	}
	data := keysData{Filled: f.filled(), Base: publicBase(r, c.parts.Listen())}
	if f.err == nil {
		data.New = &admin.Key{}
		f.err = c.api.post(r.Context(), "/keys", body, data.New)
	}
	if f.err != nil {
		data.New = nil
		if data.Fault = refusedForm(f.err); data.Fault == nil {
			return f.err
		}
		return c.showKeys(w, r, http.StatusUnprocessableEntity, data)
	}
	data.Filled = nil
	return c.showKeys(w, r, http.StatusOK, data)
}

// filled is what the form had, so that a fault loses nothing.
func (f *form) filled() map[string]string {
	values := map[string]string{}
	for name := range f.values {
		values[name] = f.values.Get(name)
	}
	return values
}

// keyData is what the page of one key shows.
type keyData struct {
	Key     admin.Key
	Outcome string
	Fault   *formFault
}

func (c *console) oneKey(w http.ResponseWriter, r *http.Request) error {
	return c.showKey(w, r, http.StatusOK, nil)
}

func (c *console) showKey(w http.ResponseWriter, r *http.Request, status int, fault *formFault) error {
	data := keyData{Outcome: outcome(r), Fault: fault}
	if err := c.api.get(r.Context(), "/keys"+seg(r.PathValue("id")), nil, &data.Key); err != nil {
		return err
	}
	c.pages.show(w, r, status, "key", data)
	return nil
}

// changeKey sets all that a key can be given; a limit of 0 is none.
func (c *console) changeKey(w http.ResponseWriter, r *http.Request) error {
	f, err := formOf(r)
	if err != nil {
		return err
	}
	routes := f.words("routes")
	if routes == nil {
		routes = []string{}
	}
	body := map[string]any{
		"name": f.text("name"), "owner": f.text("owner"), "routes": routes, "rpm": f.number("rpm"), "tpm": f.number("tpm"),
		"concurrency": f.number("concurrency"), "monthly_tokens": f.number("monthly_tokens"), "weight": max(f.number("weight"), 1),
		"priority": f.number("priority"),
	}
	path := "/keys" + seg(r.PathValue("id"))
	if f.err == nil {
		f.err = c.api.call(r.Context(), http.MethodPatch, path, body, nil)
	}
	if f.err != nil {
		if fault := refusedForm(f.err); fault != nil {
			return c.showKey(w, r, http.StatusUnprocessableEntity, fault)
		}
		return f.err
	}
	return done(w, r, "/admin/keys"+seg(r.PathValue("id")), "key-changed")
}

func (c *console) revokeKey(w http.ResponseWriter, r *http.Request) error {
	if err := c.api.post(r.Context(), "/keys"+seg(r.PathValue("id"))+"/revoke", nil, nil); err != nil {
		return err
	}
	return done(w, r, "/admin/keys", "key-revoked")
}
