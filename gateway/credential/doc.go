// Package credential issues the leases by which a Node calls a provider with a credential of the Edge's, and withdraws
// them.
//
// # What is checked, and when
//
// A run whose target names a slot gets a Grant before it is opened, and a lease when all of its request has been sent:
// neither a queue nor a slow upload uses up a lease's life. Everything that could forbid the use is asked at that moment,
// of the state and not of a memory: the session is the Node's, its certificate is trusted now, the lists of Nodes allow
// it, and this slot and profile; the API key of the run is not revoked; the slot gives a credential; the profile and the
// address are those that the route names. Whatever says no, and whatever can't be found out, ends the run: no other
// credential, no other target, no retry. A session that ended meanwhile is no refusal: nothing was sent, and the run is
// dispatched again.
//
// # Withdrawal
//
// A change of a slot, or the revocation of a key, first stops new leases (the state says so), then reaches those that are
// out: each Node that has one is told, and its acknowledgement awaited for a moment; the runs are cancelled; the slots'
// least revisions are told to all Nodes that may have them. Between an issue and a withdrawal at the same time stands
// Issuer.epoch: who has asked the state before a withdrawal began asks again. The answer is honest: done, or until when a
// lease that was sent may still be used. A credential that a Node has opened is known to that Node; only the provider can
// make it useless.
//
// A rotation withdraws nothing: leases of the former value are good until they end, and the least revision rises then.
//
// # What may enter
//
// Who may have which credential now, and what is out. No HTTP, no routing, no format of leases (package lease), no
// sessions (gateway/registry). Credentials pass through Grant.Lease and nothing else; no error, log line or audit
// row has one.
package credential
