// Command scale measures what many streams and many Nodes cost an Edge in memory and CPU time, with real processes:
//
//	go run ./e2e/scale streams    2,000 paced streams through Edge, Node and simulator
//	go run ./e2e/scale nodes      1,000 connected Nodes that have nothing to do
//	go run ./e2e/scale mixed      an hour of a steady load of every kind: what of the memory only grows
//
// It builds iop, starts the Edge alone in its process, as an operator would (API keys, join tokens, log at info), and
// puts the load on it from other processes. Memory is the Edge's resident set: the highest of the samples taken while
// the load stood, less what it was before, divided by the number of streams or Nodes; under the mixed load it is split by
// what the pages are of, and a line is fitted through the samples. CPU time is the process's own
// account of it. The exit status is 1 if a goal of docs/performance.md was missed.
//
// What may enter is a measurement of the whole Edge that the kernel can attest. Nothing here looks into the Edge but
// through its own /metrics and /debug/pprof, and what it starts ends with it.
package main
