package state

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"iop/execution"
)

// Header is the header that carries a credential to the provider: a closed set that only grows, never free text. The
// zero value is invalid.
type Header uint8

// The headers.
const (
	HeaderAuthorizationBearer Header = iota + 1 // Authorization: Bearer VALUE
	HeaderXAPIKey                               // x-api-key: VALUE
	HeaderAPIKey                                // api-key: VALUE
)

var headerNames = [...]string{"", "authorization-bearer", "x-api-key", "api-key"}

// String returns the header as profiles, leases and the database write it.
func (h Header) String() string {
	if int(h) >= len(headerNames) {
		return fmt.Sprintf("unknown_%d", h)
	}
	return headerNames[h]
}

// ParseHeader is the inverse of Header.String.
func ParseHeader(text string) (Header, error) {
	if at := slices.Index(headerNames[1:], text); at >= 0 {
		return Header(at + 1), nil
	}
	return 0, fault("header", "must be one of %s", strings.Join(headerNames[1:], ", "))
}

// Limits of a profile.
const (
	maxBaseURLs = 32
	maxBaseURL  = 512 // bytes
)

// Profile says how a credential is used: which header carries it, and where it may go.
type Profile struct {
	Name   execution.ProfileName
	Header Header

	// BaseURLs are origins with a path prefix or none, such as https://api.example.com/openai; one at least. Each is in
	// one spelling, so that two of them are the same place exactly if they are equal.
	BaseURLs []string

	Updated time.Time
	By      string // who changed it last
}

// ErrProfileInUse says that a slot still has the profile.
var ErrProfileInUse = errors.New("a slot uses the profile")

// SetProfile makes a profile or changes it; Updated and By are not looked at. Base URLs are brought into their one
// spelling: scheme and host in lower case, no default port, no last slash, no last /v1, which operations carry
// themselves. A wrong field gives a *SpecError.
//
// A change raises the revision of each slot with the profile, in the same transaction: what was leased for the old
// header or place has an older one. That needs the master keys of those that may be used.
func (s *Store) SetProfile(ctx context.Context, profile Profile, by string) (Profile, error) {
	profile, err := profile.canonical()
	if err == nil {
		err = checkActor(by)
	}
	if err != nil {
		return Profile{}, fmt.Errorf("set profile: %w", err)
	}
	err = s.db.locked(ctx, func(tx *sql.Tx) error {
		profile.Updated, profile.By = now(), by
		before, err := queryOne(ctx, tx, scanProfile, queryProfile, string(profile.Name))
		if err == nil && before.same(&profile) {
			profile = before
			return nil
		}
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		return s.putProfile(ctx, tx, &profile)
	})
	if err != nil {
		return Profile{}, fmt.Errorf("set profile %q: %w", profile.Name, err)
	}
	return profile, nil
}

// now is the time as the database keeps it.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

func (s *Store) putProfile(ctx context.Context, tx *sql.Tx, profile *Profile) error {
	urls, err := json.Marshal(profile.BaseURLs)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, putProfile, string(profile.Name), profile.Header.String(), string(urls),
		millis(profile.Updated), profile.By)
	if err != nil {
		return err
	}
	err = addAudit(ctx, tx, AuditEntry{At: profile.Updated, Actor: profile.By, Action: AuditProfileSet, Outcome: AuditDone, Profile: profile.Name})
	if err != nil {
		return err
	}
	rows, err := queryAll(ctx, tx, scanSlot, querySlotsOfProfile, string(profile.Name))
	if err != nil {
		return err
	}
	change := slotChange{action: AuditSlotRaised, by: profile.By, at: profile.Updated}
	for i := range rows {
		if err := s.applyChange(ctx, tx, &rows[i], change); err != nil {
			return err
		}
	}
	return nil
}

// DeleteProfile removes a profile that no slot has: else ErrProfileInUse. ErrNotFound if there is no such profile.
func (s *Store) DeleteProfile(ctx context.Context, name execution.ProfileName, by string) error {
	err := checkActor(by)
	if err == nil {
		err = name.Validate()
	}
	if err != nil {
		return fmt.Errorf("delete profile: %w", err)
	}
	err = s.db.locked(ctx, func(tx *sql.Tx) error {
		slots, err := queryAll(ctx, tx, scanSlot, querySlotsOfProfile, string(name))
		if err != nil {
			return err
		}
		if len(slots) > 0 {
			return ErrProfileInUse
		}
		if err := deleteOne(ctx, tx, deleteProfile, string(name)); err != nil {
			return err
		}
		return addAudit(ctx, tx, AuditEntry{Actor: by, Action: AuditProfileDeleted, Outcome: AuditDone, Profile: name})
	})
	if err != nil {
		return fmt.Errorf("delete profile %q: %w", name, err)
	}
	return nil
}

// deleteOne runs a DELETE with RETURNING. ErrNotFound if it deleted nothing.
func deleteOne(ctx context.Context, tx *sql.Tx, query string, args ...any) error {
	_, err := queryOne(ctx, tx, scanOne[string], query, args...)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNotFound
	}
	return err
}

// Profiles returns all profiles, by name.
func (s *Store) Profiles(ctx context.Context) ([]Profile, error) {
	profiles, err := queryAll(ctx, s.db.read, scanProfile, queryProfiles)
	if err != nil {
		return nil, fmt.Errorf("list profiles: %w", err)
	}
	return profiles, nil
}

// Profile returns one profile. ErrNotFound if there is none of that name.
func (s *Store) Profile(ctx context.Context, name execution.ProfileName) (Profile, error) {
	err := name.Validate()
	var profile Profile
	if err == nil {
		profile, err = queryOne(ctx, s.db.read, scanProfile, queryProfile, string(name))
	}
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return Profile{}, fmt.Errorf("profile: %w", err)
	}
	return profile, nil
}

func (p *Profile) same(other *Profile) bool {
	return p.Header == other.Header && slices.Equal(p.BaseURLs, other.BaseURLs)
}

// canonical checks the profile and brings its URLs into their one spelling and order.
func (p Profile) canonical() (Profile, error) {
	if err := p.Name.Validate(); err != nil {
		return Profile{}, fault("profile", "%v", err)
	}
	if p.Header == 0 || int(p.Header) >= len(headerNames) {
		return Profile{}, fault("header", "must be one of %s", strings.Join(headerNames[1:], ", "))
	}
	if len(p.BaseURLs) == 0 || len(p.BaseURLs) > maxBaseURLs {
		return Profile{}, fault("base_urls", "must be 1 to %d", maxBaseURLs)
	}
	urls := make([]string, len(p.BaseURLs))
	for i, text := range p.BaseURLs {
		var err error
		if urls[i], err = canonicalBaseURL(text); err != nil {
			return Profile{}, err
		}
	}
	slices.Sort(urls)
	p.BaseURLs = slices.Compact(urls)
	return p, nil
}

// canonicalBaseURL returns the one spelling. Its rules are those of a lease's target, which such an URL becomes. The
// error does not show the URL, which may hold a password.
func canonicalBaseURL(text string) (string, error) {
	wrong := fault("base_urls", "must be http(s)://host[:port][/path] of visible ASCII, without user, query, fragment, escapes and dot segments")
	odd := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`\%?#@`, r) }
	if len(text) > maxBaseURL || strings.ContainsFunc(text, odd) {
		return "", wrong
	}
	u, err := url.Parse(text)
	if err != nil || u.Opaque != "" || u.User != nil || u.Hostname() == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", wrong
	}
	port, ok := canonicalPort(u)
	if !ok {
		return "", wrong
	}
	prefix := strings.TrimRight(strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1"), "/")
	if prefix != "" && (path.Clean(prefix) != prefix || strings.HasSuffix(prefix, "/v1")) {
		return "", wrong
	}
	host := strings.ToLower(u.Hostname())
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return u.Scheme + "://" + host + port + prefix, nil
}

// canonicalPort returns ":port", or nothing for the scheme's own.
func canonicalPort(u *url.URL) (string, bool) {
	port := u.Port()
	if port == "" {
		return "", !strings.HasSuffix(u.Host, ":")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		return "", false
	}
	if u.Scheme == "http" && n == 80 || u.Scheme == "https" && n == 443 {
		return "", true
	}
	return ":" + port, true
}

// profileRow is what scanProfile reads into.
type profileRow struct {
	profile      Profile
	header, urls string
	updated      int64
}

// places are for profileColumns.
func (r *profileRow) places() []any {
	return []any{&r.profile.Name, &r.header, &r.urls, &r.updated, &r.profile.By}
}

// finish makes the Profile of what was read. A header or URL that this binary does not know is an error: it must not be
// taken for another one.
func (r *profileRow) finish() (_ Profile, err error) {
	r.profile.Updated = fromMillis(r.updated)
	if r.profile.Header, err = ParseHeader(r.header); err != nil {
		return Profile{}, fmt.Errorf("read profile %q: %w", r.profile.Name, err)
	}
	if err := json.Unmarshal([]byte(r.urls), &r.profile.BaseURLs); err != nil {
		return Profile{}, fmt.Errorf("read profile %q: %w", r.profile.Name, err)
	}
	return r.profile, nil
}

// scanProfile reads a row of profileColumns.
func scanProfile(rows *sql.Rows) (Profile, error) {
	var row profileRow
	if err := rows.Scan(row.places()...); err != nil {
		return Profile{}, err
	}
	return row.finish()
}
