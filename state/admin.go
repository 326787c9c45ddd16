package state

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
)

// minAdminToken is the shortest admin token that an operator may put into the file, in bytes.
const minAdminToken = 32

// adminCheck is what VerifyAdmin compares with: a hash, so that the comparison takes the same time for every length.
type adminCheck struct {
	want atomic.Pointer[[sha256.Size]byte] // or nil: AdminToken was not called
}

// AdminToken returns the admin token of the state directory, and creates it (mode 0600) when there is none; created
// tells which. An operator may put a token of 32 or more characters there instead. A file that others may read is
// refused. A Store in memory keeps the token in memory.
func (s *Store) AdminToken(ctx context.Context) (_ Secret, created bool, err error) {
	var token string
	err = s.db.locked(ctx, func(*sql.Tx) (err error) {
		token, err = readAdminToken(s.files)
		if errors.Is(err, fs.ErrNotExist) {
			_, token = adminToken.mint()
			created = true
			err = s.files.create(adminTokenFile, token+"\n")
		}
		return err
	})
	if err != nil {
		return Secret{}, false, fmt.Errorf("admin token: %w", err)
	}
	sum := sha256.Sum256([]byte(token))
	s.admin.want.Store(&sum)
	return NewSecret(token), created, nil
}

// VerifyAdmin reports in constant time whether the presented token is the one that AdminToken last returned; before
// that nothing is.
func (s *Store) VerifyAdmin(presented string) bool {
	want := s.admin.want.Load()
	if want == nil {
		return false
	}
	got := sha256.Sum256([]byte(presented))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1
}

// ReadAdminToken reads the admin token beside the state at that URL, without opening the state. The error is
// fs.ErrNotExist when there is none, because no Edge has run with that state.
func ReadAdminToken(url string) (Secret, error) {
	at, err := parseURL(url)
	if err != nil {
		return Secret{}, err
	}
	if at.memory {
		return Secret{}, errors.New("admin token: a state in memory has no file to read it from")
	}
	token, err := readAdminToken(secretDirectory(at.directory()))
	if err != nil {
		return Secret{}, fmt.Errorf("admin token: %w", err)
	}
	return NewSecret(token), nil
}

func readAdminToken(files secretFiles) (string, error) {
	content, err := files.read(adminTokenFile)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(content)
	if err := checkAdminToken(token); err != nil {
		return "", fmt.Errorf("the file %s: %w", adminTokenFile, err)
	}
	return token, nil
}

// checkAdminToken refuses what was cut short and what could be guessed. It never names what it read.
func checkAdminToken(token string) error {
	if strings.HasPrefix(token, string(adminToken)) {
		if _, ok := adminToken.parse(token); !ok {
			return errors.New("the token is damaged: remove the file, and a new one is created")
		}
		return nil
	}
	if len(token) < minAdminToken {
		return fmt.Errorf("the token must have at least %d characters: remove the file, and one is created", minAdminToken)
	}
	different := make(map[byte]bool)
	for i := range len(token) {
		if token[i] <= ' ' || token[i] > '~' {
			return errors.New("the token must be visible ASCII without spaces")
		}
		different[token[i]] = true
	}
	if len(different) < 8 {
		return errors.New("the token is too regular: remove the file, and one is created")
	}
	return nil
}
