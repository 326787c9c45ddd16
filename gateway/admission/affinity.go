package admission

import (
	"hash/maphash"
	"strings"

	"iop/execution"
)

// Where a prompt is hashed. Each hash covers the prompt from its first byte to a border, so that two prompts have the
// same hash at a border if, and as good as only if, they are equal up to there.
const (
	// Borders that double from firstBorder on find what many prompts begin with, whatever their length.
	firstBorder = 256
	lastBorder  = 1 << 20 // what lies behind it does not count: some 250,000 tokens, or an image
	// The last borders at a fine and at a middle distance find the conversation that a prompt continues: what a turn
	// adds is mostly shorter than they reach back, 4 KiB and 10 KiB.
	fineBorder    = 512
	fineBorders   = 8
	middleBorder  = 2048
	middleBorders = 5
	// 13 that double, 8 fine ones, and at least 2 of the 5 middle ones lie among the fine ones.
	maxBorders = 24
)

// affinitySeed keys all hashes. It is this process's own, so that no client can make prompts that collide.
var affinitySeed = maphash.MakeSeed()

// Affinity says by hashes what a request has in common with earlier ones. It only steers: equal hashes of different
// prompts cost time, never correctness. The zero value has nothing in common with anything.
type Affinity struct {
	session  uint64 // of the principal and its session_id; 0: none
	cacheKey uint64 // of the principal and its prompt_cache_key; 0: none
	length   uint32 // the bytes of the prompt that count
	borders  uint8
	prefix   [maxBorders]uint64 // of the prompt up to each border, the shortest first
}

// AffinityOf returns the Affinity of a request: its session_id and prompt_cache_key (empty: none), which are hashed
// together with the principal, and the raw JSON of its prompt (the value of messages, prompt or input; nil: none),
// which is not: a system prompt that several principals share is in a provider's cache once. It reads at most 1 MiB
// of the prompt, once, and keeps none of it.
func AffinityOf(principal, sessionID, cacheKey string, prompt []byte) Affinity {
	a := Affinity{
		session:  hintHash("session_id", principal, sessionID),
		cacheKey: hintHash("prompt_cache_key", principal, cacheKey),
	}
	// What closes the JSON value moves when a conversation grows.
	end := len(prompt)
	for end > 0 && strings.IndexByte(" \t\r\n]}\"", prompt[end-1]) >= 0 {
		end--
	}
	a.length = uint32(min(end, lastBorder))
	var h maphash.Hash
	h.SetSeed(affinitySeed)
	hashed := uint32(0)
	for at := nextBorder(0, a.length); at != 0; at = nextBorder(at, a.length) {
		h.Write(prompt[hashed:at])
		hashed = at
		a.prefix[a.borders] = h.Sum64()
		a.borders++
	}
	return a
}

// hintHash returns the hash of what a client says of its request, 0 if it says nothing.
func hintHash(kind, principal, value string) uint64 {
	if value == "" {
		return 0
	}
	return maphash.Comparable(affinitySeed, [3]string{kind, principal, value})
}

// nextBorder returns the first border after at in a prompt of some length, 0 if there is none.
func nextBorder(at, length uint32) uint32 {
	next := uint32(firstBorder)
	for next <= at {
		next *= 2
	}
	next = min(next, trailingBorder(at, length, fineBorder, fineBorders))
	next = min(next, trailingBorder(at, length, middleBorder, middleBorders))
	if next > length {
		return 0
	}
	return next
}

// trailingBorder returns the first multiple of distance after at that is among the last count ones of a prompt.
func trailingBorder(at, length, distance, count uint32) uint32 {
	next := at/distance + 1
	if last := length / distance; last >= count {
		next = max(next, last-count+1)
	}
	return next * distance
}

// empty reports whether a has nothing in common with anything.
func (a *Affinity) empty() bool { return a.session == 0 && a.cacheKey == 0 && a.borders == 0 }

// placeID stands for a model at a provider of a Node, in whatever session: its cache outlives a connection. It is a
// hash, never 0; should two places share one, one of them gets runs that better went to the other.
type placeID uint32

func placeIDOf(node execution.NodeID, provider execution.ProviderID, model string) placeID {
	h := maphash.Comparable(affinitySeed, [3]string{string(node), string(provider), model})
	return placeID(max(uint32(h>>32), 1))
}

const (
	// DefaultAffinityEntries is how many hashes are remembered: some 20,000 conversations, in 3 MiB.
	DefaultAffinityEntries = 1 << 18
	// A hash belongs to a set of indexWays entries, of which it may have maxCopies: what all prompts begin with is in
	// the caches of all Nodes, and need not be remembered for each.
	indexWays = 16
	maxCopies = 8
)

// prefixIndex remembers where prompts ran, in a table of fixed size: what was not used for longest is overwritten.
// Places that are gone are never looked up again and go the same way. Guarded by Controller.mu.
type prefixIndex struct {
	sets  [][indexWays]indexEntry // a power of two of them
	clock uint32                  // of uses; it may wrap
}

// indexEntry says that what hashes to tag was at place when the clock stood at used.
type indexEntry struct {
	tag   uint32
	place placeID // 0: empty
	used  uint32
}

// newPrefixIndex returns an index of at least so many entries; below 1: DefaultAffinityEntries.
func newPrefixIndex(entries int) *prefixIndex {
	if entries < 1 {
		entries = DefaultAffinityEntries
	}
	sets := 1
	for sets*indexWays < entries {
		sets *= 2
	}
	return &prefixIndex{sets: make([][indexWays]indexEntry, sets)}
}

// set returns the entries that may hold a hash, and the hash's tag.
func (x *prefixIndex) set(hash uint64) (*[indexWays]indexEntry, uint32) {
	return &x.sets[uint32(hash)&uint32(len(x.sets)-1)], uint32(hash >> 32)
}

// record remembers that a request with a runs at a place.
func (x *prefixIndex) record(a *Affinity, place placeID) {
	x.clock++
	if a.session != 0 {
		x.put(a.session, place)
	}
	if a.cacheKey != 0 {
		x.put(a.cacheKey, place)
	}
	for _, hash := range a.prefix[:a.borders] {
		x.put(hash, place)
	}
}

// put takes the entry that is there, or else replaces the oldest one: of the hash's own, if it has as many as it may.
func (x *prefixIndex) put(hash uint64, place placeID) {
	set, tag := x.set(hash)
	oldest, oldestCopy, copies := &set[0], (*indexEntry)(nil), 0
	for i := range set {
		e := &set[i]
		switch {
		case e.place == 0:
			oldest = e
			continue
		case e.tag == tag && e.place == place:
			e.used = x.clock
			return
		case e.tag == tag:
			copies++
			if oldestCopy == nil || x.age(e) > x.age(oldestCopy) {
				oldestCopy = e
			}
		}
		if oldest.place != 0 && x.age(e) > x.age(oldest) {
			oldest = e
		}
	}
	if copies >= maxCopies {
		oldest = oldestCopy
	}
	*oldest = indexEntry{tag, place, x.clock}
}

func (x *prefixIndex) age(e *indexEntry) uint32 { return x.clock - e.used }

// affinityResult says what became of a request's wish for a place.
type affinityResult uint8

const (
	affinityMiss  affinityResult = iota // nothing like it is known to have run where there is room
	affinityHit                         // there is a place
	affinityYield                       // the places that are known have room, but more than their share of the load
)

// groupLoad is the load of all places of a group that are in service, those without room included.
type groupLoad struct{ inFlight, capacity int }

// choose returns the place where the most of a request's prompt was seen and that is not above its share of the load.
// load tells the load of a place, and false if there is no room at it for this request.
//
// A match of half the prompt is worth more than anything else. After it comes what the client says of itself, then what
// is a common beginning at most; of less than an eighth of the prompt, the load decides.
func (x *prefixIndex) choose(a *Affinity, total groupLoad, load func(placeID) (inFlight, capacity int, ok bool)) (placeID, affinityResult) {
	c := chooser{index: x, total: total, load: load}
	short, long := a.bordersWithin(a.length/8), a.bordersWithin(a.length/2)
	for i := int(a.borders) - 1; i >= long; i-- {
		if id := c.least(a.prefix[i]); id != 0 {
			return id, affinityHit
		}
	}
	if id := c.least(a.session); id != 0 {
		return id, affinityHit
	}
	if id := c.least(a.cacheKey); id != 0 {
		return id, affinityHit
	}
	for i := long - 1; i >= short; i-- {
		if id := c.least(a.prefix[i]); id != 0 {
			return id, affinityHit
		}
	}
	return 0, c.result
}

// bordersWithin returns how many borders lie within the first bytes of the prompt.
func (a *Affinity) bordersWithin(length uint32) (n int) {
	for at := nextBorder(0, a.length); at != 0 && at < length; at = nextBorder(at, a.length) {
		n++
	}
	return n
}

// chooser is one call of choose.
type chooser struct {
	index  *prefixIndex
	total  groupLoad
	load   func(placeID) (inFlight, capacity int, ok bool)
	result affinityResult // if no place is found
}

// least returns the least loaded place that is remembered for a hash and may take one more run, or 0.
func (c *chooser) least(hash uint64) placeID {
	if hash == 0 {
		return 0
	}
	set, tag := c.index.set(hash)
	best, bestInFlight, bestCapacity := placeID(0), 0, 1
	for i := range set {
		if set[i].tag != tag || set[i].place == 0 {
			continue
		}
		inFlight, capacity, ok := c.load(set[i].place)
		if !ok {
			continue
		}
		if !c.total.allows(inFlight, capacity) {
			c.result = affinityYield
			continue
		}
		if best == 0 || inFlight*bestCapacity < bestInFlight*capacity {
			best, bestInFlight, bestCapacity = set[i].place, inFlight, capacity
		}
	}
	return best
}

// maxOverMean is how far above the mean share of the group's load affinity may take a place, in percent. With less,
// more is prefilled twice; with more, a group that is a third busy gets lopsided.
const maxOverMean = 150

// allows reports whether a place may take one more run for affinity's sake: with it, its runs are at most its share of
// the group's (this one included) and a half, rounded up. An idle place may always. This is consistent hashing with
// bounded loads, with the memory of what ran where in the hash's place.
func (g groupLoad) allows(inFlight, capacity int) bool {
	if g.capacity == 0 {
		return inFlight == 0
	}
	share := (g.inFlight + 1) * capacity * maxOverMean // in percent of g.capacity
	return inFlight*g.capacity*100 < share
}
