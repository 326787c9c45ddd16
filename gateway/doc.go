// Package gateway is the Edge: the public OpenAI-compatible API, and everything between a client's request and the
// Node that runs it.
//
// A request is authenticated, read whole within a budget, and looked at just far enough to know its model. It gets a
// ticket from admission, is opened as a run on the session that the registry holds, and what comes back goes to the
// client as it arrives: everything that has arrived in one write and one flush. The relay never decodes what it
// forwards; where the protocol allows it, it speaks between events (keep-alive comments, the error of a run that broke).
//
// Rooms of their own: conns (how many connections clients, Nodes and operators have), registry (which Node sessions exist), admission (who runs where, and who waits), admin (the
// operator's API). The handler's goroutine owns its request from the first byte to the last; there is no other
// goroutine per request.
//
// What it never does: decode a prompt, log a body or a secret, choose a host that a client named, tell a client a
// Node's name or a provider's address.
package gateway
