// Package bench puts load on an OpenAI-compatible URL from the client's side and reports what a client would feel: time
// to first token, time between tokens, tokens per second, and every way in which a request failed.
//
// What may enter is measuring and its report. The package knows nothing of Edges, Nodes or tunnels: whatever speaks
// OpenAI's protocol can be measured and compared. It never prints, never retries (a retry would hide what it is there
// to count), and stops by itself: each run is bounded in requests and in time, and its memory does not grow with either.
package bench
