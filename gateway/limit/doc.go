// Package limit holds callers to the limits of their keys: requests and tokens a minute, requests at once, tokens a
// month. It decides before a request may wait for a place; who goes first among those that may is admission's business.
//
// # How a limit counts
//
// Requests and tokens a minute are token buckets that hold one minute's worth and refill evenly, counted in whole
// tokens and a remainder, so that nothing drifts: the request after the last that fits passes exactly when RetryAfter
// has gone by. Tokens are taken by estimate before the run and put right by Settle after it: a run that used more than
// its estimate leaves a debt that delays the next one, one that used less gives back. A request whose estimate is above
// the whole limit needs a full bucket, so that it runs at all.
//
// A request counts when it arrives, before its body is read: one that turns out to be malformed, too large or for a model
// that is not there counts like any other. Only what the caller could not help is taken back: a refusal by another limit,
// or by an Edge that has no room.
//
// A place of the concurrency limit is taken until Settle. The month's budget is what the state says was spent, asked
// once a minute and key, and what this process took since; several Edges on one state see each other's use within that
// minute, and may together overrun a budget by what they took in it. A single Edge does not.
//
// # What may enter
//
// Ids and limits of keys, estimates and counts of tokens. What a key may use, its name and its secret have no business
// here; nor has the text of a request.
//
// # What it never does
//
// It never takes from one limit when another refuses, never lets more run at once than the limit says, never puts a
// key's id into a message, never starts a goroutine, and touches the state only through Config.Spent. Its memory is an
// entry for each key with requests in flight or limits that are not full again.
package limit
