package servicecidr

import (
	"fmt"

	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/serviceranges"
)

// UpgradedError says that the cluster has got ServiceCIDRs since addresses were reserved, so that
// these reservations can no longer be seen as such.
type UpgradedError struct {
	// Service stands for a reserved address, and More counts others.
	Service string
	More    int
}

func (e *UpgradedError) Error() string {
	others := ""
	if e.More > 0 {
		others = fmt.Sprintf(" and %d others", e.More)
	}
	return fmt.Sprintf(
		"service %s%s: keeps an address as on a cluster without ServiceCIDRs, and the API server has ServiceCIDRs now",
		e.Service,
		others,
	)
}

func (*UpgradedError) ExitCode() int { return fault.ExitBlocked }

func (*UpgradedError) Advice() string {
	return "the API servers were upgraded, or given MultiCIDRServiceAllocator, in the middle of the migration: " +
		"bring all of them back to what they were, run finish or rollback, and upgrade then"
}

func refuseUpgraded(snap *inventory.Snapshot) error {
	stranded := serviceranges.Stranded(snap.Ranges, snap.Services)
	if len(stranded) == 0 {
		return nil
	}
	return &UpgradedError{Service: stranded[0], More: len(stranded) - 1}
}
