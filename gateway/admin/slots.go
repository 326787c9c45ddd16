package admin

import (
	"context"
	"errors"
	"net/http"
	"time"

	"iop/execution"
	"iop/state"
)

// changeTime bounds a change of what Nodes may have, with the two seconds in which they are told.
const changeTime = 20 * time.Second

// lasting is the time of a change that must not stop half-way because who asked for it has gone.
func lasting(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(r.Context()), changeTime)
}

func slotName(r *http.Request) execution.SlotName { return execution.SlotName(r.PathValue("slot")) }

// about says which part of the path does not exist, where that is what err says.
func about(part string, err error) error {
	if errors.Is(err, state.ErrNotFound) {
		return &failure{http.StatusNotFound, "not_found", part, "there is no such " + part}
	}
	return err
}

func (a *api) slots(r *http.Request) (any, error) {
	slots, err := a.store.Slots(r.Context())
	if err != nil {
		return nil, err
	}
	views := make([]Slot, len(slots))
	for i := range slots {
		views[i] = SlotView(&slots[i])
	}
	return list[Slot]{views}, nil
}

func (a *api) oneSlot(r *http.Request) (any, error) {
	slot, err := a.store.Slot(r.Context(), slotName(r))
	if err != nil {
		return nil, about("slot", err)
	}
	return SlotView(&slot), nil
}

// slotEdit is one change of a slot in the state.
type slotEdit func(context.Context, execution.SlotName) (state.Slot, error)

// changeSlot makes the change, has the Edge see to the leases of before, and says what became of them.
func (a *api) changeSlot(r *http.Request, action, note string, edit slotEdit) (any, error) {
	ctx, cancel := lasting(r)
	defer cancel()
	name := slotName(r)
	slot, err := edit(ctx, name)
	if err != nil {
		return nil, about("slot", err)
	}
	view := SlotView(&slot)
	return a.slotChanged(ctx, r, action, note, name, &view)
}

func (a *api) slotChanged(ctx context.Context, r *http.Request, action, note string, name execution.SlotName, view *Slot) (any, error) {
	a.done(r, action, "slot", name)
	withdrawal, err := a.edge.SlotChanged(ctx, name)
	if err != nil {
		a.log.Error("a slot was changed, but its leases could not be withdrawn", "slot", name, "error", err)
		return nil, notTold()
	}
	change := SlotChange{Withdrawal: withdrawalView(withdrawal), Slot: view}
	change.Note = note
	return change, nil
}

// notTold is the answer where the change holds but the Edge could not act on it.
func notTold() error {
	return &failure{http.StatusInternalServerError, "not_withdrawn", "",
		"the change is in force for new leases, but the Nodes could not be notified; earlier leases expire within a minute"}
}

// setSlot makes a slot, or gives one a value and a profile.
func (a *api) setSlot(r *http.Request) (any, error) {
	var body NewSlot
	if err := decodeValue(r, &body); err != nil {
		return nil, err
	}
	return a.changeSlot(r, "set slot", "", func(ctx context.Context, name execution.SlotName) (state.Slot, error) {
		return a.store.SetSlot(ctx, state.SlotSpec{Slot: name, Profile: body.Profile, Value: body.Value.Secret}, by(r))
	})
}

func (a *api) rotateSlot(r *http.Request) (any, error) {
	var body NewValue
	if err := decodeValue(r, &body); err != nil {
		return nil, err
	}
	return a.changeSlot(r, "rotate slot", ReleasedNote, func(ctx context.Context, name execution.SlotName) (state.Slot, error) {
		return a.store.RotateSlot(ctx, name, body.Value.Secret, by(r))
	})
}

func (a *api) enableSlot(r *http.Request) (any, error) {
	return a.changeSlot(r, "enable slot", "", func(ctx context.Context, name execution.SlotName) (state.Slot, error) {
		return a.store.EnableSlot(ctx, name, by(r))
	})
}

func (a *api) disableSlot(r *http.Request) (any, error) {
	return a.changeSlot(r, "disable slot", ReleasedNote, func(ctx context.Context, name execution.SlotName) (state.Slot, error) {
		return a.store.DisableSlot(ctx, name, by(r))
	})
}

func (a *api) revokeSlot(r *http.Request) (any, error) {
	var body Revocation
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	return a.changeSlot(r, "revoke slot", ReleasedNote, func(ctx context.Context, name execution.SlotName) (state.Slot, error) {
		return a.store.RevokeSlot(ctx, name, body.NeedsProviderRotation, by(r))
	})
}

func (a *api) deleteSlot(r *http.Request) (any, error) {
	ctx, cancel := lasting(r)
	defer cancel()
	name := slotName(r)
	if _, err := a.store.DeleteSlot(ctx, name, by(r)); err != nil {
		return nil, about("slot", err)
	}
	return a.slotChanged(ctx, r, "delete slot", ReleasedNote, name, nil)
}

func profileName(r *http.Request) execution.ProfileName {
	return execution.ProfileName(r.PathValue("profile"))
}

func (a *api) profiles(r *http.Request) (any, error) {
	profiles, err := a.store.Profiles(r.Context())
	if err != nil {
		return nil, err
	}
	views := make([]Profile, len(profiles))
	for i := range profiles {
		views[i] = ProfileView(&profiles[i])
	}
	return list[Profile]{views}, nil
}

func (a *api) oneProfile(r *http.Request) (any, error) {
	profile, err := a.store.Profile(r.Context(), profileName(r))
	if err != nil {
		return nil, about("profile", err)
	}
	return ProfileView(&profile), nil
}

// setProfile makes or changes a profile. A change raises the revision of its slots.
func (a *api) setProfile(r *http.Request) (any, error) {
	var body NewProfile
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	spec, err := body.Spec(profileName(r))
	if err != nil {
		return nil, err
	}
	ctx, cancel := lasting(r)
	defer cancel()
	profile, err := a.store.SetProfile(ctx, spec, by(r))
	if err != nil {
		return nil, err
	}
	a.done(r, "set profile", "profile", profile.Name)
	if err := a.edge.ProfilesChanged(ctx); err != nil {
		a.log.Error("a profile was changed, but the leases of its slots could not be withdrawn", "profile", profile.Name, "error", err)
		return nil, notTold()
	}
	return ProfileView(&profile), nil
}

func (a *api) deleteProfile(r *http.Request) (any, error) {
	ctx, cancel := lasting(r)
	defer cancel()
	name := profileName(r)
	if err := a.store.DeleteProfile(ctx, name, by(r)); err != nil {
		return nil, about("profile", err)
	}
	a.done(r, "delete profile", "profile", name)
	if err := a.edge.ProfilesChanged(ctx); err != nil {
		return nil, err
	}
	return map[string]any{"name": name}, nil
}
