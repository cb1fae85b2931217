package probe

// Latency is the latencies of all successes, encoded as in Window; empty without any.
func (s Stats) Latency() string { return encodeLatency(s.latencies) }
