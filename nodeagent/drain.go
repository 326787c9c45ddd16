package nodeagent

import "iop/execution/drainlog"

// openRuns is how many runs use capacity of a provider.
func (a *Agent) openRuns() (n int64) {
	for _, p := range *a.providers.Load() {
		n += p.inUse.Load()
	}
	return n
}

// logDrain logs what the drain waits for until the returned function is called, which must be.
func (a *Agent) logDrain() func() {
	return drainlog.Start(a.log, a.cfg.DrainTimeout, a.openRuns, "note", "no new runs; open ones may finish; a second signal ends them at once")
}
