package admin

import (
	"encoding/json"
	"time"

	"iop/execution"
	"iop/gateway/credential"
	"iop/identity"
	"iop/lease"
	"iop/state"
)

// ReleasedNote is the limit of every withdrawal, which each answer about one repeats.
const ReleasedNote = "a value that a Node has already opened can only be invalidated at the provider: replace it there"

// Slot is a slot without its value, which nothing here ever shows.
type Slot struct {
	Name                  execution.SlotName    `json:"name"`
	Profile               execution.ProfileName `json:"profile"`
	Revision              execution.Revision    `json:"revision"` // raised by each change, of its profile too
	Enabled               bool                  `json:"enabled"`
	Revoked               bool                  `json:"revoked"`
	NeedsProviderRotation bool                  `json:"needs_provider_rotation"` // only the provider can make its value useless
	Usable                bool                  `json:"usable"`                  // leases are issued, if the master key is there
	MasterKey             state.MasterKeyID     `json:"master_key"`              // the id of what its value is sealed under
	Updated               time.Time             `json:"updated"`
	By                    string                `json:"by"`
}

// Value is a provider's secret on its way into the state. It prints as [secret]; in the JSON of a request it is itself.
type Value struct{ state.Secret }

// MarshalJSON reveals the value: only bodies of requests have one.
func (v Value) MarshalJSON() ([]byte, error) { return json.Marshal(v.Reveal()) }

// UnmarshalJSON reads a string.
func (v *Value) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	*v = Value{state.NewSecret(text)}
	return nil
}

// NewSlot is the body of PUT /admin/v1/slots/{slot}.
type NewSlot struct {
	Profile execution.ProfileName `json:"profile"`
	Value   Value                 `json:"value"`
}

// NewValue is the body of POST /admin/v1/slots/{slot}/rotate.
type NewValue struct {
	Value Value `json:"value"`
}

// Revocation is the body of POST /admin/v1/slots/{slot}/revoke.
type Revocation struct {
	NeedsProviderRotation bool `json:"needs_provider_rotation,omitempty"`
}

// States of a Withdrawal.
const (
	Done    = "done"
	Pending = "pending"
)

// Withdrawal says what became of the leases of before a change.
type Withdrawal struct {
	State  string     `json:"state"`            // Done: none can be used any more; Pending: one may be, until Until
	Until  *time.Time `json:"until"`            // nil for Done
	Leases int        `json:"leases_withdrawn"` // that had not ended
	Runs   int        `json:"runs_cancelled"`
	Note   string     `json:"note,omitempty"` // ReleasedNote, where a value is taken out of use
}

// withdrawalView is a Withdrawal as this API shows it.
func withdrawalView(w credential.Withdrawal) Withdrawal {
	v := Withdrawal{State: Done, Leases: w.Leases, Runs: w.Runs}
	if !w.Done(time.Now()) {
		until := w.Until.UTC()
		v.State, v.Until = Pending, &until
	}
	return v
}

// SlotChange is the answer to a change of a slot.
type SlotChange struct {
	Withdrawal
	Slot *Slot `json:"slot"` // as it is now; nil once it is deleted
}

// KeyRevocation is the answer to POST /admin/v1/keys/{id}/revoke.
type KeyRevocation struct {
	ID state.KeyID `json:"id"`
	Withdrawal
}

// Profile says how a provider's credential is sent, and where it may go.
type Profile struct {
	Name     execution.ProfileName `json:"name"`
	Header   string                `json:"header"`
	BaseURLs []string              `json:"base_urls"`
	Updated  time.Time             `json:"updated"`
	By       string                `json:"by"`
}

// NewProfile is the body of PUT /admin/v1/profiles/{profile}.
type NewProfile struct {
	Header   string   `json:"header"`
	BaseURLs []string `json:"base_urls"`
}

// Spec is what the state makes the profile from. Its error is a *state.SpecError.
func (p *NewProfile) Spec(name execution.ProfileName) (state.Profile, error) {
	header, err := state.ParseHeader(p.Header)
	return state.Profile{Name: name, Header: header, BaseURLs: p.BaseURLs}, err
}

// NodeList is the answer to GET /admin/v1/node-list: who may connect in managed mode, and who may not.
type NodeList struct {
	Allowed []AllowedNode `json:"allowed"`
	Denied  []Denial      `json:"denied"`
}

// AllowedNode is a Node that may connect, with what may be leased to it.
type AllowedNode struct {
	Node     execution.NodeID `json:"node"`
	Slots    []string         `json:"slots"`    // globs; empty: none
	Profiles []string         `json:"profiles"` // globs; empty: none
	Updated  time.Time        `json:"updated"`
	By       string           `json:"by"`
}

// NewAllowance is the body of PUT /admin/v1/node-list/allowed/{node}.
type NewAllowance struct {
	Slots    []string `json:"slots"`
	Profiles []string `json:"profiles"`
}

// Denial bars a Node by its name, or one certificate by its serial number.
type Denial struct {
	Node   execution.NodeID        `json:"node,omitempty"`
	Serial state.CertificateSerial `json:"serial,omitempty"`
	At     time.Time               `json:"at"`
	By     string                  `json:"by"`
}

// NodesChange is the answer to a change of the lists.
type NodesChange struct {
	SessionsEnded int          `json:"sessions_ended"` // that may not go on
	Allowed       *AllowedNode `json:"allowed,omitempty"`
}

// Identity is the answer to GET /admin/v1/identity: who the Edge is to its Nodes.
type Identity struct {
	Managed   bool        `json:"managed"` // false: nothing else is told
	ID        identity.ID `json:"id,omitempty"`
	Serial    string      `json:"serial,omitempty"`
	NotBefore *time.Time  `json:"not_before,omitempty"`
	NotAfter  *time.Time  `json:"not_after,omitempty"` // the earliest end in the chain
	Roots     int         `json:"roots,omitempty"`     // authorities that are believed
	Changed   *time.Time  `json:"changed,omitempty"`   // when this certificate and these authorities took effect
	Loads     uint64      `json:"loads,omitempty"`
	Refused   uint64      `json:"refused,omitempty"`
	Fault     string      `json:"fault,omitempty"` // why what was offered last did not take effect
	FaultAt   *time.Time  `json:"fault_at,omitempty"`
}

// MasterKey is one key that slots are sealed under, by its id.
type MasterKey struct {
	ID      state.MasterKeyID `json:"id"`
	Slots   int64             `json:"slots"`
	Known   bool              `json:"known"`   // if not, its slots give no credential
	Current bool              `json:"current"` // new values are sealed under it
}

// SigningKey is one key that leases are signed with, by its id, the thumbprint of its public part.
type SigningKey struct {
	ID            lease.Thumbprint `json:"id"`
	Role          lease.KeyRole    `json:"role"`
	Announced     time.Time        `json:"announced"`                // to Nodes, since when
	UsableFrom    *time.Time       `json:"usable_from,omitempty"`    // of the next key: it must have been announced for ten minutes
	VerifiesUntil *time.Time       `json:"verifies_until,omitempty"` // of a former key: its last lease has ended then
}

// SigningKeys is the answer to GET /admin/v1/signing-key.
type SigningKeys struct {
	Keys    []SigningKey `json:"keys"`    // the current one, the next, the former ones
	Rotates time.Time    `json:"rotates"` // when the next one takes the current one's place
}

// SigningKeyRotation is the answer to POST /admin/v1/signing-key/rotate.
type SigningKeyRotation struct {
	State string     `json:"state"`           // Done, or Pending: it happens by itself at Until
	Until *time.Time `json:"until,omitempty"` // when the next key has been announced for long enough
	SigningKeys
}

// signingKeysView are the keys as this API shows them.
func signingKeysView(keys []lease.KeyStatus, rotates time.Time) SigningKeys {
	view := SigningKeys{Keys: make([]SigningKey, len(keys)), Rotates: rotates.UTC()}
	for i, k := range keys {
		view.Keys[i] = SigningKey{
			ID: k.ID, Role: k.Role, Announced: k.Announced.UTC(), UsableFrom: optional(k.UsableFrom.UTC()), VerifiesUntil: optional(k.VerifiesUntil.UTC()),
		}
	}
	return view
}

// Rewrapped is the answer to POST /admin/v1/master-keys/rewrap.
type Rewrapped struct {
	Moved     int               `json:"moved"` // slots
	MasterKey state.MasterKeyID `json:"master_key"`
}

// SlotView is a slot as this API shows it.
func SlotView(s *state.Slot) Slot {
	return Slot{
		Name: s.Name, Profile: s.Profile, Revision: s.Revision, Enabled: s.Enabled, Revoked: s.Revoked,
		NeedsProviderRotation: s.NeedsProviderRotation, Usable: s.Usable(), MasterKey: s.MasterKey, Updated: s.Updated.UTC(), By: s.By,
	}
}

// ProfileView is a profile as this API shows it.
func ProfileView(p *state.Profile) Profile {
	return Profile{Name: p.Name, Header: p.Header.String(), BaseURLs: names(p.BaseURLs), Updated: p.Updated.UTC(), By: p.By}
}

// allowedNodeView is an entry of the allow-list as this API shows it.
func allowedNodeView(a *state.NodeAllow) AllowedNode {
	return AllowedNode{Node: a.Node, Slots: names(a.Slots), Profiles: names(a.Profiles), Updated: a.Updated.UTC(), By: a.By}
}

// NodeListView is both lists as this API shows them.
func NodeListView(allows []state.NodeAllow, denials []state.Denial) NodeList {
	list := NodeList{Allowed: make([]AllowedNode, len(allows)), Denied: make([]Denial, len(denials))}
	for i := range allows {
		list.Allowed[i] = allowedNodeView(&allows[i])
	}
	for i, d := range denials {
		list.Denied[i] = Denial{Node: d.Node, Serial: d.Serial, At: d.At.UTC(), By: d.By}
	}
	return list
}

// MasterKeyViews are the keys as this API shows them.
func MasterKeyViews(uses []state.MasterKeyUse) []MasterKey {
	views := make([]MasterKey, len(uses))
	for i, u := range uses {
		views[i] = MasterKey{ID: u.ID, Slots: u.Slots, Known: u.Known, Current: u.Current}
	}
	return views
}

// identityView is the Edge's identity as this API shows it.
func identityView(s *identity.Status) Identity {
	return Identity{
		Managed: true, ID: s.ID, Serial: s.Serial, NotBefore: optional(s.NotBefore), NotAfter: optional(s.NotAfter), Roots: s.Roots,
		Changed: optional(s.Changed), Loads: s.Loads, Refused: s.Refused, Fault: s.Fault, FaultAt: optional(s.FaultAt),
	}
}
