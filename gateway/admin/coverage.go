package admin

import (
	"fmt"
	"strings"
)

// Coverage says how a table of routes and what Nodes offer now fit together.
type Coverage struct {
	// Unrouted are models that Nodes offer and no route names or selects. What becomes of them is the file's
	// advertised_models.
	Unrouted []string        `json:"unrouted"`
	Reserved []ReservedModel `json:"reserved"` // empty where advertised models are refused anyway
	Missing  []MissingTarget `json:"missing"`
}

// ReservedModel is a model that is not served under its own name, because a route with limits has it as a target.
type ReservedModel struct {
	Model  string   `json:"model"`
	Route  string   `json:"route"`
	Limits []string `json:"limits"` // of the route, as the file names them
}

// String is the reservation in a line.
func (m ReservedModel) String() string {
	return fmt.Sprintf("%s: %s (%s)", m.Model, m.Route, strings.Join(m.Limits, ", "))
}

// MissingTarget is a target of a route that no connected Node offers.
type MissingTarget struct {
	Route string `json:"route"`
	TargetSpec
	Similar string `json:"similar"` // an offered model whose name differs only in case or in ":latest", or empty
}

// String is the target in a line.
func (m MissingTarget) String() string {
	where := ""
	if m.Node != "" {
		where += " on " + m.Node
	}
	if m.Provider != "" {
		where += " at " + m.Provider
	}
	if m.Similar != "" {
		where += ", but " + m.Similar
	}
	return fmt.Sprintf("%s: %s%s", m.Route, m.TargetSpec.Model, where)
}
