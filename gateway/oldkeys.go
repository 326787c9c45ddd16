package gateway

import (
	"sync"
	"time"

	"iop/state"
)

const (
	// oldKeyEvery is how often a use of one revoked or expired key is logged: a client that goes on trying must not fill the
	// log, nor hide another one.
	oldKeyEvery = time.Minute
	// maxOldKeys bounds the keys that are remembered. They existed, so there are more only after years.
	maxOldKeys = 1024
)

// oldKeys remembers which revoked and expired keys were logged. The zero value is ready.
type oldKeys struct {
	mu   sync.Mutex // guards what follows
	seen map[state.KeyID]*oldKey
}

type oldKey struct {
	at   time.Time
	left int
}

// due reports whether a use of the key should be logged, and how many were left out since the last time.
func (o *oldKeys) due(id state.KeyID, now time.Time) (left int, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	k := o.seen[id]
	if k == nil {
		if o.seen == nil || len(o.seen) >= maxOldKeys {
			o.seen = map[state.KeyID]*oldKey{}
		}
		o.seen[id] = &oldKey{at: now}
		return 0, true
	}
	if since := now.Sub(k.at); since >= 0 && since < oldKeyEvery {
		k.left++
		return 0, false
	}
	left = k.left
	k.at, k.left = now, 0
	return left, true
}
