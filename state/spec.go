package state

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits of what a key may say about itself.
const (
	maxNameLength = 128 // characters
	maxRoutes     = 100 // patterns
	maxWeight     = 1000
	maxPriority   = 100 // and down to its negative
)

// MaxLimit is the highest value that a key's RPM, TPM, Concurrency and MonthlyTokens may have. Keys of older versions
// may have a higher one.
const MaxLimit = 1_000_000_000_000

// MaxRunTokens is what a run's input or output counts at most. No request is that long: a higher count is a fault of
// the provider or a lie, which must not use up a budget for years.
const MaxRunTokens = 1_000_000_000

// SpecError says which field of what was given, such as a KeySpec, is wrong, and how. The text may be shown to whom sent it.
type SpecError struct {
	Field string // as commands and the admin API name it
	Fault string
}

// Error returns "field: fault".
func (e *SpecError) Error() string { return e.Field + ": " + e.Fault }

func fault(field, format string, args ...any) error {
	return &SpecError{Field: field, Fault: fmt.Sprintf(format, args...)}
}

// check returns a *SpecError for the first field that is wrong.
func (s *KeySpec) check(now time.Time) error {
	all := KeyChange{
		Name: &s.Name, Owner: &s.Owner, Routes: &s.Routes, RPM: &s.RPM, TPM: &s.TPM, Concurrency: &s.Concurrency,
		MonthlyTokens: &s.MonthlyTokens, Weight: &s.Weight, Priority: &s.Priority, Expires: &s.Expires,
	}
	return all.check(now)
}

// check returns a *SpecError for the first field that is there and wrong. No field depends on another.
func (c *KeyChange) check(now time.Time) error {
	if c.Name != nil {
		switch *c.Name {
		case "":
			return fault("name", "must not be empty")
		case ".", "..", "/": // paths of APIs have names, and can't have these
			return fault("name", "must not be %q", *c.Name)
		}
		if err := checkName("name", *c.Name); err != nil {
			return err
		}
	}
	if c.Owner != nil {
		if err := checkOwner(*c.Owner); err != nil {
			return err
		}
	}
	if c.Routes != nil {
		if err := checkRoutes(*c.Routes); err != nil {
			return err
		}
	}
	if err := c.checkLimits(); err != nil {
		return err
	}
	if c.Weight != nil && (*c.Weight < 1 || *c.Weight > maxWeight) {
		return fault("weight", "must be 1 to %d", maxWeight)
	}
	if c.Priority != nil && (*c.Priority < -maxPriority || *c.Priority > maxPriority) {
		return fault("priority", "must be -%d to %[1]d", maxPriority)
	}
	if c.Expires != nil && !c.Expires.IsZero() && !c.Expires.After(now) {
		return fault("expires", "must be in the future")
	}
	return nil
}

func (c *KeyChange) checkLimits() error {
	limits := []struct {
		field string
		value *int64
	}{{"rpm", c.RPM}, {"tpm", c.TPM}, {"concurrency", c.Concurrency}, {"monthly_tokens", c.MonthlyTokens}}
	for _, limit := range limits {
		switch {
		case limit.value == nil:
		case *limit.value < 0:
			return fault(limit.field, "must not be negative; 0 is no limit")
		case *limit.value > MaxLimit:
			return fault(limit.field, "must be at most %d; 0 is no limit", int64(MaxLimit))
		}
	}
	return nil
}

func checkOwner(owner string) error {
	if strings.HasPrefix(owner, KeyPrincipal) {
		return fault("owner", "must not begin with %q, which stands for a key that has no owner", KeyPrincipal)
	}
	return checkName("owner", owner)
}

func checkRoutes(routes []string) error {
	if len(routes) > maxRoutes {
		return fault("routes", "at most %d patterns", maxRoutes)
	}
	for _, pattern := range routes {
		if err := CheckGlob(pattern); err != nil {
			return fault("routes", "%v", err)
		}
	}
	return nil
}

// checkName refuses what would not read the same in a list, a log line and a label: control characters, and those that
// change the direction of text.
func checkName(field, name string) error {
	switch {
	case !utf8.ValidString(name):
		return fault(field, "must be UTF-8")
	case utf8.RuneCountInString(name) > maxNameLength:
		return fault(field, "must have at most %d characters", maxNameLength)
	case strings.TrimSpace(name) != name:
		return fault(field, "must not begin or end with a space")
	}
	for _, r := range name {
		if !unicode.IsPrint(r) {
			return fault(field, "must not hold control or other unprintable characters (%U)", r)
		}
	}
	return nil
}

// Check returns a *SpecError for the first field that is wrong, as CreateJoinToken would. For commands.
func (s *JoinTokenSpec) Check() error { return s.check() }

// check returns a *SpecError for the first field that is wrong.
func (s *JoinTokenSpec) check() error {
	if s.Node != "" {
		if err := s.Node.Validate(); err != nil {
			return fault("node", "%v", err)
		}
	}
	if s.TTL < 0 {
		return fault("ttl", "must not be negative; 0 is no end")
	}
	if err := checkLabelPatterns(s.Labels); err != nil {
		return err
	}
	if len(s.Models) > maxRoutes {
		return fault("models", "at most %d patterns", maxRoutes)
	}
	for _, pattern := range s.Models {
		if err := CheckGlob(pattern); err != nil {
			return fault("models", "%v", err)
		}
	}
	return s.JoinTokenBounds.check()
}

// checkLabelPatterns: the key is a label's own, the value a pattern that may be empty, as a value may be.
func checkLabelPatterns(labels []string) error {
	if len(labels) > maxLabelPatterns {
		return fault("labels", "at most %d", maxLabelPatterns)
	}
	for _, label := range labels {
		key, value, ok := strings.Cut(label, "=")
		if !ok || key == "" || len(key) > maxGlobLength || strings.ContainsAny(key, "*?") {
			return fault("labels", "%q must be KEY=VALUE; the value may hold '*' and '?'", label)
		}
		for _, part := range []string{key, value} {
			if part == "" {
				continue
			}
			if err := CheckGlob(part); err != nil {
				return fault("labels", "%v", err)
			}
		}
	}
	return nil
}

// check returns a *SpecError for the first bound that is out of range.
func (b *JoinTokenBounds) check() error {
	for _, bound := range []struct {
		field       string
		value, most int64
	}{
		{"max_nodes", b.MaxNodes, MaxNodesBound}, {"max_sessions", b.MaxSessions, MaxSessionsBound},
		{"max_models", b.MaxModels, MaxModelsBound}, {"max_inventory_bytes", b.MaxInventoryBytes, MaxInventoryBytesBound},
	} {
		if bound.value < 0 || bound.value > bound.most {
			return fault(bound.field, "must be 1 to %d; 0 is the default", bound.most)
		}
	}
	return nil
}
