package state

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// closedState makes a state with one key and closes it.
func closedState(t *testing.T) (url, pepper, presented string) {
	t.Helper()
	url = fileURL(t)
	s, err := Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	_, presented = createKey(t, s, KeySpec{Name: "k"})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return url, filepath.Join(filepath.Dir(strings.TrimPrefix(url, "sqlite://")), pepperFile), presented
}

// A pepper that is lost or wrong would refuse every key, one by one, with nobody knowing why.
func TestOpenRefusesWrongPepper(t *testing.T) {
	const hex = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
	for name, test := range map[string]struct{ content, want string }{
		"lost":           {"", "missing"},
		"another":        {"1 " + hex, "version 1 is not the one"},
		"another number": {"2 " + hex, "lacks version 1"},
		"no pepper":      {"# nothing\n\n", "no pepper"},
		"no number":      {hex, "line 1: it must begin with a version"},
		"zero":           {"0 " + hex, "line 1: it must begin with a version"},
		"short":          {"1 " + hex[2:], "line 1: after the version"},
		"not hex":        {"#\n1 x" + hex[1:], "line 2: after the version"},
		"twice":          {"1 " + hex + "\n1 " + hex, "line 2: version 1 is listed twice"},
	} {
		t.Run(name, func(t *testing.T) {
			url, pepper, _ := closedState(t)
			if err := os.Remove(pepper); err != nil {
				t.Fatal(err)
			}
			if test.content != "" {
				if err := os.WriteFile(pepper, []byte(test.content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s, err := Open(t.Context(), url)
			if err == nil {
				s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v; want %q", err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), hex[4:20]) {
				t.Errorf("the error shows the pepper: %v", err)
			}
		})
	}
}

func TestOpenRefusesReadablePepper(t *testing.T) {
	url, pepper, _ := closedState(t)
	if err := os.Chmod(pepper, 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), url)
	if err == nil {
		s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "0644") {
		t.Errorf("%v", err)
	}
}

// Rotation: a line more makes new digests, keys of the old version go on.
func TestPepperRotation(t *testing.T) {
	url, path, old := closedState(t)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content = append(content, "2 00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n"...)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	s := openURL(t, url)
	_, young := createKey(t, s, KeySpec{Name: "new"})
	for _, presented := range []string{old, young} {
		if _, err := s.VerifyKey(t.Context(), presented); err != nil {
			t.Error(err)
		}
	}
	versions, err := queryAll(t.Context(), s.db.read, scanOne[int64], `SELECT pepper_version FROM api_keys ORDER BY 1`)
	if err != nil || len(versions) != 2 || versions[0] != 1 || versions[1] != 2 {
		t.Errorf("versions %v, %v", versions, err)
	}
}

// A crash between writing the file and committing its proof leaves a file that the next start takes.
func TestPepperWithoutProof(t *testing.T) {
	url, _, presented := closedState(t)
	s := openURL(t, url)
	if _, err := s.db.write.Exec(`DELETE FROM peppers`); err != nil {
		t.Fatal(err)
	}
	if _, err := openURL(t, url).VerifyKey(t.Context(), presented); err != nil {
		t.Error(err)
	}
}

// A key of a version that another process brought after this one had started is no invalid key.
func TestUnknownPepperVersion(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	_, presented := createKey(t, s, KeySpec{Name: "k"})
	if _, err := s.db.write.Exec(`UPDATE api_keys SET pepper_version = 7`); err != nil {
		t.Fatal(err)
	}
	if _, err := s.VerifyKey(t.Context(), presented); err == nil || invalidReason(err) != 0 || !strings.Contains(err.Error(), "version 7") {
		t.Errorf("%v", err)
	}
}
