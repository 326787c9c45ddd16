package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func newTestKey(t testing.TB) MasterKey {
	t.Helper()
	key, err := NewMasterKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestMasterKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "master-key")
	first, err := CreateMasterKeyFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := CreateMasterKeyFile(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second key over the first: %v", err)
	}
	second, err := AddMasterKey(path)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := ReadMasterKeys(path)
	if err != nil || len(keys) != 2 || keys[0].Reveal() != second.Reveal() || keys[1].Reveal() != first.Reveal() {
		t.Fatalf("%v, %v", keys, err)
	}
	if first.ID() == second.ID() || len(first.ID()) != 16 || len(first.Reveal()) != 87 || !strings.HasPrefix(first.Reveal(), "mk-iop_"+string(first.ID())) {
		t.Errorf("%s, %s", first.ID(), first.Reveal())
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadMasterKeys(path); err == nil || !strings.Contains(err.Error(), "0640") {
		t.Errorf("a file that the group reads: %v", err)
	}
	if _, err := AddMasterKey(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file to add to: %v", err)
	}
}

// Every character counts: whatever is changed, cut or added is found before anything is sealed under it. And the error
// shows nothing of what it read.
func TestParseMasterKeysRefuses(t *testing.T) {
	good := newTestKey(t).Reveal()
	bad := []string{"", "# only a comment\n", good + "\n" + good, good[:len(good)-1], good + "0", strings.ToUpper(good),
		"mk-iop_" + good[23:], good[7:], "1 " + good, good + " " + good, strings.Repeat(newTestKey(t).Reveal()+"\n", 2)}
	for i := range len(good) {
		other := byte('0')
		if good[i] == other {
			other = '1'
		}
		bad = append(bad, good[:i]+string(other)+good[i+1:])
	}
	for _, content := range bad {
		keys, err := parseMasterKeys(content)
		if err == nil {
			t.Errorf("%q gives %d keys", content, len(keys))
		} else if strings.Contains(err.Error(), good[30:40]) || strings.Contains(err.Error(), good[60:70]) {
			t.Errorf("the error shows the key: %v", err)
		}
	}
	other := newTestKey(t)
	keys, err := parseMasterKeys("# a\r\n\n  " + good + "  \r\n#b\n" + other.Reveal())
	if err != nil || len(keys) != 2 || keys[0].Reveal() != good || keys[1].Reveal() != other.Reveal() {
		t.Errorf("%v, %v", keys, err)
	}
	var many strings.Builder
	for range maxMasterKeys + 1 {
		many.WriteString(newTestKey(t).Reveal() + "\n")
	}
	if _, err := parseMasterKeys(many.String()); err == nil {
		t.Error("more keys than may be")
	}
}

func TestUseMasterKeyRefuses(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	key := newTestKey(t)
	if s.UseMasterKey(MasterKey{}) == nil || s.UseMasterKey(key, MasterKey{}) == nil || s.UseMasterKey(key, key) == nil {
		t.Error("an empty key, or one twice")
	}
	if s.masterKeys.Load() != nil {
		t.Error("a refused key is in use")
	}
}

func FuzzParseMasterKeys(f *testing.F) {
	good := newTestKey(f).Reveal()
	for _, content := range []string{"", "#", good, good + "\n" + good, "\n\r\n" + good + "\t", good[:50]} {
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content string) {
		keys, err := parseMasterKeys(content)
		if (err == nil) != (len(keys) > 0) {
			t.Fatalf("%d keys, %v", len(keys), err)
		}
		for _, key := range keys {
			if !strings.Contains(content, key.Reveal()) {
				t.Errorf("a key that is not in %q", content)
			}
		}
	})
}
