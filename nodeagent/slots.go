package nodeagent

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"iop/execution"
	"iop/lease"
)

// This file is what the operator says about the way to a provider: whose leases it accepts, and whom to trust.

// Limits of slots: one glob is as long as a name may be, and nobody writes many.
const (
	maxSlots     = 64
	maxSlotGlob  = 64
	maxRootsFile = 1 << 20
)

// validateHop checks the fields about the credential and the connection.
func (p *ProviderSpec) validateHop() error {
	base, err := parseBase(p.URL)
	if err != nil {
		return err
	}
	if strings.ContainsAny(p.CAFile, ",\x00\n\r") {
		return errors.New("ca must be a path without comma and control characters")
	}
	if p.CAFile != "" && base.Scheme != "https" {
		return errors.New("ca needs a URL that begins with https://")
	}
	if len(p.Slots) == 0 {
		return nil
	}
	switch {
	case p.KeyFile != "":
		return errors.New("slots and key-file can't be combined: a credential is either leased for each run or kept by the Node")
	case len(p.Models) == 0:
		return errors.New("slots needs models=a|b: between runs the Node has no key to ask the provider for its models")
	case base.Scheme == "http" && !declaredLocal(base.Hostname()):
		return errors.New("slots needs a URL that begins with https://, or a local host: anyone on the way could read the credentials")
	}
	return validateSlots(p.Slots)
}

func validateSlots(globs []string) error {
	if len(globs) > maxSlots {
		return fmt.Errorf("slots names more than %d slots", maxSlots)
	}
	for i, glob := range globs {
		// A glob is a slot's name once its signs stand for a letter. That leaves path.Match no other special character.
		name := strings.NewReplacer("*", "a", "?", "a").Replace(glob)
		if len(glob) > maxSlotGlob || execution.SlotName(name).Validate() != nil {
			return fmt.Errorf("slots must be names of 1 to %d letters, digits, '.', '_', ':', '-', with '*' and '?' as wildcards, at position %d", maxSlotGlob, i+1)
		}
		if slices.Contains(globs[:i], glob) {
			return fmt.Errorf("slots names %q twice", glob)
		}
	}
	return nil
}

// prepareSlots sets up a provider that gets its credentials by lease.
func (p *provider) prepareSlots() (err error) {
	if !p.leased() {
		return nil
	}
	if p.lease, err = lease.ParseTarget(p.spec.URL); err != nil {
		return fmt.Errorf("URL can't be the target of a lease: %w", err)
	}
	if p.spec.Engine == "" {
		// Six questions without a key would only be six refusals.
		p.spec.Engine = OpenAIEngine
		if p.isAnthropicHost() {
			p.spec.Engine = AnthropicEngine
		}
	}
	return nil
}

// leased reports whether every run of the provider must bring a lease.
func (p *provider) leased() bool { return len(p.spec.Slots) > 0 }

// accepts reports whether the provider's operator wants leases of the slot.
func (p *provider) accepts(slot execution.SlotName) bool {
	return slot.Validate() == nil && slices.ContainsFunc(p.spec.Slots, func(glob string) bool {
		ok, err := path.Match(glob, string(slot))
		return ok && err == nil
	})
}

// knows is the Node's own policy on leases: there is a provider at that very address that accepts the slot.
func (a *Agent) knows(slot execution.SlotName, _ execution.ProfileName, target lease.Target) bool {
	for _, p := range *a.providers.Load() {
		if p.leased() && p.lease == target && p.accepts(slot) {
			return true
		}
	}
	return false
}

// readRoots returns a TLS configuration that trusts the authorities in a PEM file; nil, the system's, without one.
func readRoots(file string) (*tls.Config, error) {
	if file == "" {
		return nil, nil
	}
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	if info.Size() > maxRootsFile {
		return nil, fmt.Errorf("ca: the file has more than %d bytes", maxRootsFile)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, errors.New("ca: the file holds no certificate in PEM form")
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}
