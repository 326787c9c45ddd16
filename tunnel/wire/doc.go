// Package wire is the tunnel's wire contract: frame headers, their limits and codec, and the protobuf messages that
// frames carry. README.md is the contract in full, enough to write a Node in another language.
//
// What may enter is what both ends must agree on byte for byte. It keeps no state, does no I/O and starts nothing.
package wire

//go:generate go run ./protogen .
