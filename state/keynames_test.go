package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// nameTaken is the key that has the name by an error; empty if it is another error.
func nameTaken(err error) KeyID {
	taken, ok := errors.AsType[*NameTakenError](err)
	if !ok || !strings.Contains(err.Error(), string(taken.Key)) || !strings.Contains(err.Error(), taken.Name) {
		return ""
	}
	return taken.Key
}

func TestNameBelongsToOneLiveKey(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		first, _ := createKey(t, s, KeySpec{Name: "ci"})
		other, _ := createKey(t, s, KeySpec{Name: "CI"}) // another name
		if _, _, err := s.CreateKey(ctx, KeySpec{Name: "ci"}); nameTaken(err) != first.ID {
			t.Errorf("a second key of the name: %v", err)
		}
		if _, err := s.UpdateKey(ctx, other.ID, KeyChange{Name: new("ci"), RPM: new(int64(5))}); nameTaken(err) != first.ID {
			t.Errorf("renamed to it: %v", err)
		}
		if got, err := s.Key(ctx, other.ID); err != nil || got.Name != "CI" || got.RPM != 0 {
			t.Errorf("the refused change left %+v, %v", got, err)
		}
		if _, err := s.UpdateKey(ctx, first.ID, KeyChange{Name: new("ci"), RPM: new(int64(5))}); err != nil {
			t.Errorf("its own name again: %v", err)
		}
		if err := s.RevokeKey(ctx, first.ID, "test"); err != nil {
			t.Fatal(err)
		}
		second, _ := createKey(t, s, KeySpec{Name: "ci"})
		if got, err := s.FindKey(ctx, "ci"); err != nil || got.ID != second.ID {
			t.Errorf("the name of a live and a revoked key finds %+v, %v", got, err)
		}
		if _, err := s.UpdateKey(ctx, first.ID, KeyChange{Name: new("CI")}); err != nil {
			t.Errorf("a revoked key may have any name: %v", err)
		}
		if _, _, err := s.CreateKey(ctx, KeySpec{Name: string(other.ID)}); err == nil || !strings.Contains(err.Error(), "name: ") {
			t.Errorf("another key's id as a name: %v", err)
		}
	})
}

// A key's time ends without anybody's doing: its name is free from then on, and it must not come back to a name that
// another key has.
func TestNameOfAnExpiredKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ctx := openURL(t, "sqlite::memory:"), t.Context()
		old, _ := createKey(t, s, KeySpec{Name: "ci", Expires: time.Now().Add(time.Hour)})
		if _, _, err := s.CreateKey(ctx, KeySpec{Name: "ci"}); nameTaken(err) != old.ID {
			t.Errorf("before the end: %v", err)
		}
		time.Sleep(time.Hour)
		if got, err := s.FindKey(ctx, "ci"); err != nil || got.ID != old.ID {
			t.Errorf("the only key of the name is found after its end too: %+v, %v", got, err)
		}
		heir, _ := createKey(t, s, KeySpec{Name: "ci"})
		if got, err := s.FindKey(ctx, "ci"); err != nil || got.ID != heir.ID {
			t.Errorf("found %+v, %v", got, err)
		}
		if _, err := s.UpdateKey(ctx, old.ID, KeyChange{RPM: new(int64(1))}); err != nil {
			t.Errorf("a change that does not bring it back: %v", err)
		}
		if _, err := s.UpdateKey(ctx, old.ID, KeyChange{Expires: new(time.Time{})}); nameTaken(err) != heir.ID {
			t.Errorf("brought back: %v", err)
		}
		if _, err := s.UpdateKey(ctx, old.ID, KeyChange{Expires: new(time.Time{}), Name: new("ci 2")}); err != nil {
			t.Errorf("brought back under another name: %v", err)
		}
		if _, _, err := s.CreateKey(ctx, KeySpec{Name: "ci 2"}); nameTaken(err) != old.ID {
			t.Errorf("the name that it came back with: %v", err)
		}
	})
}

// Of keys that are made at once, by two processes, one gets the name.
func TestNameAtOnce(t *testing.T) {
	url := fileURL(t)
	stores := []*Store{openURL(t, url), openURL(t, url)}
	var wg sync.WaitGroup
	for round := range 5 {
		var mu sync.Mutex
		made, refused := []KeyID{}, []KeyID{}
		for i := range 6 {
			wg.Go(func() {
				key, _, err := stores[i%2].CreateKey(context.Background(), KeySpec{Name: fmt.Sprint("round ", round)})
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					made = append(made, key.ID)
				} else {
					refused = append(refused, nameTaken(err))
				}
			})
		}
		wg.Wait()
		if len(made) != 1 || slices.ContainsFunc(refused, func(id KeyID) bool { return id != made[0] }) {
			t.Errorf("made %v, the others met %v", made, refused)
		}
	}
}

// Keys that shared a name before it belonged to one are kept as they are, and an id tells them apart.
func TestSharedNamesOfOlderVersion(t *testing.T) {
	ctx, url := t.Context(), fileURL(t)
	old := openAtVersion(t, url, 7)
	for i, id := range []string{"revoked0", "first000", "second00", "third000"} {
		if _, err := old.write.Exec(oldKey, id, "ci", i+1, map[bool]int{true: 9}[i == 0]); err != nil {
			t.Fatal(err)
		}
	}
	s := openURL(t, url)
	if names, err := s.SharedKeyNames(ctx); err != nil || !slices.Equal(names, []string{"ci"}) {
		t.Errorf("shared are %v, %v", names, err)
	}
	if names, err := s.KeyNames(ctx); err != nil || len(names) != 4 || slices.Sorted(maps.Values(names))[0] != "ci" {
		t.Errorf("%v, %v", names, err)
	}
	_, err := s.FindKey(ctx, "ci")
	if shared, ok := errors.AsType[*AmbiguousNameError](err); !ok || !slices.Equal(shared.Keys, []KeyID{"first000", "second00", "third000"}) {
		t.Errorf("by the name: %v", err)
	}
	if got, err := s.FindKey(ctx, "second00"); err != nil || got.ID != "second00" {
		t.Errorf("by the id: %+v, %v", got, err)
	}
	for _, id := range []KeyID{"first000", "second00"} {
		if _, err := s.UpdateKey(ctx, id, KeyChange{RPM: new(int64(3))}); err != nil {
			t.Errorf("a change that leaves the name: %v", err)
		}
		if _, _, err := s.CreateKey(ctx, KeySpec{Name: "ci"}); nameTaken(err) == "" {
			t.Errorf("another key of the name: %v", err)
		}
		if err := s.RevokeKey(ctx, id, "test"); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.FindKey(ctx, "ci"); err != nil || got.ID != "third000" {
		t.Errorf("the last live one: %+v, %v", got, err)
	}
	if _, _, err := s.CreateKey(ctx, KeySpec{Name: "ci"}); nameTaken(err) != "third000" {
		t.Errorf("another key of the name: %v", err)
	}
	if err := s.RevokeKey(ctx, "third000", "test"); err != nil {
		t.Fatal(err)
	}
	if names, err := s.SharedKeyNames(ctx); err != nil || len(names) != 0 {
		t.Errorf("shared are %v, %v", names, err)
	}
	_, err = s.FindKey(ctx, "ci")
	if past, ok := errors.AsType[*AmbiguousNameError](err); !ok || len(past.Keys) != 4 {
		t.Errorf("the name of keys none of which is live: %v", err)
	}
	for _, name := range []string{"", "nobody", "c%", "ci\x00"} {
		if _, err := s.FindKey(ctx, name); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
