package web

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"iop/gateway/admin"
)

// keysData is what the page of the keys shows.
type keysData struct {
	Keys    []admin.Key
	Past    int // keys of ended playgrounds, which nobody looks for: they are not shown
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
	data.Keys = slices.DeleteFunc(list.Data, endedPlayground)
	data.Past = len(list.Data) - len(data.Keys)
	if isPart(r) {
		c.pages.part(w, "keys", "keys-live", data)
		return nil
	}
	c.pages.show(w, r, status, "keys", data)
	return nil
}

// endedPlayground reports whether a key was made for a session's playground, and is good for nothing any more.
func endedPlayground(k admin.Key) bool {
	made := k.Name == playgroundName || strings.HasPrefix(k.Name, playgroundName+" ")
	return made && (k.Revoked != nil || k.Expires != nil && k.Expires.Before(time.Now()))
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
	data := keysData{Filled: f.filled()}
	if data.Base, err = c.base(r); err != nil {
		return err
	}
	err = f.err()
	if err == nil {
		data.New = &admin.Key{}
		err = c.api.post(r.Context(), "/keys", body, data.New)
	}
	if err != nil {
		data.New = nil
		if data.Fault = refusedForm(err); data.Fault == nil {
			return err
		}
		return c.showKeys(w, r, http.StatusUnprocessableEntity, data)
	}
	data.Filled = nil
	return c.showKeys(w, r, http.StatusOK, data)
}

// keyFields are what can be changed of a key, in the order of the form.
var keyFields = []string{"name", "owner", "routes", "rpm", "tpm", "concurrency", "monthly_tokens", "weight", "priority", "expires"}

// keyData is what the page of one key shows.
type keyData struct {
	Key     admin.Key
	Fields  []string
	Filled  map[string]string // what the form has, and under "was_" what it showed at first
	Outcome string
	Fault   *formFault
}

func (c *console) oneKey(w http.ResponseWriter, r *http.Request) error {
	return c.showKey(w, r, http.StatusOK, keyData{Outcome: outcome(r)})
}

func (c *console) showKey(w http.ResponseWriter, r *http.Request, status int, data keyData) error {
	if err := c.api.get(r.Context(), "/keys"+seg(r.PathValue("id")), nil, &data.Key); err != nil {
		return err
	}
	data.Fields = keyFields
	if data.Filled == nil {
		data.Filled = formOfKey(&data.Key)
	}
	c.pages.show(w, r, status, "key", data)
	return nil
}

// formOfKey is the form to change a key as it is first shown.
func formOfKey(k *admin.Key) map[string]string {
	values := map[string]string{
		"name": k.Name, "owner": k.Owner, "routes": strings.Join(k.Routes, ", "), "rpm": strconv.FormatInt(k.RPM, 10), "tpm": strconv.FormatInt(k.TPM, 10),
		"concurrency": strconv.FormatInt(k.Concurrency, 10), "monthly_tokens": strconv.FormatInt(k.MonthlyTokens, 10),
		"weight": strconv.Itoa(k.Weight), "priority": strconv.Itoa(k.Priority), "expires": lastDay(k.Expires),
	}
	for _, name := range keyFields {
		values[former+name] = values[name]
	}
	return values
}

// changeKey sets what was changed of a key; a limit of 0 is none.
func (c *console) changeKey(w http.ResponseWriter, r *http.Request) error {
	f, err := formOf(r)
	if err != nil {
		return err
	}
	all := map[string]any{
		"name": f.text("name"), "owner": f.text("owner"), "routes": f.words("routes"), "rpm": f.number("rpm"), "tpm": f.number("tpm"),
		"concurrency": f.number("concurrency"), "monthly_tokens": f.number("monthly_tokens"),
		"weight": cmp.Or(f.number("weight"), 1), "priority": f.number("priority"), "expires": f.day("expires"),
	}
	body := map[string]any{}
	for _, name := range keyFields {
		if f.changed(name) {
			body[name] = all[name]
		}
	}
	path := "/keys" + seg(r.PathValue("id"))
	if err = f.err(); err == nil {
		err = c.api.call(r.Context(), http.MethodPatch, path, body, nil)
	}
	if err != nil {
		if fault := refusedForm(err); fault != nil {
			return c.showKey(w, r, http.StatusUnprocessableEntity, keyData{Fault: fault, Filled: f.filled()})
		}
		return err
	}
	return done(w, r, "/admin/keys"+seg(r.PathValue("id")), "key-changed")
}

func (c *console) revokeKey(w http.ResponseWriter, r *http.Request) error {
	if err := c.api.post(r.Context(), "/keys"+seg(r.PathValue("id"))+"/revoke", nil, nil); err != nil {
		return err
	}
	return done(w, r, "/admin/keys", "key-revoked")
}
