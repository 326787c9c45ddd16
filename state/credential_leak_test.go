package state

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// canary is a credential whose URL-encoded form differs from the raw one.
const canary = "canary/" + hidden + "+=&%value"

// forms are a secret as it is, and in what encodings it could come to light. Base64 depends on where in a text the secret
// stands, so its inner part is looked for in all three places.
func forms(secret string) map[string][]byte {
	all := map[string][]byte{
		"raw": []byte(secret), "hex": []byte(hex.EncodeToString([]byte(secret))), "HEX": []byte(strings.ToUpper(hex.EncodeToString([]byte(secret)))),
		"url": []byte(url.QueryEscape(secret)), "path": []byte(url.PathEscape(secret)), "quoted": []byte(fmt.Sprintf("%q", secret)[1 : len(secret)/2]),
		"bytes": []byte(strings.Trim(fmt.Sprint([]byte(secret)), "[]")),
	}
	for shift := range 3 {
		text := base64.StdEncoding.EncodeToString(append(make([]byte, shift), secret...))
		text = text[4 : len(text)-4]
		all[fmt.Sprint("base64 ", shift)] = []byte(text)
		all[fmt.Sprint("base64url ", shift)] = []byte(strings.NewReplacer("+", "-", "/", "_").Replace(text))
	}
	return all
}

// findSecret fails the test if the text shows the secret.
func findSecret(t *testing.T, where string, text []byte, secrets ...string) {
	t.Helper()
	for i, secret := range secrets {
		for form, bytesOf := range forms(secret) {
			if bytes.Contains(text, bytesOf) {
				t.Errorf("%s: secret %d is there, %s", where, i, form)
			}
		}
	}
}

// The search finds what it is for.
func TestFormsAreFound(t *testing.T) {
	for _, text := range []string{
		"x" + canary, "ab" + base64.StdEncoding.EncodeToString([]byte("k="+canary+" x")), "?k=" + url.QueryEscape(canary),
		base64.RawURLEncoding.EncodeToString([]byte(canary)), fmt.Sprintf("%x", canary), fmt.Sprint([]byte(canary)), fmt.Sprintf("%q", canary),
	} {
		found := false
		for _, form := range forms(canary) {
			found = found || bytes.Contains([]byte(text), form)
		}
		if !found {
			t.Errorf("not found in %s", text)
		}
	}
}

// No file of the state holds a credential or the master key: not the database, not its log, also not after the value was
// replaced, the slot deleted or sealed again. Seen to fail with "value" in the place of "sealed" in sealValue.
func TestThreat54CredentialsAreInNoFile(t *testing.T) {
	location := fileURL(t)
	s, from := openVault(t, location)
	ctx := t.Context()
	secrets := []string{canary, canary + "-second", from.Reveal(), from.Reveal()[23:]}
	setSlot(t, s, "kept", canary)
	setSlot(t, s, "gone", canary)
	setSlot(t, s, "rotated", canary)
	if _, err := s.RotateSlot(ctx, "rotated", NewSecret(canary+"-second"), "ops"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.DeleteSlot(ctx, "gone", "ops"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RevokeSlot(ctx, "rotated", true, "ops"); err != nil {
		t.Fatal(err)
	}
	to := newTestKey(t)
	secrets = append(secrets, to.Reveal(), to.Reveal()[23:])
	if err := s.UseMasterKey(to, from); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Rewrap(ctx, from.ID(), to.ID(), "ops"); err != nil {
		t.Fatal(err)
	}
	if err := s.AuditLease(AuditEntry{Actor: "edge", Action: AuditLeaseRefused, Outcome: AuditRefused, Reason: "bad " + canary}); err != nil {
		t.Fatal(err)
	}
	if err := s.FlushAudit(ctx); err != nil {
		t.Fatal(err)
	}
	look := func(when string) {
		directory := filepath.Dir(strings.TrimPrefix(location, "sqlite://"))
		files, err := os.ReadDir(directory)
		if err != nil || len(files) < 2 {
			t.Fatalf("%d files, %v", len(files), err)
		}
		found := false
		for _, f := range files {
			content, err := os.ReadFile(filepath.Join(directory, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			findSecret(t, when+" "+f.Name(), content, secrets...)
			found = found || bytes.Contains(content, []byte("rotated"))
		}
		if !found {
			t.Errorf("%s: the slots are not in the files at all", when)
		}
	}
	look("open")
	wantOpened(t, s, "kept", "1 "+canary)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	look("closed")
}

// Nothing that is printed, logged or marshalled, and no error, shows a credential or a master key. Seen to fail with a
// field of type []byte in the place of the closures of Secret and MasterKey.
func TestThreat54CredentialsNeverPrint(t *testing.T) {
	s, key := openVault(t, "sqlite::memory:")
	ctx := t.Context()
	slot := setSlot(t, s, "s", canary)
	credential, err := s.OpenCredential(ctx, "s")
	if err != nil || credential.Secret.Reveal() != canary {
		t.Fatal(err)
	}
	spec := SlotSpec{"s", "bearer", NewSecret(canary)}
	uses, err := s.MasterKeyUses(ctx)
	if err != nil {
		t.Fatal(err)
	}
	entries, _ := auditPage(t, s, AuditQuery{})
	rows, err := queryAll(ctx, s.db.read, scanSlot, querySlots)
	if err != nil {
		t.Fatal(err)
	}
	values := []any{
		key, &key, []MasterKey{key}, s.masterKeys.Load(), *s.masterKeys.Load(), credential, &credential, spec, &spec, slot, uses,
		entries, rows, slotChange{value: &spec.Value}, rewrapping{ring: s.masterKeys.Load()}, map[string]any{"k": key, "c": credential},
		struct{ hidden MasterKey }{key}, struct{ hidden Credential }{credential},
	}
	var out bytes.Buffer
	logs := []*slog.Logger{slog.New(slog.NewTextHandler(&out, nil)), slog.New(slog.NewJSONHandler(&out, nil))}
	for _, value := range values {
		for verb := range strings.SplitSeq("v +v #v s q x X d o b c U e f g t T p w 10s -30q", " ") {
			fmt.Fprintf(&out, "%"+verb+"\n", value)
		}
		for _, log := range logs {
			log.Info("m", "value", value)
		}
		if encoded, err := json.Marshal(value); err == nil {
			out.Write(encoded)
		}
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		if text := fmt.Sprintf(verb, key); text != redacted {
			t.Errorf("%s of a master key: %q", verb, text)
		}
	}
	findSecret(t, "printed", out.Bytes(), canary, key.Reveal(), key.Reveal()[23:])
}

// Whatever goes wrong, the error says it without the value, also where the value was put into the wrong place.
func TestThreat56ErrorsShowNoCredential(t *testing.T) {
	s, key := openVault(t, "sqlite::memory:")
	ctx := t.Context()
	setSlot(t, s, "s", canary)
	if _, err := s.RevokeSlot(ctx, "s", true, "ops"); err != nil {
		t.Fatal(err)
	}
	_, same := s.RotateSlot(ctx, "s", NewSecret(canary), "ops")
	_, badValue := s.SetSlot(ctx, SlotSpec{"s", "bearer", NewSecret(canary + "\n")}, "ops")
	_, badName := s.SetSlot(ctx, SlotSpec{canary, "bearer", NewSecret("v")}, "ops")
	_, badProfile := s.SetSlot(ctx, SlotSpec{"s", canary, NewSecret("v")}, "ops")
	_, badURL := s.SetProfile(ctx, Profile{Name: "p", Header: HeaderAPIKey, BaseURLs: []string{"https://x/?key=" + canary}}, "ops")
	_, badHeader := ParseHeader(canary)
	_, badAction := ParseAuditAction(canary)
	_, badKey := parseMasterKeys(key.Reveal() + canary)
	_, notOpened := s.OpenCredential(ctx, canary)
	_, noSlot := s.Slot(ctx, canary)
	_, noProfile := s.Profile(ctx, canary)
	_, badSerial := ParseCertificateSerial(canary)
	_, badRewrap := s.Rewrap(ctx, MasterKeyID(key.Reveal()), key.ID(), "ops")
	badAllow := s.DenyNode(ctx, Denial{Node: canary}, "ops")
	if _, err := s.db.write.Exec(`CREATE TRIGGER full BEFORE INSERT ON audit BEGIN SELECT RAISE(FAIL, 'disk full'); END`); err != nil {
		t.Fatal(err)
	}
	_, diskFull := s.RotateSlot(ctx, "s", NewSecret(canary+"x"), "ops")
	for i, err := range []error{same, badValue, badName, badProfile, badURL, badHeader, badAction, badKey, notOpened, noSlot, noProfile,
		badSerial, badRewrap, badAllow, diskFull} {
		if err == nil {
			t.Errorf("error %d is none", i)
			continue
		}
		for ; err != nil; err = errors.Unwrap(err) {
			findSecret(t, fmt.Sprint("error ", i), fmt.Appendf(nil, "%v %+v %#v %q", err, err, err, err), canary, key.Reveal(), key.Reveal()[23:])
		}
	}
}

// What a name says is a value, never a part of the query. Seen to fail with the value in place of the parameter's number
// in AuditQuery.compose.
func TestThreat63QueriesTakeParameters(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	ctx := t.Context()
	attack := `x' OR '1'='1' -- "; DROP TABLE audit; %_`
	entry := leaseEntry(1)
	entry.Actor, entry.Subject, entry.Target, entry.ID = attack, attack, attack, attack
	entry.Lease, entry.Run, entry.Slot, entry.Profile, entry.Node = "j"+"ti", "r", "s", "p", "n"
	other := leaseEntry(2)
	if err := s.Audit(ctx, entry, other); err != nil {
		t.Fatal(err)
	}
	for name, q := range map[string]AuditQuery{
		"slot": {Slot: "x' OR '1'='1"}, "profile": {Profile: "x' OR '1'='1"}, "node": {Node: "x' OR '1'='1"}, "lease": {Lease: "x' OR '1'='1"},
		"run": {Run: "x' OR '1'='1"}, "like": {Actor: "%"}, "one": {Actor: "_dge-1"},
		"cursor": {Before: AuditCursor{At: auditStart.Add(-time.Hour), ID: "x' OR '1'='1"}},
	} {
		if got, _ := auditPage(t, s, q); len(got) != 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got, _ := auditPage(t, s, AuditQuery{Actor: attack}); len(got) != 1 || got[0].Target != attack {
		t.Errorf("%+v", got)
	}
	for _, node := range []string{"n' OR '1'='1", "%", "_"} {
		if _, err := s.NodeAllowed(ctx, "n", CertificateSerial(node)); err == nil {
			t.Errorf("allowed with serial %q", node)
		}
	}
}

// The log of a database that fails says so without the entries that it could not take.
func TestThreat54AuditLogShowsNoEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		defer slog.SetDefault(before)
		s := openURL(t, "sqlite::memory:")
		if _, err := s.db.write.Exec(`CREATE TRIGGER full BEFORE INSERT ON audit BEGIN SELECT RAISE(FAIL, 'disk full'); END`); err != nil {
			t.Fatal(err)
		}
		entry := leaseEntry(1)
		entry.Target, entry.Reason = "https://"+canary, canary
		if err := s.AuditLease(entry); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * leaseInterval)
		synctest.Wait()
		if !strings.Contains(log.String(), "disk full") {
			t.Errorf("log: %s", &log)
		}
		findSecret(t, "log", log.Bytes(), canary)
		if _, err := s.db.write.Exec(`DROP TRIGGER full`); err != nil {
			t.Fatal(err)
		}
	})
}
