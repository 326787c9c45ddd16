// Package admin is the operator's API, on a listener of its own: what the Edge is doing, its routes and who waits for
// them, keys and join tokens, the credentials of providers and which Nodes may be lent them, the audit of all that, usage, the file of routes, and the few things an operator may do to a run or a Node.
// /metrics and /debug/pprof stand beside it. openapi.yaml describes every operation; a test holds the answers to it.
//
// Everything under /admin/v1 and /debug asks for the admin token in `Authorization: Bearer`. What a page of another
// origin makes a browser send is refused, with the token too; there is no CORS; nothing changes state on a GET. What a
// request misspells is refused by name and never taken for not given. A secret is shown once, in the answer to its
// creation; a provider's credential comes in by the body of a request and never goes out, not even in a fault of that
// body. A change of what Nodes may have is answered when the Edge has told them, with what may still be used and until
// when; it goes on if who asked has gone. Answers are JSON; errors have the shape {"error":{"message","type","param","code"}}.
//
// The room sees the Edge through the interface Edge and never imports it. It decides nothing about routes, limits or
// usage: it asks those who do.
package admin
