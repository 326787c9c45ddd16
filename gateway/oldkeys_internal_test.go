package gateway

import (
	"strconv"
	"testing"
	"time"

	"iop/state"
)

// Each old key is logged once a minute, with the number of what was left out; another one does not hide it.
func TestOldKeysAreLoggedOnceAMinute(t *testing.T) {
	var o oldKeys
	now := time.Now()
	for i, want := range []struct {
		id    state.KeyID
		after time.Duration
		left  int
		ok    bool
	}{
		{"a", 0, 0, true}, {"a", time.Second, 0, false}, {"b", time.Second, 0, true}, {"a", oldKeyEvery - 1, 0, false},
		{"a", oldKeyEvery, 2, true}, {"a", oldKeyEvery + 1, 0, false}, {"b", 2 * oldKeyEvery, 0, true},
	} {
		if left, ok := o.due(want.id, now.Add(want.after)); left != want.left || ok != want.ok {
			t.Errorf("%d: %d, %v", i, left, ok)
		}
	}
	for i := range 3 * maxOldKeys {
		o.due(state.KeyID(strconv.Itoa(i)), now)
	}
	if len(o.seen) > maxOldKeys {
		t.Errorf("%d keys are remembered", len(o.seen))
	}
}
