package state

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"iop/filewatch"
)

// A master key is written as mk-iop_<id><key>: 16 and 64 hexadecimal digits in lower case. The prefix tells a secret
// scanner what it has found. The id is a digest of the key, so a key that was cut, mistyped, made up by hand or put
// under another's id is refused before anything is sealed under it; and a swapped file gives an id that no row names.
const (
	masterKeyPrefix = "mk-iop_"
	masterKeyIDSize = 8 // bytes
	masterKeySize   = 32
	maxMasterKeys   = 16

	masterKeyFileHeader = "# Master keys of the provider credentials in the state of IOP, one a line. The first one seals, the others still open.\n" +
		"# Keep the file secret and backed up apart from the database: without it the credentials are lost, with both they are read.\n"
)

// MasterKeyID is the public part of a master key: rows, lists and logs may show it. The zero value is invalid.
type MasterKeyID string

// MasterKey seals the credentials in the database. Under every fmt verb, in slog, JSON and text it is "[secret]". The
// zero value is invalid.
type MasterKey struct {
	id MasterKeyID

	// Closures, as in Secret: a field would show in a %+v of a parent.
	text func() string
	aead func() cipher.AEAD // never nil but in the zero value; with nonces of its own
}

// NewMasterKey returns a fresh random key. It is in no file and no Store: see CreateMasterKeyFile and UseMasterKey.
func NewMasterKey() (MasterKey, error) {
	key := make([]byte, masterKeySize)
	rand.Read(key) // never fails
	return newMasterKey(key)
}

func newMasterKey(key []byte) (MasterKey, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return MasterKey{}, err
	}
	// Its nonces are random: nothing must be counted across processes and restored backups. NIST's bound for them, 2^32
	// messages a key, is out of reach: a message is an operator's command.
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return MasterKey{}, err
	}
	digest := sha256.Sum256(append([]byte("iop master key id\x00"), key...))
	id := hex.EncodeToString(digest[:masterKeyIDSize])
	text := masterKeyPrefix + id + hex.EncodeToString(key)
	return MasterKey{
		id:   MasterKeyID(id),
		text: func() string { return text },
		aead: func() cipher.AEAD { return aead },
	}, nil
}

// ID returns the key's public id; empty for the zero value.
func (k MasterKey) ID() MasterKeyID { return k.id }

// Reveal returns the key as it is written in a file. Every call is a place to review.
func (k MasterKey) Reveal() string {
	if k.text == nil {
		return ""
	}
	return k.text()
}

// String returns "[secret]".
func (k MasterKey) String() string { return redacted }

// Format writes "[secret]" whatever the verb and flags.
func (k MasterKey) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// LogValue returns "[secret]".
func (k MasterKey) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns "[secret]"; encoding/json uses it too.
func (k MasterKey) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// parseMasterKeys reads the content of a master key file: a key a line, the current one first, '#' begins a comment. It
// refuses a content without a key and one with the same key twice. No error shows what was read.
func parseMasterKeys(content string) ([]MasterKey, error) {
	var keys []MasterKey
	number := 0
	for line := range strings.Lines(content) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		key, err := parseMasterKey(line)
		if err != nil {
			return nil, fmt.Errorf("master key: line %d: %w", number, err)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("master key: the file holds none")
	}
	if err := checkMasterKeys(keys); err != nil {
		return nil, err
	}
	return keys, nil
}

func parseMasterKey(line string) (MasterKey, error) {
	damaged := errors.New("it is not a master key or is damaged: create keys with iop, not by hand")
	digits, ok := strings.CutPrefix(line, masterKeyPrefix)
	if !ok || len(digits) != 2*(masterKeyIDSize+masterKeySize) {
		return MasterKey{}, damaged
	}
	raw, err := hex.DecodeString(digits)
	if err != nil {
		return MasterKey{}, damaged // err would name a character of it
	}
	key, err := newMasterKey(raw[masterKeyIDSize:])
	if err != nil || subtle.ConstantTimeCompare([]byte(key.Reveal()), []byte(line)) != 1 {
		return MasterKey{}, damaged
	}
	return key, nil
}

// ReadMasterKeys reads a master key file, the current key first. A file that others than its owner may read is refused.
func ReadMasterKeys(path string) ([]MasterKey, error) {
	content, err := readSecretFile(path)
	if err != nil {
		return nil, fmt.Errorf("master key: %w", err)
	}
	return parseMasterKeys(content)
}

// CreateMasterKeyFile makes a file, of mode 0600, with a fresh key. It never replaces a file: fs.ErrExist.
func CreateMasterKeyFile(path string) (MasterKey, error) {
	key, err := NewMasterKey()
	if err != nil {
		return MasterKey{}, fmt.Errorf("master key: %w", err)
	}
	if err := filewatch.Create(path, []byte(masterKeyFile(key)), 0o600); err != nil {
		return MasterKey{}, fmt.Errorf("master key: %w", err)
	}
	return key, nil
}

// AddMasterKey puts a fresh key first into an existing file, where it becomes the current one; the others stay. The file
// changes as a whole. After it Edges read the file again (UseMasterKey), and Rewrap moves what the others still seal.
//
// Where several Edges share a state, each must know a key before the first one seals under it: bring them the line as
// the last one, then put it first.
func AddMasterKey(path string) (MasterKey, error) {
	keys, err := ReadMasterKeys(path)
	if err != nil {
		return MasterKey{}, err
	}
	key, err := NewMasterKey()
	if err == nil {
		keys = slices.Insert(keys, 0, key)
		err = checkMasterKeys(keys)
	}
	if err == nil {
		err = filewatch.Replace(path, []byte(masterKeyFile(keys...)), 0o600)
	}
	if err != nil {
		return MasterKey{}, fmt.Errorf("master key: %w", err)
	}
	return key, nil
}

func masterKeyFile(keys ...MasterKey) string {
	var content strings.Builder
	content.WriteString(masterKeyFileHeader)
	for _, key := range keys {
		content.WriteString(key.Reveal() + "\n")
	}
	return content.String()
}

func checkMasterKeys(keys []MasterKey) error {
	if len(keys) > maxMasterKeys {
		return fmt.Errorf("master key: at most %d may be known at once: remove those that no longer seal anything", maxMasterKeys)
	}
	seen := make(map[MasterKeyID]bool)
	for _, key := range keys {
		if key.aead == nil {
			return errors.New("master key: one is empty")
		}
		if seen[key.id] {
			return fmt.Errorf("master key: %s is listed twice", key.id)
		}
		seen[key.id] = true
	}
	return nil
}

// keyring is the master keys that a Store knows. It is immutable.
type keyring struct {
	current MasterKey
	byID    map[MasterKeyID]MasterKey
}

// UseMasterKey tells the Store its master keys: current seals from now on, the old ones still open. It may be called
// again at any time, and takes the place of what was told before. Until the first call no credential can be set or
// opened.
func (s *Store) UseMasterKey(current MasterKey, old ...MasterKey) error {
	keys := slices.Insert(slices.Clone(old), 0, current)
	if err := checkMasterKeys(keys); err != nil {
		return err
	}
	ring := &keyring{current: current, byID: make(map[MasterKeyID]MasterKey, len(keys))}
	for _, key := range keys {
		ring.byID[key.id] = key
	}
	s.masterKeys.Store(ring)
	return nil
}

// MasterKeyUse says how many slots are sealed under one master key.
type MasterKeyUse struct {
	ID      MasterKeyID
	Slots   int64
	Known   bool // this Store was told the key; if not, the slots can't be opened
	Current bool
}

// MasterKeyUses returns each key that a slot is sealed under, and each key that the Store knows, by id. A key with no
// slots may be removed from its file; one that is not Known must be brought back.
func (s *Store) MasterKeyUses(ctx context.Context) ([]MasterKeyUse, error) {
	uses, err := queryAll(ctx, s.db.read, func(rows *sql.Rows) (use MasterKeyUse, err error) {
		err = rows.Scan(&use.ID, &use.Slots)
		return use, err
	}, queryMasterKeyUses)
	if err != nil {
		return nil, fmt.Errorf("uses of master keys: %w", err)
	}
	ring := s.masterKeys.Load()
	if ring == nil {
		return uses, nil
	}
	for id := range ring.byID {
		if !slices.ContainsFunc(uses, func(use MasterKeyUse) bool { return use.ID == id }) {
			uses = append(uses, MasterKeyUse{ID: id})
		}
	}
	for i := range uses {
		_, uses[i].Known = ring.byID[uses[i].ID]
		uses[i].Current = uses[i].ID == ring.current.id
	}
	slices.SortFunc(uses, func(a, b MasterKeyUse) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return uses, nil
}
