package admission

const (
	// Who waits is looked at for affinity in a window: the first few requests of the first few principals, so that a
	// grant from a long queue costs no more than one from a short one.
	windowFlows   = 8
	windowWaiters = 4
	// maxLead is how far the virtual time of a principal may be ahead of that of the one whose turn it is, for affinity's
	// sake. Its grant moves the clock; with more than half of maxLag others would count as late for it.
	maxLead = maxLag / 2
	// maxPassed is how often a request may be passed over by others that fit a place better.
	maxPassed = 8
)

// affineWaiterLocked returns who gets a run of x when it is the turn of f: instead of f's first waiter another one of
// the line, of whose prompt more ran at x. Without this, affinity would end where it is worth most, when all places are
// taken and each that becomes free goes to whoever waits.
//
// It bends the order of the queue, and no more than this: within a principal's requests of one priority, and between
// principals by maxLead, for which who goes first now waits later. Nobody is passed over more than maxPassed times.
func (c *Controller) affineWaiterLocked(f *flow, x *candidate) *Waiter {
	first := f.waiters[0]
	if first.passed >= maxPassed {
		return first
	}
	best, most := first, c.index.seen(&first.request.Affinity, x.id, 0)
	early := f.line.early
	for _, g := range early[:min(len(early), windowFlows)] {
		if g.principal.time > f.principal.time+maxLead {
			continue
		}
		for _, w := range g.waiters[:min(len(g.waiters), windowWaiters)] {
			if w.request.Principal.Priority != g.waiters[0].request.Principal.Priority {
				continue
			}
			if seen := c.index.seen(&w.request.Affinity, x.id, most); seen > most {
				best, most = w, seen
			}
		}
	}
	if best != first {
		first.passed++
	}
	return best
}

// hintWorth is what a session_id or a prompt_cache_key counts that was seen at a place: as half of the prompt.
const hintWorth = 50

// seen returns how much of a request's prompt ran at a place, in percent, if that is more than least, else at most
// least.
func (x *prefixIndex) seen(a *Affinity, place placeID, least int) int {
	percent := func(at uint32) int { return int(uint64(at) * 100 / uint64(a.length)) }
	if x.has(a.session, place) || x.has(a.cacheKey, place) {
		least = max(least, hintWorth)
	}
	var borders [maxBorders]uint32
	n := 0
	for at := nextBorder(0, a.length); at != 0; at = nextBorder(at, a.length) {
		borders[n] = at
		n++
	}
	for n--; n >= 0 && borders[n] >= a.length/8 && percent(borders[n]) > least; n-- {
		if x.has(a.prefix[n], place) {
			return percent(borders[n])
		}
	}
	return least
}

// has reports whether a hash is known to have been at a place; 0 is none.
func (x *prefixIndex) has(hash uint64, place placeID) bool {
	if hash == 0 {
		return false
	}
	set, tag := x.set(hash)
	for i := range set {
		if set[i].tag == tag && set[i].place == place {
			return true
		}
	}
	return false
}
