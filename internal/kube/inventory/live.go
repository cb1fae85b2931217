package inventory

import "github.com/replumb/replumb/internal/kube/access"

// Live holds answers for checks that, unlike a Snapshot, depend on the user and the migration.
type Live struct {
	Access []access.Answer
	// Inspection is nil if there was none.
	Inspection *Scan
}
