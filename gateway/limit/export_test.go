package limit

// Entries returns how many keys the Limiter remembers.
func (l *Limiter) Entries() (n int) {
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.RLock()
		n += len(s.entries)
		s.mu.RUnlock()
	}
	return n
}
