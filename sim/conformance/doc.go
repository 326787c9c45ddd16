// Package conformance lets OpenAI's own Go client judge the simulator's shapes: what it decodes without complaint is
// right. It holds nothing but tests, apart from package sim because that client takes long to compile.
package conformance
