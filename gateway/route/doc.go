// Package route says what a client's model name means: which targets serve it, in which order and by which policy, who
// may use it, how long each phase may take, and what becomes of its parameters.
//
// A Table is what an iop.yaml says; every model that a Node advertises and that it does not name is a route of its own, unless
// the file refuses those, or a route with limits has the model as a target (see Table.ReservedFor). Tables
// are immutable: a reload makes a new one, and a file with a fault makes none.
//
// The room reads configuration and answers questions about it. It knows no session, no load and no request: which of a
// route's targets runs something is admission's to decide.
package route
