// Package anthropic is the Edge's side of the Anthropic Messages protocol in a normalized run: a parser that makes a
// run's input of a client's request, and a renderer that writes the run's events as the protocol has them.
//
// It works on bytes that somebody else has read and will send: no connection, no goroutine. What the protocol has and a
// run has not is refused by the name that the client wrote; the few members that are passed over are listed in parse.go
// with the reason.
//
// Some of what a run can say has no place in the protocol and is not written: annotations (a citation of Messages wants a
// text and an index that nobody has), log probabilities, and choices after the first.
package anthropic
