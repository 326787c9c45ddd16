// Package sim is a provider simulator: one HTTP server that answers as real inference engines do, in OpenAI's,
// Ollama's and Anthropic's shapes, with a fixed number of slots, a pace, and faults on demand. `iop sim` runs it as a
// process of its own; tests and `iop dev` use it where they would otherwise need a GPU.
//
// What may enter is behaviour seen from outside an engine: shapes, timing, quirks, failures. It never calls anybody,
// it never invents a client, and its answers are deterministic: the same request gets the same content. The answers'
// wording is meaningless on purpose; files (PNG, WAV) and JSON documents are valid.
//
// # Knobs
//
// A knob changes how one request is answered. Knobs are written `sim:key=value,key=value` and may stand in
//
//   - the body's `user` or `safety_identifier` string, `metadata.sim` or `metadata.user_id` (an unchanged SDK sets
//     them),
//   - the beginning of the last user message, of `input` or of `prompt`, up to the first white space,
//   - the multipart fields `user`, `safety_identifier` and `prompt`,
//   - the header X-Sim (for a client that talks to the simulator directly).
//
// POST /sim/config takes the same keys as a JSON object and makes them the defaults of all later requests: a null
// clears one key, DELETE /sim/config clears all. GET /sim lists every knob with its meaning.
//
// Default knobs touch inference requests only. `path` widens that: `*` is every request (a hung engine hangs its
// model list too), anything else is a prefix of the request path. `times=N` makes the defaults last for N requests.
//
// # Watching it
//
// GET /sim/stats counts requests and slots; GET /sim/requests?n=10 shows the last requests, newest first, with the
// headers and the beginning of the body that arrived, so that a test sees what a proxy made of them. Both hold
// whatever the client sent, secrets included: the simulator is no place for real ones.
//
// # Slots
//
// At most Slots inference requests run at once. The next wait in arrival order, at most Queue of them; one more is
// refused with 429 and Retry-After. A slot is held until the answer has ended or the client has gone, never longer,
// except under the knob ignore_cancel.
//
// # Memory
//
// With a prefix cache a prompt that begins as an earlier one of the same model needs prefill for the rest alone, in
// blocks of 16 tokens, and the answer's usage says how many tokens were cached. Without one, and without a pace of
// prefill, half of each prompt is said to be cached. A model that is not in memory is loaded by the first request for
// it; those that come meanwhile wait for the same load.
package sim
