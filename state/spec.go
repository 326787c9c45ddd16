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
)

// SpecError says which field of a KeySpec or JoinTokenSpec is wrong, and how. The text may be shown to whom sent it.
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
	if s.Name == "" {
		return fault("name", "must not be empty")
	}
	if err := checkName("name", s.Name); err != nil {
		return err
	}
	if err := checkName("owner", s.Owner); err != nil {
		return err
	}
	if strings.HasPrefix(s.Owner, keyPrincipal) {
		return fault("owner", "must not begin with %q, which stands for a key that has no owner", keyPrincipal)
	}
	if len(s.Routes) > maxRoutes {
		return fault("routes", "at most %d patterns", maxRoutes)
	}
	for _, pattern := range s.Routes {
		if err := CheckGlob(pattern); err != nil {
			return fault("routes", "%v", err)
		}
	}
	limits := []struct {
		field string
		value int64
	}{{"rpm", s.RPM}, {"tpm", s.TPM}, {"concurrency", s.Concurrency}}
	for _, limit := range limits {
		if limit.value < 0 {
			return fault(limit.field, "must not be negative; 0 is no limit")
		}
	}
	if !s.Expires.IsZero() && !s.Expires.After(now) {
		return fault("expires", "must lie in the future")
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
			return fault(field, "must not hold control or other characters that do not print (%U)", r)
		}
	}
	return nil
}

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
	return nil
}
