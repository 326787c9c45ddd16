// Package admin is the operator's API, on a listener of its own: what the Edge is doing, its keys and join tokens,
// and the few things an operator may do to a run or a Node. /metrics and /debug/pprof stand beside it.
//
// Everything under /admin/v1 and /debug asks for the admin token in `Authorization: Bearer`; nothing changes state on a
// GET; there is no CORS. A secret is shown once, in the answer to its creation. Answers are JSON; errors have the shape
// {"error":{"message","type","param","code"}}.
//
// The room sees the Edge through the interface Edge and never imports it.
package admin
