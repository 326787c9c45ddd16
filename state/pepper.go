package state

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"strconv"
	"strings"
	"sync"
)

// digest is HMAC-SHA-256 of a token under a pepper: all that the database keeps of it.
type digest [sha256.Size]byte

// pepper is one version of the HMAC key. The key itself lives in a closure, out of every %+v.
type pepper struct {
	version int64
	hashers sync.Pool // of *hasher
}

// hasher is what one digest needs, kept for the next one: verifying a key allocates nothing.
type hasher struct {
	mac     hash.Hash
	message []byte
	sum     digest
}

func newPepper(version int64, key []byte) *pepper {
	p := &pepper{version: version}
	p.hashers.New = func() any { return &hasher{mac: hmac.New(sha256.New, key), message: make([]byte, 0, 64)} }
	return p
}

// digest returns the token's digest.
func (p *pepper) digest(token string) digest {
	h := p.hashers.Get().(*hasher)
	defer p.hashers.Put(h)
	return h.digest(token)
}

// fit reports whether they are the peppers that the state was written with.
func (all *peppers) fit(proofs map[int64]string) error {
	for version, proof := range proofs {
		p := all.byVersion[version]
		if p == nil {
			return fmt.Errorf("the file lacks version %d, which the state was written with: restore it", version)
		}
		if p.proof() != proof {
			return fmt.Errorf("version %d is not the one that the state was written with: restore the file", version)
		}
	}
	return nil
}

// inspectPeppers is openPeppers that changes nothing. Its error is an ErrPepper.
func inspectPeppers(ctx context.Context, q querier, files secretFiles) error {
	proofs, err := readProofs(ctx, q)
	if err != nil || len(proofs) == 0 {
		return err
	}
	all, err := readPeppers(files, false)
	if err == nil {
		err = all.fit(proofs)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPepper, err)
	}
	return nil
}

// matches reports in constant time whether the token has that digest.
func (p *pepper) matches(token string, want *digest) bool {
	h := p.hashers.Get().(*hasher)
	defer p.hashers.Put(h)
	h.digest(token)
	return subtle.ConstantTimeCompare(h.sum[:], want[:]) == 1
}

func (h *hasher) digest(token string) digest {
	h.message = append(h.message[:0], token...)
	h.mac.Reset()
	h.mac.Write(h.message)
	h.mac.Sum(h.sum[:0])
	clear(h.message)
	return h.sum
}

// proof tells whether two peppers are the same one. No token has this form, so it is no token's digest.
func (p *pepper) proof() string {
	proof := p.digest("iop pepper")
	return hex.EncodeToString(proof[:])
}

// peppers are the versions that are known. The newest makes new digests, the others still verify theirs: appending a
// line to the file and restarting is how a pepper is rotated.
type peppers struct {
	byVersion map[int64]*pepper
	newest    *pepper // never nil
	dummy     digest  // of no token; unknown ids are checked against it
}

// openPeppers reads the pepper file, or creates it for an empty database. A file that is lost, or swapped for another,
// is refused here: it would make every token fail one by one.
func openPeppers(ctx context.Context, db *database, files secretFiles) (*peppers, error) {
	var all *peppers
	err := db.locked(ctx, func(tx *sql.Tx) (err error) {
		proofs, err := readProofs(ctx, tx)
		if err != nil {
			return err
		}
		all, err = readPeppers(files, len(proofs) == 0)
		if err != nil {
			return err
		}
		return all.prove(ctx, tx, proofs)
	})
	if err != nil {
		return nil, fmt.Errorf("pepper: %w", err)
	}
	rand.Read(all.dummy[:])
	return all, nil
}

// ErrPepper says that the pepper's file is not the one that the state was written with, or can't be read.
var ErrPepper = errors.New("pepper")

func readProofs(ctx context.Context, q querier) (map[int64]string, error) {
	proofs := make(map[int64]string)
	_, err := queryAll(ctx, q, func(rows *sql.Rows) (none struct{}, err error) {
		var version int64
		var proof string
		err = rows.Scan(&version, &proof)
		proofs[version] = proof
		return none, err
	}, queryPeppers)
	return proofs, err
}

func readPeppers(files secretFiles, mayCreate bool) (*peppers, error) {
	content, err := files.read(pepperFile)
	if errors.Is(err, fs.ErrNotExist) {
		if !mayCreate {
			return nil, errors.New("the file is missing, and without it no key or token in the state can be verified: restore it")
		}
		content = newPepperFile()
		err = files.create(pepperFile, content)
	}
	if err != nil {
		return nil, err
	}
	return parsePeppers(content)
}

func newPepperFile() string {
	var key [32]byte
	rand.Read(key[:])
	return "# The HMAC key of the digests in the state: one version a line, the highest makes new digests.\n" +
		"# Keep it secret, and in the backups: without it no API key and no join token works.\n" +
		"1 " + hex.EncodeToString(key[:]) + "\n"
}

func parsePeppers(content string) (*peppers, error) {
	all := &peppers{byVersion: make(map[int64]*pepper)}
	lines := bufio.NewScanner(strings.NewReader(content))
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		version, key, err := parsePepper(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if all.byVersion[version] != nil {
			return nil, fmt.Errorf("line %d: version %d is listed twice", number, version)
		}
		p := newPepper(version, key)
		all.byVersion[version] = p
		if all.newest == nil || version > all.newest.version {
			all.newest = p
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if all.newest == nil {
		return nil, errors.New("the file holds no pepper: restore it")
	}
	return all, nil
}

// parsePepper never names what it could not read: it may be most of a secret.
func parsePepper(line string) (version int64, key []byte, err error) {
	number, text, _ := strings.Cut(line, " ")
	version, err = strconv.ParseInt(number, 10, 64)
	if err != nil || version < 1 {
		return 0, nil, errors.New("it must begin with a version number of 1 or more")
	}
	key, err = hex.DecodeString(strings.TrimSpace(text))
	if err != nil || len(key) != 32 {
		return 0, nil, errors.New("after the version it must hold 64 hexadecimal digits")
	}
	return version, key, nil
}

// prove compares the peppers with the proofs in the database, and adds those of new versions.
func (all *peppers) prove(ctx context.Context, tx *sql.Tx, proofs map[int64]string) error {
	if err := all.fit(proofs); err != nil {
		return err
	}
	for version, p := range all.byVersion {
		if _, known := proofs[version]; known {
			continue
		}
		if _, err := tx.ExecContext(ctx, insertPepper, version, p.proof()); err != nil {
			return err
		}
	}
	return nil
}

// matches reports in constant time whether the token has the stored digest. For a stored of nil, an unknown id, it does
// the same work.
func (all *peppers) matches(token string, stored *storedDigest) (bool, error) {
	if stored == nil {
		all.newest.matches(token, &all.dummy)
		return false, nil
	}
	p := all.byVersion[stored.version]
	if p == nil {
		return false, fmt.Errorf("state: a token needs pepper version %d, which this process has not read", stored.version)
	}
	return p.matches(token, &stored.digest), nil
}

// storedDigest is a digest as a row has it.
type storedDigest struct {
	version int64
	digest  digest
}

// parse reads the hexadecimal form.
func (s *storedDigest) parse(text string) error {
	if len(text) != hex.EncodedLen(len(s.digest)) {
		return errors.New("a stored digest has the wrong length")
	}
	_, err := hex.Decode(s.digest[:], []byte(text))
	return err
}
