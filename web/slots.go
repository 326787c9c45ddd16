package web

import (
	"net/http"
	"time"

	"iop/gateway/admin"
)

// slotsData is what the page of the credential slots shows. No value is ever in it.
type slotsData struct {
	Slots    []slotRow
	Profiles []admin.Profile
	Identity admin.Identity
	Outcome  string
	Change   *admin.SlotChange // what became of the leases of before
	Fault    *formFault
	Filled   map[string]string // but the value
}

// slotRow is a slot, and when it was lent last.
type slotRow struct {
	admin.Slot
	LastUse *time.Time
}

func (c *console) slots(w http.ResponseWriter, r *http.Request) error {
	return c.showSlots(w, r, http.StatusOK, slotsData{Outcome: outcome(r)})
}

func (c *console) showSlots(w http.ResponseWriter, r *http.Request, status int, data slotsData) error {
	var slots listOf[admin.Slot]
	var profiles listOf[admin.Profile]
	if err := c.api.get(r.Context(), "/slots", nil, &slots); err != nil {
		return err
	}
	if err := c.api.get(r.Context(), "/profiles", nil, &profiles); err != nil {
		return err
	}
	if err := c.api.get(r.Context(), "/identity", nil, &data.Identity); err != nil {
		return err
	}
	data.Profiles = profiles.Data
	for _, s := range slots.Data {
		row := slotRow{Slot: s}
		var page admin.AuditPage
		query := map[string][]string{"slot": {string(s.Name)}, "action": {"lease_issued"}, "limit": {"1"}}
		if err := c.api.get(r.Context(), "/audit", query, &page); err != nil {
			return err
		}
		if len(page.Data) > 0 {
			row.LastUse = &page.Data[0].At
		}
		data.Slots = append(data.Slots, row)
	}
	if isPart(r) {
		c.pages.part(w, "slots", "slots-live", data)
		return nil
	}
	c.pages.show(w, r, status, "slots", data)
	return nil
}

// setSlot makes a slot, or gives it another profile and value.
func (c *console) setSlot(w http.ResponseWriter, r *http.Request) error {
	f, err := formOf(r)
	if err != nil {
		return err
	}
	body := map[string]string{"profile": f.text("profile"), "value": f.values.Get("value")}
	data := slotsData{Filled: map[string]string{"name": f.text("name"), "profile": f.text("profile")}}
	// The name is a part of the API's path, which calls it slot.
	if f.text("name") == "" {
		f.fail("slot", "a slot must have a name")
	}
	return c.changeSlot(w, r, f, http.MethodPut, "/slots"+seg(f.text("name")), body, data, "slot-set")
}

// rotateSlot gives a slot another value.
func (c *console) rotateSlot(w http.ResponseWriter, r *http.Request) error {
	f, err := formOf(r)
	if err != nil {
		return err
	}
	body := map[string]string{"value": f.values.Get("value")}
	return c.changeSlot(w, r, f, http.MethodPost, "/slots"+seg(r.PathValue("slot"))+"/rotate", body, slotsData{}, "slot-rotated")
}

// switchSlot returns a handler of the changes that need no value.
func (c *console) switchSlot(what string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		f, err := formOf(r)
		if err != nil {
			return err
		}
		path := "/slots" + seg(r.PathValue("slot"))
		switch what {
		case "delete":
			return c.changeSlot(w, r, f, http.MethodDelete, path, nil, slotsData{}, "slot-deleted")
		case "revoke":
			body := map[string]bool{"needs_provider_rotation": f.text("compromised") != ""}
			return c.changeSlot(w, r, f, http.MethodPost, path+"/revoke", body, slotsData{}, "slot-revoked")
		}
		return c.changeSlot(w, r, f, http.MethodPost, path+"/"+what, nil, slotsData{}, "slot-"+what+"d")
	}
}

// changeSlot sends a change, and shows what became of the leases of before, or the fault.
func (c *console) changeSlot(w http.ResponseWriter, r *http.Request, f *form, method, path string, body any, data slotsData, word string) error {
	var change admin.SlotChange
	err := f.err()
	if err == nil {
		err = c.api.call(r.Context(), method, path, body, &change)
	}
	if err == nil {
		data.Outcome, data.Change, data.Filled = outcomes[word], &change, nil
		return c.showSlots(w, r, http.StatusOK, data)
	}
	if data.Fault = refusedForm(err); data.Fault == nil {
		return err
	}
	return c.showSlots(w, r, http.StatusUnprocessableEntity, data)
}
