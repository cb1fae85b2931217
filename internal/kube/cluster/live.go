package cluster

// Live holds answers for checks that, unlike a Snapshot, depend on the user and the migration.
type Live struct {
	Access []Answer
	// Inspection is nil if there was none.
	Inspection *Inspection
}
