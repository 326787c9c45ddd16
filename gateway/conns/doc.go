// Package conns bounds the connections of the Edge's listeners, so that clients can't use up the process's file
// descriptors: Nodes, the admin listener and the state each keep a share that no client can take.
//
// A connection begins as a fresh one: nobody knows yet whether a client or a Node opened it, as in token mode both come
// to one listener. The first valid secret decides. A client's connection then takes one of the clients' places, or its request
// is refused; a Node's upgrade takes one of the tunnels' places. Fresh connections are taken in as long as any place is
// free. When none is, one of them gives way to the new one: a fresh one that has sent no headers for too long, of the source
// that has the most, or else the client that has been idle for longest, or else any fresh one. So a client that only opens
// connections, or sends its headers slowly, competes with itself.
//
// What it does not do: it reads no request, waits for nobody, and bounds no bytes.
package conns
