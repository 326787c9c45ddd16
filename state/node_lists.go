package state

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"iop/execution"
)

// Why a Node may not connect in managed mode.
var (
	// ErrNodeNotAllowed says that a Node is not on the allow-list.
	ErrNodeNotAllowed = errors.New("the node is not on the allow-list")
	// ErrNodeDenied says that a Node, or its certificate, is on the deny-list.
	ErrNodeDenied = errors.New("the node is on the deny-list")
)

// NodeAllow lets a Node connect in managed mode, and says which credentials may be leased to it.
type NodeAllow struct {
	Node     execution.NodeID
	Profiles []string // globs, as Key.AllowsModel says; empty: none
	Slots    []string // globs; empty: none
	Updated  time.Time
	By       string // who changed it last
}

// Allows reports whether a credential of the slot may be leased to the Node: a pattern for the slot and one for the
// profile match.
func (a *NodeAllow) Allows(profile execution.ProfileName, slot execution.SlotName) bool {
	matches := func(patterns []string, name string) bool {
		return slices.ContainsFunc(patterns, func(pattern string) bool { return MatchGlob(pattern, name) })
	}
	return slot != "" && profile != "" && matches(a.Profiles, string(profile)) && matches(a.Slots, string(slot))
}

// AllowNode puts a Node on the allow-list, or changes what it may have there; Updated and By are not looked at. It does
// not take the Node off the deny-list, which goes first. A wrong field gives a *SpecError.
func (s *Store) AllowNode(ctx context.Context, allow NodeAllow, by string) (NodeAllow, error) {
	if err := allow.check(by); err != nil {
		return NodeAllow{}, fmt.Errorf("allow node: %w", err)
	}
	allow.Profiles, allow.Slots = slices.Clone(allow.Profiles), slices.Clone(allow.Slots)
	profiles, err := routesColumn(allow.Profiles)
	if err != nil {
		return NodeAllow{}, fmt.Errorf("allow node: %w", err)
	}
	slots, err := routesColumn(allow.Slots)
	if err != nil {
		return NodeAllow{}, fmt.Errorf("allow node: %w", err)
	}
	err = s.db.locked(ctx, func(tx *sql.Tx) error {
		allow.Updated, allow.By = now(), by
		_, err := tx.ExecContext(ctx, putNodeAllow, string(allow.Node), profiles, slots, millis(allow.Updated), by)
		if err != nil {
			return err
		}
		return addAudit(ctx, tx, AuditEntry{At: allow.Updated, Actor: by, Action: AuditNodeAllowed, Outcome: AuditDone, Node: allow.Node})
	})
	if err != nil {
		return NodeAllow{}, fmt.Errorf("allow node %q: %w", allow.Node, err)
	}
	return allow, nil
}

func (a *NodeAllow) check(by string) error {
	if err := checkActor(by); err != nil {
		return err
	}
	if err := a.Node.Validate(); err != nil {
		return fault("node", "%v", err)
	}
	for _, list := range []struct {
		field    string
		patterns []string
	}{{"profiles", a.Profiles}, {"slots", a.Slots}} {
		if len(list.patterns) > maxRoutes {
			return fault(list.field, "at most %d patterns", maxRoutes)
		}
		for _, pattern := range list.patterns {
			if err := CheckGlob(pattern); err != nil {
				return fault(list.field, "%v", err)
			}
		}
	}
	return nil
}

// DisallowNode takes a Node off the allow-list. ErrNotFound if it is not there.
func (s *Store) DisallowNode(ctx context.Context, node execution.NodeID, by string) error {
	err := s.deleteListed(ctx, by, AuditEntry{Action: AuditNodeDisallowed, Node: node}, deleteNodeAllow, string(node))
	if err != nil {
		return fmt.Errorf("disallow node %q: %w", node, err)
	}
	return nil
}

// deleteListed takes a row off one of the lists, with an audit row.
func (s *Store) deleteListed(ctx context.Context, by string, entry AuditEntry, query string, args ...any) error {
	if err := checkActor(by); err != nil {
		return err
	}
	entry.Actor, entry.Outcome = by, AuditDone
	return s.db.locked(ctx, func(tx *sql.Tx) error {
		if err := deleteOne(ctx, tx, query, args...); err != nil {
			return err
		}
		return addAudit(ctx, tx, entry)
	})
}

// NodeAllows returns the allow-list, by node.
func (s *Store) NodeAllows(ctx context.Context) ([]NodeAllow, error) {
	allows, err := queryAll(ctx, s.db.read, func(rows *sql.Rows) (NodeAllow, error) {
		allow, _, err := scanNodeAllow(rows, false)
		return allow, err
	}, queryNodeAllows)
	if err != nil {
		return nil, fmt.Errorf("list allowed nodes: %w", err)
	}
	return allows, nil
}

// NodeAllowed returns what a Node that presents a certificate with that serial number may have. ErrNodeDenied if either
// is on the deny-list, whatever the allow-list says; ErrNodeNotAllowed if the Node is not on that; any other error means
// that it could not be looked up, and allows nothing either. It reads the database each time, so it also sees what
// another process has changed.
func (s *Store) NodeAllowed(ctx context.Context, node execution.NodeID, serial CertificateSerial) (NodeAllow, error) {
	return s.NodeAllowedAt(ctx, Moment{}, node, serial)
}

// nodeCertificate is a Node with the certificate that it presents.
type nodeCertificate struct {
	node   execution.NodeID
	serial CertificateSerial
}

// NodeAllowedAt is NodeAllowed as of a Moment. Nobody may change the lists that it returns.
func (s *Store) NodeAllowedAt(ctx context.Context, m Moment, node execution.NodeID, serial CertificateSerial) (NodeAllow, error) {
	return s.facts.allows.get(m, nodeCertificate{node, serial}, func() (NodeAllow, error) { return s.nodeAllowed(ctx, node, serial) })
}

func (s *Store) nodeAllowed(ctx context.Context, node execution.NodeID, serial CertificateSerial) (NodeAllow, error) {
	if err := node.Validate(); err != nil {
		return NodeAllow{}, fmt.Errorf("is the node allowed: %w", err)
	}
	if err := serial.Validate(); err != nil {
		return NodeAllow{}, fmt.Errorf("is the node allowed: %w", err)
	}
	denied := false
	allow, err := queryOne(ctx, s.queries.nodeAllowed, func(rows *sql.Rows) (allow NodeAllow, err error) {
		allow, denied, err = scanNodeAllow(rows, true)
		return allow, err
	}, queryNodeAllowed, string(node), string(serial))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		err = ErrNodeNotAllowed
	case err == nil && denied:
		err = ErrNodeDenied
	}
	if err != nil {
		return NodeAllow{}, fmt.Errorf("is node %q allowed: %w", node, err)
	}
	return allow, nil
}

// scanNodeAllow reads a row of nodeAllowColumns, and whether the Node is denied if that follows.
func scanNodeAllow(rows *sql.Rows, withDenied bool) (allow NodeAllow, denied bool, err error) {
	var profiles, slots string
	var updated, isDenied int64
	places := []any{&allow.Node, &profiles, &slots, &updated, &allow.By}
	if withDenied {
		places = append(places, &isDenied)
	}
	err = rows.Scan(places...)
	if err == nil {
		err = errors.Join(json.Unmarshal([]byte(profiles), &allow.Profiles), json.Unmarshal([]byte(slots), &allow.Slots))
	}
	allow.Updated = fromMillis(updated)
	return allow, isDenied != 0, err
}

// CertificateSerial is the serial number of a certificate in hexadecimal, in lower case and without leading zeros. It
// names a certificate among all that the trusted authorities issue, because they take serial numbers at random. The zero
// value is invalid.
type CertificateSerial string

// maxSerial is RFC 5280's 20 bytes, and one more for issuers that count the sign, in hexadecimal digits.
const maxSerial = 42

// SerialOf returns the serial number of an x509.Certificate.
func SerialOf(n *big.Int) CertificateSerial { return CertificateSerial(fmt.Sprintf("%x", n)) }

// ParseCertificateSerial reads a serial number in hexadecimal as tools write it: in any case, with leading zeros, with
// colons between the bytes.
func ParseCertificateSerial(text string) (CertificateSerial, error) {
	digits := strings.TrimLeft(strings.ToLower(strings.ReplaceAll(text, ":", "")), "0")
	serial := CertificateSerial(digits)
	if err := serial.Validate(); err != nil {
		return "", err
	}
	return serial, nil
}

// Validate reports whether it is in its one spelling.
func (c CertificateSerial) Validate() error {
	bad := strings.ContainsFunc(string(c), func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') })
	if c == "" || c[0] == '0' || len(c) > maxSerial || bad {
		return fault("serial", "must be a certificate's serial number in hexadecimal")
	}
	return nil
}

// Denial is an entry of the deny-list: of a Node by its name, or of one certificate by its serial number.
type Denial struct {
	Node   execution.NodeID  // or empty
	Serial CertificateSerial // or empty
	At     time.Time
	By     string // who put it there
}

// entry returns how the database and the audit name what is denied. Exactly one of the two must be there.
func (d *Denial) entry() (kind, name string, audit AuditEntry, err error) {
	switch {
	case (d.Node == "") == (d.Serial == ""):
		err = fault("node", "either a node or a certificate's serial number must be given")
	case d.Node != "":
		if err = d.Node.Validate(); err != nil {
			err = fault("node", "%v", err)
		}
		return "node", string(d.Node), AuditEntry{Node: d.Node}, err
	default:
		err = d.Serial.Validate()
	}
	return "serial", string(d.Serial), AuditEntry{Subject: string(d.Serial)}, err
}

// DenyNode puts a Node, or one certificate, on the deny-list; At and By are not looked at. What is there already stays as
// it is.
func (s *Store) DenyNode(ctx context.Context, denial Denial, by string) error {
	kind, name, entry, err := denial.entry()
	if err == nil {
		err = checkActor(by)
	}
	if err != nil {
		return fmt.Errorf("deny node: %w", err)
	}
	entry.Actor, entry.Action, entry.Outcome = by, AuditNodeDenied, AuditDone
	err = s.db.locked(ctx, func(tx *sql.Tx) error {
		entry.At = now()
		_, err := queryOne(ctx, tx, scanOne[string], putDenial, kind, name, millis(entry.At), by)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		return addAudit(ctx, tx, entry)
	})
	if err != nil {
		return fmt.Errorf("deny %s %q: %w", kind, name, err)
	}
	return nil
}

// UndenyNode takes a Node, or one certificate, off the deny-list. ErrNotFound if it is not there.
func (s *Store) UndenyNode(ctx context.Context, denial Denial, by string) error {
	kind, name, entry, err := denial.entry()
	if err == nil {
		entry.Action = AuditNodeUndenied
		err = s.deleteListed(ctx, by, entry, deleteDenial, kind, name)
	}
	if err != nil {
		return fmt.Errorf("take off the deny-list: %w", err)
	}
	return nil
}

// Denials returns the deny-list.
func (s *Store) Denials(ctx context.Context) ([]Denial, error) {
	denials, err := queryAll(ctx, s.db.read, func(rows *sql.Rows) (d Denial, err error) {
		var kind, name string
		var at int64
		err = rows.Scan(&kind, &name, &at, &d.By)
		d.At = fromMillis(at)
		if kind == "node" {
			d.Node = execution.NodeID(name)
		} else {
			d.Serial = CertificateSerial(name)
		}
		return d, err
	}, queryDenials)
	if err != nil {
		return nil, fmt.Errorf("list denied nodes: %w", err)
	}
	return denials, nil
}
