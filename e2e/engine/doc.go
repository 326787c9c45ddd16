// Package engine shows IOP in front of a real inference server: llama.cpp's own, built here, on a small model of noise.
//
// The simulator does what its authors thought of. An engine has habits that nobody thought of: when it notices that a
// client has gone, how it dies, what its errors and its usage look like. What may enter is a test of that; its build
// tag is "engine", because the first build takes minutes. `make test-engine` prepares the engine with setup.sh and runs it.
package engine
