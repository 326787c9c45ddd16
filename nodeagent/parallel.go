package nodeagent

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
)

// numParallel is the variable that says how many requests an Ollama runs at once for each model. Ollama's API does not report
// its value (up to 0.32, its issue 17355), so the Node reads it from the process where it can.
const numParallel = "OLLAMA_NUM_PARALLEL"

// ollamaCapacity is how many runs the provider, an Ollama, takes at once, and how that is known. 0: it is not known.
func (p *provider) ollamaCapacity() (n int, how string) {
	port := p.localPort()
	if port == 0 {
		return 0, "it is not on this machine"
	}
	environ, err := listenerEnviron(port)
	if err != nil {
		return 0, err.Error()
	}
	if n = parallelOf(environ); n == 0 {
		return 1, "its process does not set " + numParallel
	}
	return n, numParallel + " of its process"
}

// localPort is the port of a provider that listens on this machine's loopback address, else 0.
func (p *provider) localPort() uint16 {
	host := p.base.Hostname()
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return 0
	}
	text := p.base.Port()
	if text == "" {
		text = map[string]string{"http": "80", "https": "443"}[p.base.Scheme]
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return uint16(port)
}

// parallelOf returns the value of numParallel among a process's variables, read as Ollama reads it; 0 if it is none that sets
// something.
func parallelOf(environ []byte) int {
	for variable := range bytes.SplitSeq(environ, []byte{0}) {
		if value, ok := bytes.CutPrefix(variable, []byte(numParallel+"=")); ok {
			n, err := strconv.ParseUint(strings.Trim(strings.TrimSpace(string(value)), `"'`), 10, 31)
			if err != nil {
				return 0
			}
			return int(min(n, maxCapacity))
		}
	}
	return 0
}

// hint says in the log how the capacity of an Ollama came about where the operator has not set it: too small a one leaves it
// idle, and too large a one has requests wait where nobody sees them. It speaks once for each reason.
func (b *prober) hint(id nature) {
	if id.engine != OllamaEngine || b.p.spec.Capacity > 0 || id.how == b.hinted {
		return
	}
	b.hinted = id.how
	log := b.log.With("provider", string(b.p.spec.ID), "capacity", max(id.capacity, 1), "reason", id.how)
	flag := "--provider " + string(b.p.spec.ID) + "=" + b.p.base.String() + ",capacity=N"
	switch {
	case id.capacity == 0:
		log.Info("Ollama's capacity is not known, so it gets one run at a time: if its "+numParallel+" is N, set it", slog.String("flag", flag))
	case id.capacity == 1:
		log.Info("Ollama runs one request at a time: for more, start it with " + numParallel + "=N")
	default:
		log.Info("Ollama's capacity is known")
	}
}
