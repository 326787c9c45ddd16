package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestAdminToken(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		if s.VerifyAdmin("") {
			t.Error("nothing passes before there is a token")
		}
		token, created, err := s.AdminToken(t.Context())
		if err != nil || !created || !strings.HasPrefix(token.Reveal(), "adm-iop_") || len(token.Reveal()) != 54 {
			t.Fatalf("first: %q, %v, %v", token.Reveal(), created, err)
		}
		again, created, err := s.AdminToken(t.Context())
		if err != nil || created || again.Reveal() != token.Reveal() {
			t.Errorf("second: created %v, %v", created, err)
		}
		if !s.VerifyAdmin(token.Reveal()) {
			t.Error("the token is refused")
		}
		for _, bad := range []string{"", "[secret]", altered(token.Reveal()), token.Reveal() + " ", token.Reveal()[1:]} {
			if s.VerifyAdmin(bad) {
				t.Errorf("%q passes", bad)
			}
		}
	})
}

func TestReadAdminToken(t *testing.T) {
	url := fileURL(t)
	if _, err := ReadAdminToken(url); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before the first start: %v", err)
	}
	s := openURL(t, url)
	token, _, err := s.AdminToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ReadAdminToken(url); err != nil || got.Reveal() != token.Reveal() {
		t.Errorf("beside a running Edge: %v", err)
	}
	for _, bad := range []string{"sqlite::memory:", "postgres://x/y", ""} {
		if _, err := ReadAdminToken(bad); err == nil {
			t.Errorf("%q has a token", bad)
		}
	}
}

func TestAdminTokenByFile(t *testing.T) {
	url := fileURL(t)
	s := openURL(t, url)
	path := filepath.Join(filepath.Dir(strings.TrimPrefix(url, "sqlite://")), adminTokenFile)
	_, own := adminToken.mint()
	random := "pX3-fq8_Zs0.Lw7!Rk2~Tn9=Yb4+Hd6%"
	tests := []struct {
		name, content string
		mode          fs.FileMode
		want          string // a part of the error; empty: taken
	}{
		{"own", own, 0o600, ""},
		{"own with newlines", "\n" + own + "\r\n", 0o400, ""},
		{"an operator's", random + "\n", 0o600, ""},
		{"readable by the group", own, 0o640, "0640"},
		{"readable by all", own, 0o604, "0604"},
		{"cut", own[:len(own)-1], 0o600, "damaged"},
		{"empty", "", 0o600, "32"},
		{"short", random[1:], 0o600, "32"},
		{"one character", strings.Repeat("ab", 20), 0o600, "regular"},
		{"two lines", random + "\n" + random, 0o600, "visible ASCII"},
		{"huge", strings.Repeat("x", maxSecretFile+1), 0o600, "larger than"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if runtime.GOOS == "windows" {
				t.Skip("no modes")
			}
			os.Remove(path)
			if err := os.WriteFile(path, []byte(test.content), test.mode); err != nil {
				t.Fatal(err)
			}
			token, created, err := s.AdminToken(t.Context())
			_, readErr := ReadAdminToken(url)
			if test.want == "" {
				if err != nil || readErr != nil || created || token.Reveal() != strings.TrimSpace(test.content) || !s.VerifyAdmin(token.Reveal()) {
					t.Errorf("created %v, %v, %v", created, err, readErr)
				}
				return
			}
			for _, err := range []error{err, readErr} {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v; want %q", err, test.want)
				}
				if err != nil && len(test.content) > 8 && strings.Contains(err.Error(), test.content[:9]) {
					t.Errorf("the error shows the token: %v", err)
				}
			}
		})
	}
}
