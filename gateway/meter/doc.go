// Package meter brings what runs used from the path of a request to the state, in batches and in the background, and
// prunes what has become too old.
//
// # What may be lost
//
// At an orderly stop nothing: Run writes the rest before it returns, within seconds. At a crash what was recorded in the
// last Interval, and what a write that was going on had in hand. While the state fails, records wait in a bounded
// buffer; past it the newest are dropped and counted, because what came before was promised first. A batch that failed
// is written again: the state counts a run once, however often it comes.
//
// # What may enter
//
// state.UsageRecord: names and numbers of runs that have ended. Never what a client or a model said, never a key's
// secret, never an address. The log gets counts and the state's errors, a line when the state begins to fail and one
// when it works again, not one a record.
//
// # What it never does
//
// Record never waits for the disk, for a lock that is held during a write, or for anybody. Nothing here decides whether
// a request may run: see gateway/limit.
package meter
