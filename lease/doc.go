// Package lease carries a provider's credential from the Edge to the one Node that runs the one request that needs it.
//
// # What is defended
//
// A lease is the credential and its binding, signed by the Edge and sealed to a key that the Node made for this session
// and keeps in memory: JWS (RFC 7515, ES256) within JWE (RFC 7516, ECDH-ES with A256GCM),
// compact, P-256 throughout (RFC 7518); keys travel as JWK (RFC 7517). It opens
//
//   - at one Node, in one session, for one run, attempt, principal, route, slot, profile and revision;
//   - for one address, one header and one request, down to its body's hash;
//   - once, and for at most a minute, by the Edge's clock;
//   - unless the Edge has withdrawn it, at any moment before the request is sent; later, the call is cancelled.
//
// Everything else is refused, with one opaque error and a [Reason] for the operator. Nothing is tried instead. Open says
// in which order the checks stand; the order is part of the defence. The tests are named after the threats that they
// stand for, testdata/vectors.json holds the tokens for implementers in other languages.
//
// # What is not defended
//
// The Node reads the credentials that it is given a lease of, and the requests that they go with. A Node in the wrong hands
// keeps them; only the provider can then revoke them. An Edge in the wrong hands has them all.
//
// Memory is not erased. The package clears the bytes that it owns as soon as they are used, and a [Secret] when its lease
// ends, but Go promises nothing: the library that opens a lease makes strings on the way, a header's value is a string,
// HTTP/2 keeps values in its compression table, and the collector copies. Private keys are dropped, not overwritten. What
// really limits the damage is a short life, a key per session, and a process without core dumps, swap and public heap
// profiles.
//
// Traffic analysis: who sees the tunnel's ciphertext sees that a lease passed, and about how long it is.
//
// # What a caller must do
//
// Edge: verify the Node's identity and take its recipient key from the mutually authenticated tunnel only; before each
// Seal, fence: session current, identity and revision valid, nothing revoked. Send Public of its [SigningKeys] at
// registration and after each change. Node: give each session a [Recipient], an [EdgeClock] and an [Opener] of its own
// and close the Opener with the session; take a lease from its frame only; call [Opened.Authorize] as the last thing
// before the request is sent, cancel the call when Revoked is closed, Close in the end.
//
// # What may enter
//
// The format, its keys, its clock, its memory of what was used and withdrawn. No I/O, no storage, no goroutines, nothing
// of the wire. The package imports execution and go-jose. It uses that library's compact parsers with fixed lists of one
// algorithm each, never its JWT package (whose defaults accept missing and expired times), never a key or URL that a
// token brings, and it looks at every header itself before the library does: at exactly the members that are allowed,
// since the library would unpack compressed tokens and accepts several spellings of the same token. For that reason no
// memory here is keyed by a token's text: only by its signed id.
package lease
