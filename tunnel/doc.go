// Package tunnel carries runs between an Edge and its Nodes over one WebSocket (RFC 6455) per Node session.
//
// The room holds frames and their order, credit, heartbeats, generations on the wire, registration, drain and the
// supervisor that keeps a Node connected. wire/README.md is the contract that it implements. What a run means (HTTP,
// providers, queues) stays outside: the Edge's side is met through Directory and Run, the Node's through Handler, NodeRun
// and Keeper. Nothing here dials a provider, decides who may run what, seals or opens a lease, or remembers anything past
// the end of a session.
//
// Each session has two goroutines, a reader and a writer. The reader never blocks on anything but the socket. One
// message is written at a time, with the session's life and never a run's: by the writer, or while the link is calm by
// the goroutine of a Node's run that would otherwise only wake it (writeNow). Everything between them is state under
// one lock.
package tunnel
