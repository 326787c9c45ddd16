// Package nodeagent is the Node: it stands beside inference providers, tells an Edge what they offer and runs what the
// Edge sends.
//
// What lives here: the operator's provider specifications, the discovery of local engines, the probe that tells a hung
// engine from a busy one, the Node's own capacity places, and the HTTP exchange with a provider. The tunnel's frames,
// the meaning of OpenAI's formats, and everything about clients and routes stay outside.
//
// Security model. A provider's address comes from the operator's configuration and from nowhere else: no host, path
// or URL travels on the wire, an operation names one of a closed table of constant paths, a redirect is never
// followed, and the dialer connects to the configured address only and refuses link-local addresses (where clouds
// keep their metadata) unless the operator wrote that very address. Headers pass in both directions by allow-list;
// interim responses and trailers never pass. A local provider key lives in a file, is put on the request towards
// that provider alone, and is masked where the provider echoes it.
//
// Managed mode. With an identity (Config.Identity) the Node shows a certificate instead of a join token, speaks to one
// Edge only, and replaces its session when its certificate changes. A provider with slots has no key of its own: each
// run brings a lease, which this Node opens once the run has a place and its body has come whole, puts on that one
// request as the last thing before it is sent, and gives up at the end of the call. A lease that is refused, for
// whatever reason, ends the run: it says no more than "lease rejected", and the reason is for the Node's own log and
// LeaseCounters. A provider with slots gets no run without a lease, and no other provider gets one with it. An answer
// that repeats the credential is masked: as it is, in base64, as a part of a URL or of a JSON string, however it is cut.
// What a provider does on purpose is not defended against: it may spell the credential in a way that nobody looks for,
// or spread it over several events.
//
// What it never does: it takes no decision that belongs to the Edge (who may call, which Node, retry), it keeps no
// state past the process, and it never rewrites a provider's bytes, but for the usage-only event that it is asked to
// withhold, the model's name that it is asked to replace, what follows an error in a stream, and the masked key.
package nodeagent
