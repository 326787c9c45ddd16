// Package registry knows which Nodes are connected, by name and generation, and what they serve.
//
// It is the tunnel's Directory: it lets a Node in by its join token, gives it a generation, decides between two
// sessions of one name, and tells admission what can be run where. It is the only room of the Edge that holds
// sessions: everybody else names one by (node, generation) and asks here. Nothing outside may assume that a session is
// in this process.
//
// It never dispatches, never queues, and never keeps a run.
package registry
