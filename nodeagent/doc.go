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
// What it never does: it takes no decision that belongs to the Edge (who may call, which Node, retry), it keeps no
// state past the process, and it never rewrites a provider's bytes, but for the usage-only event that it is asked to
// withhold, the model's name that it is asked to replace, what follows an error in a stream, and the masked key.
package nodeagent
