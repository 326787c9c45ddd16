// Package admission decides where a request runs and makes it wait when nothing is free.
//
// The room holds capacity places, one set for each provider of each Node session, and a queue for each route. It gives
// out tickets: the right to open one run at one target. A place is counted from the moment of the ticket, so that a
// burst spreads before the first Node has answered.
//
// It knows targets by name (node, generation, provider) and never sees a session, a request or a socket: what can be
// reached is told to it through Offer, Withdraw and Remove, what a model name means through Configure. It never blocks
// and starts no goroutine; timers are the runtime's.
//
// # Picking
//
// A line is a route at work. Each group of it lists its candidates (a model at a place) that could take a run now, so
// that no decision looks at all Nodes: a policy compares 16 of them. A candidate whose place became full stays listed
// until a decision meets it and parks it; a place that gets room again lists what was parked. So a run costs the same
// whether its place serves one route or a thousand.
//
// Two rules keep this true. Whatever gives a place room ends in freedLocked, which serves who waits for it. Whatever
// takes something out of service ends in settleLocked, which gives those who waited for it the places of later groups or of
// a last resort, or ErrNoOther. After each call nobody waits for whom there is room; the random test checks that, and all counts.
//
// A group that is for when the others are down is open while none of theirs is selectable with a closed breaker. One on
// trial is not in service yet: it gets its one run, and the others need not wait for how that ends.
//
// A breaker protects requests from a target, not a target from requests. So it holds only while something else of the
// line is in service; where nothing is, what is cut off is listed too, and used as a last resort.
//
// Not every place can run what a request asks for (see ability). Those that can't are passed over as those to avoid are;
// where no candidate of a route can, be it in service or not, the request is refused at once: to wait would be for
// nothing. A line in which not all who wait may use the same places is searched whole for whose turn it is.
//
// # Waiting
//
// Requests that were in line before (a second dispatch) go first, by their number in line. Between the others the
// queue is fair among principals, by estimated tokens over weight: start-time fair queueing. A principal has one
// virtual time for all routes, which its grants move on by tokens/weight; a place that gets room serves, among all
// routes that it is a candidate of, the principal with the least. Who begins to wait starts at the tag of the last
// grant: absence earns nothing. Deficit round robin within each route would share the routes fairly, but not a place
// that serves two of them: who waits for both would get a part of it twice.
//
// One time for all routes has a flaw of its own: where one route is much faster than another, who waits for the slow
// one would fall behind by any amount and then have the fast one to itself. So it may lag by maxLag only, and those of
// a line who lag more are in the order of a second virtual time, the line's own. And so that nobody starves who is
// served well elsewhere, one grant of turnEvery at each place goes to whom the longest ago had one.
//
// The priority of a request orders the requests of its own principal, and no others.
package admission
