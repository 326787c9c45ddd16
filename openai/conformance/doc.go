// Package conformance lets OpenAI's own Go client judge what the renderers write: what it decodes without complaint is
// right. It holds nothing but tests, apart from package openai because that client takes long to compile.
package conformance
