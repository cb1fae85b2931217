package cluster

import "github.com/replumb/replumb/api/v1alpha1"

// Live is what checks know beside a Snapshot: answers of the running cluster that depend on who asks and for what.
type Live struct {
	// Access is what was asked of the authorizer, with its answers.
	Access []AccessAnswer
	// Admitted says of each bridge form that was tried why it was refused; nil means it was admitted.
	Admitted map[v1alpha1.BridgeForm]error
	// Untried is why no bridge form was tried; empty if they were, or none had to be.
	Untried string
	// Inspection is what References found; nil if it was not asked for.
	Inspection *Inspection
}
