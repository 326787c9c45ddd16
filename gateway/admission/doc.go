// Package admission decides where a request runs and makes it wait when nothing is free.
//
// The room holds capacity places, one set for each provider of each Node session, and one first-come queue for each
// model. It gives out tickets: the right to open one run at one target. A place is counted from the moment of the
// ticket, so that a burst spreads before the first Node has answered.
//
// It knows targets by name (node, generation, provider) and never sees a session, a request or a socket: what can be
// reached is told to it through Offer, Withdraw and Remove. It never blocks and starts no goroutine; timers are the
// runtime's.
package admission
