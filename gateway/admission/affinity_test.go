package admission

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"iop/execution"
)

// raceEnabled tells tests of many steps that each takes ten times as long.
var raceEnabled bool

// message is one of a prompt, as clients write it.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// prompt returns the raw JSON of a list of messages.
func prompt(t testing.TB, messages ...message) []byte {
	t.Helper()
	raw, err := json.Marshal(messages)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// words returns n bytes that no other seed gives.
func words(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 0))
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "%x ", r.Uint32())
	}
	return b.String()[:n]
}

// borderHashes returns where a is hashed, with the hash at each.
func (a *Affinity) borderHashes() map[uint32]uint64 {
	hashes := map[uint32]uint64{}
	i := 0
	for at := nextBorder(0, a.length); at != 0; at = nextBorder(at, a.length) {
		hashes[at] = a.prefix[i]
		i++
	}
	return hashes
}

// common returns the last border up to which two prompts are known to be equal.
func common(a, b Affinity) (last uint32) {
	hashes := b.borderHashes()
	for at, hash := range a.borderHashes() {
		if hashes[at] == hash {
			last = max(last, at)
		}
	}
	return last
}

func TestBordersFitForEveryLength(t *testing.T) {
	most := 0
	for length := uint32(0); length <= lastBorder; length++ {
		if length > 1<<16 && length%251 != 0 && length != lastBorder {
			continue
		}
		n := 0
		for at, before := nextBorder(0, length), uint32(0); at != 0; at = nextBorder(at, length) {
			if at <= before || at > length {
				t.Fatalf("length %d: border %d after %d", length, at, before)
			}
			before = at
			n++
		}
		most = max(most, n)
	}
	if most > maxBorders {
		t.Fatalf("%d borders, of which %d fit", most, maxBorders)
	}
	if most < maxBorders-2 {
		t.Errorf("at most %d borders: maxBorders is too large", most)
	}
}

// TestConversationIsRecognised: whatever its length, the next prompt of a conversation has most of the one before in
// common with it, although the bracket at its end has moved.
func TestConversationIsRecognised(t *testing.T) {
	for _, turn := range []int{100, 700, 2000, 6000} {
		messages := []message{{"system", words(1, 5000)}, {"user", words(2, turn)}}
		before := AffinityOf("p", "", "", prompt(t, messages...))
		for n := range 30 {
			messages = append(messages, message{"assistant", words(uint64(100+n), turn/2)}, message{"user", words(uint64(200+n), turn/2)})
			after := AffinityOf("p", "", "", prompt(t, messages...))
			got := common(before, after)
			// Equal up to before's length; the border below that is at most this far away.
			lost := uint32(middleBorder)
			if after.length-before.length < (fineBorders-1)*fineBorder {
				lost = fineBorder
			}
			if got+lost <= before.length {
				t.Fatalf("turns of %d bytes, turn %d: %d of %d bytes recognised", turn, n, got, before.length)
			}
			before = after
		}
	}
}

func TestSystemPromptIsRecognised(t *testing.T) {
	system := message{"system", words(1, 9000)}
	a := AffinityOf("alice", "", "", prompt(t, system, message{"user", words(2, 300)}))
	b := AffinityOf("bob", "", "", prompt(t, system, message{"user", words(3, 30_000)}))
	if got := common(a, b); got < 8192 {
		t.Errorf("%d bytes recognised of another principal's prompt with the same system prompt of 9,000", got)
	}
	other := AffinityOf("alice", "", "", prompt(t, message{"system", words(4, 9000)}))
	if got := common(a, other); got != 0 {
		t.Errorf("%d bytes recognised of a prompt that differs from its first words on", got)
	}
}

func TestHintsBelongToThePrincipal(t *testing.T) {
	of := func(principal, session, key string) [2]uint64 {
		a := AffinityOf(principal, session, key, nil)
		return [2]uint64{a.session, a.cacheKey}
	}
	if again := of("alice", "s", "k"); again != of("alice", "s", "k") {
		t.Error("the same hints of the same principal differ")
	}
	if a := of("alice", "same", "same"); a[0] == a[1] {
		t.Error("a session_id and a prompt_cache_key of the same text are the same hint")
	}
	if a, b := of("alice", "s", "k"), of("bob", "s", "k"); a[0] == b[0] || a[1] == b[1] {
		t.Error("two principals share a hint")
	}
	if a, b := of("al", "ices", "k"), of("alice", "s", "k"); a[0] == b[0] {
		t.Error("where the principal ends and the session_id begins makes no difference")
	}
	if a := AffinityOf("alice", "", "", []byte(`"hi"`)); !a.empty() {
		t.Errorf("a short prompt without hints has an affinity: %+v", a)
	}
}

// places is a group for choose: the load of each place, of 4; 4 is full.
type places map[placeID]int

func (p places) total() (total groupLoad) {
	for _, n := range p {
		total.inFlight += n
		total.capacity += 4
	}
	return total
}

func (p places) load(id placeID) (int, int, bool) {
	n, ok := p[id]
	return n, 4, ok && n < 4
}

func TestChoose(t *testing.T) {
	system := message{"system", words(1, 6000)}
	first := prompt(t, system, message{"user", words(2, 1000)})
	second := prompt(t, system, message{"user", words(2, 1000)}, message{"assistant", words(3, 900)}, message{"user", "more"})
	stranger := prompt(t, system, message{"user", words(4, 800)})
	brief := prompt(t, message{"system", words(1, 1200)}, message{"user", words(5, 4000)})
	endless := prompt(t, message{"system", words(1, 1200)}, message{"user", words(5, 40_000)})
	other := prompt(t, message{"user", words(6, 2000)})
	type run struct {
		session, key string
		prompt       []byte
		place        placeID
	}
	for name, c := range map[string]struct {
		before []run // oldest first
		run    run   // place: where it shall run; 0: nowhere
		load   places
		want   affinityResult
	}{
		"nothing known":                    {run: run{prompt: first}, load: places{1: 0}, want: affinityMiss},
		"the conversation's place":         {before: []run{{prompt: first, place: 1}, {prompt: stranger, place: 2}}, run: run{prompt: second, place: 1}, load: places{1: 1, 2: 0}, want: affinityHit},
		"the system prompt's place":        {before: []run{{prompt: first, place: 1}}, run: run{prompt: stranger, place: 1}, load: places{1: 0, 2: 0}, want: affinityHit},
		"the least busy of several":        {before: []run{{prompt: first, place: 1}, {prompt: stranger, place: 2}, {prompt: stranger, place: 3}}, run: run{prompt: prompt(t, system), place: 2}, load: places{1: 1, 2: 0, 3: 1}, want: affinityHit},
		"a place that is gone":             {before: []run{{prompt: first, place: 9}}, run: run{prompt: second}, load: places{1: 0}, want: affinityMiss},
		"a full place":                     {before: []run{{prompt: first, place: 1}}, run: run{prompt: second}, load: places{1: 4, 2: 4, 3: 3}, want: affinityMiss},
		"a place above its share":          {before: []run{{prompt: first, place: 1}}, run: run{prompt: second}, load: places{1: 3, 2: 1, 3: 1}, want: affinityYield},
		"a copy where the load is less":    {before: []run{{prompt: first, place: 1}, {prompt: stranger, place: 2}}, run: run{prompt: second, place: 2}, load: places{1: 3, 2: 1, 3: 1}, want: affinityHit},
		"an idle place never yields":       {before: []run{{prompt: first, place: 1}}, run: run{prompt: second, place: 1}, load: places{1: 0, 2: 0, 3: 0, 4: 0}, want: affinityHit},
		"a session whose prompt changed":   {before: []run{{session: "s", prompt: first, place: 1}}, run: run{session: "s", prompt: other, place: 1}, load: places{1: 0, 2: 0}, want: affinityHit},
		"another session":                  {before: []run{{session: "s", prompt: first, place: 1}}, run: run{session: "t", prompt: other}, load: places{1: 0, 2: 0}, want: affinityMiss},
		"a cache key":                      {before: []run{{key: "k", prompt: first, place: 1}}, run: run{key: "k", prompt: other, place: 1}, load: places{1: 0, 2: 0}, want: affinityHit},
		"a session goes before a key":      {before: []run{{session: "s", place: 1}, {key: "k", place: 2}}, run: run{session: "s", key: "k", place: 1}, load: places{1: 1, 2: 0, 3: 3}, want: affinityHit},
		"a long match goes before a hint":  {before: []run{{prompt: first, place: 1}, {session: "s", place: 2}}, run: run{session: "s", prompt: second, place: 1}, load: places{1: 1, 2: 0, 3: 3}, want: affinityHit},
		"a hint goes before a short match": {before: []run{{prompt: prompt(t, system), place: 1}, {key: "k", place: 2}}, run: run{key: "k", prompt: brief, place: 2}, load: places{1: 0, 2: 0}, want: affinityHit},
		"a short match":                    {before: []run{{prompt: prompt(t, system), place: 1}}, run: run{prompt: brief, place: 1}, load: places{1: 0, 2: 0}, want: affinityHit},
		"a match of hardly anything":       {before: []run{{prompt: prompt(t, system), place: 1}}, run: run{prompt: endless}, load: places{1: 0, 2: 0}, want: affinityMiss},
	} {
		t.Run(name, func(t *testing.T) {
			x := newPrefixIndex(1024)
			for _, r := range c.before {
				a := AffinityOf("p", r.session, r.key, r.prompt)
				x.record(&a, r.place)
			}
			a := AffinityOf("p", c.run.session, c.run.key, c.run.prompt)
			if id, got := x.choose(&a, c.load.total(), c.load.load); id != c.run.place || got != c.want {
				t.Errorf("place %d, result %d; want %d, %d", id, got, c.run.place, c.want)
			}
		})
	}
}

// TestHotPrefixKeepsRoomForOthers: a prefix that ran everywhere takes a bounded part of its set, and its latest places
// are remembered.
func TestHotPrefixKeepsRoomForOthers(t *testing.T) {
	x := newPrefixIndex(indexWays) // one set
	const hot, cold = 1 << 32, 2 << 32
	x.put(cold, 1)
	for id := placeID(1); id <= 100; id++ {
		x.clock++
		x.put(hot, id)
	}
	var found []placeID
	seen := func(id placeID) (int, int, bool) { found = append(found, id); return 0, 1, false }
	c := chooser{index: x, load: seen}
	c.least(hot)
	slices.Sort(found)
	if len(found) != maxCopies || found[0] != 101-maxCopies {
		t.Errorf("places of the hot prefix: %v", found)
	}
	found = nil
	c.least(cold)
	if !slices.Equal(found, []placeID{1}) {
		t.Errorf("places of the other: %v", found)
	}
}

func TestOldestEntryGoesFirst(t *testing.T) {
	x := newPrefixIndex(indexWays)
	x.clock = 1<<32 - indexWays/2 // it wraps on the way
	for hash := range uint64(indexWays) {
		x.clock++
		x.put(hash<<32|1<<60, 1)
	}
	x.clock++
	x.put(0<<32|1<<60, 1) // used again
	x.clock++
	x.put(99<<32|1<<60, 1)
	for hash, want := range map[uint64]bool{0: true, 1: false, 2: true, indexWays - 1: true, 99: true} {
		c := chooser{index: x, load: func(placeID) (int, int, bool) { return 0, 1, true }}
		if got := c.least(hash<<32|1<<60) != 0; got != want {
			t.Errorf("hash %d is remembered: %v", hash, got)
		}
	}
}

func TestPlaceIDs(t *testing.T) {
	seen := map[placeID]string{}
	for _, node := range []string{"a", "ab", "b"} {
		for _, provider := range []string{"", "b", "bc"} {
			for _, model := range []string{"c", "bc", ""} {
				id, name := placeIDOf(execution.NodeID(node), execution.ProviderID(provider), model), node+"|"+provider+"|"+model
				if id == 0 {
					t.Errorf("the id of %s is 0", name)
				}
				if other, dup := seen[id]; dup {
					t.Errorf("%s and %s have the same id", name, other)
				}
				seen[id] = name
			}
		}
	}
}

// TestMillionPrompts: whatever the number of prompts, the index stays as large as it was made.
func TestMillionPrompts(t *testing.T) {
	n := 1_000_000
	if testing.Short() || raceEnabled {
		n = 100_000
	}
	x := newPrefixIndex(0)
	if size := uintptr(len(x.sets)) * unsafe.Sizeof(x.sets[0]); size > 4<<20 {
		t.Fatalf("the table takes %d bytes", size)
	}
	group := places{1: 0, 2: 1, 3: 2, 4: 3}
	total := group.total()
	load := group.load
	raw := []byte(`[{"role":"user","content":"` + strings.Repeat("0123456789abcdef", 100) + `"}]`)
	run := func(i int) {
		binary.LittleEndian.PutUint64(raw[40:], uint64(i)|0x2020202020202020)
		a := AffinityOf("p", "", "", raw)
		id, _ := x.choose(&a, total, load)
		if id == 0 {
			id = placeID(i%4 + 1)
		}
		x.record(&a, id)
	}
	sets, before := len(x.sets), heapBytes()
	for i := range n {
		run(i)
	}
	if grown := int64(heapBytes()) - int64(before); grown > 256<<10 {
		t.Errorf("the heap grew by %d bytes in %d prompts", grown, n)
	}
	if len(x.sets) != sets || cap(x.sets) != sets {
		t.Errorf("the table went from %d sets to %d", sets, len(x.sets))
	}
	i := n
	if allocs := testing.AllocsPerRun(1000, func() { run(i); i++ }); allocs != 0 {
		t.Errorf("%.1f allocations for each prompt", allocs)
	}
	runtime.KeepAlive(x)
}

func heapBytes() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// FuzzAffinityOf: no prompt is too odd, and what is put behind one changes no hash of what both have.
func FuzzAffinityOf(f *testing.F) {
	f.Add([]byte(nil), []byte(nil))
	f.Add([]byte(`[{"role":"user","content":"hi"}]`), []byte(`]`))
	f.Add([]byte(`"`+words(1, 700)+`"`), []byte(words(2, 5000)))
	f.Add(bytes.Repeat([]byte("]} \""), 300), []byte("x"))
	f.Add(bytes.Repeat([]byte{0xff, 0}, 4000), bytes.Repeat([]byte{0}, 600))
	f.Fuzz(func(t *testing.T, head, tail []byte) {
		short, long := AffinityOf("p", "", "", head), AffinityOf("p", "", "", slices.Concat(head, tail))
		if int(short.length) > len(head) || short.borders > maxBorders || long.borders > maxBorders {
			t.Fatalf("length %d of %d, %d and %d borders", short.length, len(head), short.borders, long.borders)
		}
		hashes := long.borderHashes()
		for at, hash := range short.borderHashes() {
			if got, both := hashes[at]; both && got != hash {
				t.Fatalf("the hashes up to %d differ", at)
			}
		}
		// Those that double are in every prompt that is long enough.
		for at := uint32(firstBorder); at <= short.length; at *= 2 {
			if _, both := hashes[at]; !both {
				t.Fatalf("the longer prompt has no hash at %d", at)
			}
		}
		if last := common(short, long); last > 0 && last >= long.length/8 {
			x := newPrefixIndex(64)
			x.record(&short, 7)
			one := places{7: 0}
			if id, _ := x.choose(&long, one.total(), one.load); id != 7 {
				t.Fatal("the longer prompt does not find the place of the shorter one")
			}
		}
	})
}

func BenchmarkAffinityOf(b *testing.B) {
	for _, size := range []int{500, 4 << 10, 32 << 10, 256 << 10, 4 << 20} {
		raw := prompt(b, message{"user", words(1, size)})
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				AffinityOf("principal", "session", "", raw)
			}
		})
	}
}

// BenchmarkPrefixIndex is what a run of a prompt of 8 KiB costs under the Controller's lock, in a full table.
func BenchmarkPrefixIndex(b *testing.B) {
	group := places{}
	for id := range placeID(8) {
		group[id+1] = int(id % 3)
	}
	total, load := group.total(), group.load
	affinities := make([]Affinity, 20_000)
	for i := range affinities {
		affinities[i] = AffinityOf("p", "", "", prompt(b, message{"user", words(uint64(i), 8<<10)}))
	}
	x := newPrefixIndex(0)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		a := &affinities[i%len(affinities)]
		id, _ := x.choose(a, total, load)
		if id == 0 {
			id = placeID(i%8 + 1)
		}
		x.record(a, id)
		i++
	}
}
