package admin

import (
	"encoding/json"
	"fmt"
	"time"

	"iop/state"
)

// Key is an API key without its secret; with it (Key) in the answer to its creation only. A limit of 0 is none.
type Key struct {
	ID            state.KeyID `json:"id"`
	Key           string      `json:"key,omitempty"`
	Name          string      `json:"name"`
	Owner         string      `json:"owner"`     // empty: the key stands for itself
	Principal     string      `json:"principal"` // whom its use counts for
	Routes        []string    `json:"routes"`    // globs; empty: all models
	RPM           int64       `json:"rpm"`
	TPM           int64       `json:"tpm"`
	Concurrency   int64       `json:"concurrency"`
	MonthlyTokens int64       `json:"monthly_tokens"` // in a calendar month, UTC
	Weight        int         `json:"weight"`         // its principal's share of a queue
	Priority      int         `json:"priority"`       // among its principal's own requests
	Created       time.Time   `json:"created"`
	Expires       *time.Time  `json:"expires"`
	Revoked       *time.Time  `json:"revoked"`
	LastUsed      *time.Time  `json:"last_used"`
	Use           *KeyUse     `json:"use,omitempty"` // absent where no Edge tells it
	// Unmatched are those of Routes that no route and no model of a connected Node matches now. Lists of keys don't have it.
	Unmatched []UnmatchedModel `json:"unmatched,omitempty"`
}

// UnmatchedModel is a pattern of a key's routes that nothing in service matches: the Node with the model is away, or the name is
// mistyped.
type UnmatchedModel struct {
	Pattern string `json:"pattern"`
	Similar string `json:"similar"` // the name that was probably meant, or empty
}

// String is the pattern in a sentence.
func (m UnmatchedModel) String() string {
	line := fmt.Sprintf("no route and no connected Node has the model %q", m.Pattern)
	if m.Similar != "" {
		line += fmt.Sprintf("; did you mean %q?", m.Similar)
	}
	return line
}

// KeyUse is what of a key's limits is taken now.
type KeyUse struct {
	Running     int     `json:"running"`      // requests under way, queued ones too
	Requests    *Window `json:"requests"`     // nil without such a limit
	Tokens      *Window `json:"tokens"`       // nil without such a limit
	MonthTokens int64   `json:"month_tokens"` // counted for this month so far; 0 for a key without a budget
}

// Window is a limit by the minute.
type Window struct {
	Limit     int64 `json:"limit"`
	Remaining int64 `json:"remaining"`
	ResetMS   int64 `json:"reset_ms"` // until all of it is there again
}

// NewKey is the body of POST /admin/v1/keys. Fields that are left out mean no limit, weight 1 and priority 0.
type NewKey struct {
	Name          string     `json:"name"`
	Owner         string     `json:"owner,omitempty"`
	Routes        []string   `json:"routes,omitempty"`
	RPM           int64      `json:"rpm,omitempty"`
	TPM           int64      `json:"tpm,omitempty"`
	Concurrency   int64      `json:"concurrency,omitempty"`
	MonthlyTokens int64      `json:"monthly_tokens,omitempty"`
	Weight        int        `json:"weight,omitempty"`
	Priority      int        `json:"priority,omitempty"`
	Expires       *time.Time `json:"expires,omitempty"`
}

// Spec is what the store makes the key from.
func (n *NewKey) Spec() state.KeySpec {
	spec := state.KeySpec{
		Name: n.Name, Owner: n.Owner, Routes: n.Routes, RPM: n.RPM, TPM: n.TPM, Concurrency: n.Concurrency,
		MonthlyTokens: n.MonthlyTokens, Weight: n.Weight, Priority: n.Priority,
	}
	if n.Expires != nil {
		spec.Expires = *n.Expires
	}
	return spec
}

// KeyChange is the body of PATCH /admin/v1/keys/{id}. What is left out stays as it is.
type KeyChange struct {
	Name          *string   `json:"name,omitempty"`
	Owner         *string   `json:"owner,omitempty"` // "": the key stands for itself again
	Routes        *[]string `json:"routes,omitempty"`
	RPM           *int64    `json:"rpm,omitempty"`
	TPM           *int64    `json:"tpm,omitempty"`
	Concurrency   *int64    `json:"concurrency,omitempty"`
	MonthlyTokens *int64    `json:"monthly_tokens,omitempty"`
	Weight        *int      `json:"weight,omitempty"`
	Priority      *int      `json:"priority,omitempty"`
	Expires       Expiry    `json:"expires,omitzero"`
}

// Expiry is a time that may be given, given as null for never, or left out. Its zero value is left out.
type Expiry struct {
	Given bool
	Time  time.Time // zero: never
}

// UnmarshalJSON reads a time or null.
func (e *Expiry) UnmarshalJSON(data []byte) error {
	var t *time.Time
	if err := json.Unmarshal(data, &t); err != nil {
		return err
	}
	*e = Expiry{Given: true}
	if t != nil {
		e.Time = *t
	}
	return nil
}

// MarshalJSON writes the time, or null for never.
func (e Expiry) MarshalJSON() ([]byte, error) { return json.Marshal(optional(e.Time)) }

// Change is what the store does to the key.
func (c *KeyChange) Change() state.KeyChange {
	change := state.KeyChange{
		Name: c.Name, Owner: c.Owner, Routes: c.Routes, RPM: c.RPM, TPM: c.TPM, Concurrency: c.Concurrency,
		MonthlyTokens: c.MonthlyTokens, Weight: c.Weight, Priority: c.Priority,
	}
	if c.Expires.Given {
		change.Expires = &c.Expires.Time
	}
	return change
}

// KeyView is a key as this API shows it, without its secret and without its use.
func KeyView(k *state.Key) Key {
	return Key{
		ID: k.ID, Name: k.Name, Owner: k.Owner, Principal: k.Principal(), Routes: append([]string{}, k.Routes...),
		RPM: k.RPM, TPM: k.TPM, Concurrency: k.Concurrency, MonthlyTokens: k.MonthlyTokens, Weight: k.Weight, Priority: k.Priority,
		Created: k.Created, Expires: optional(k.Expires), Revoked: optional(k.RevokedAt), LastUsed: optional(k.LastUsed),
	}
}
