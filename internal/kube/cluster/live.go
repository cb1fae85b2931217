package cluster

// Live is what checks know beside a Snapshot: answers of the running cluster that depend on who
// asks and for what.
type Live struct {
	// Access is what was asked of the authorizer, with its answers.
	Access []Answer
	// Inspection is what References found; nil if it was not asked for.
	Inspection *Inspection
}
