package podcidr

import (
	"testing"

	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/network/ranges/inventory"
)

// TestViewersReadRanges: replumb ranges needs nothing that is not in the role to view of who moves pods.
func TestViewersReadRanges(t *testing.T) {
	granted := map[cluster.Right]bool{}
	for _, r := range Roles().Of(cluster.View) {
		for _, right := range r.Rights() {
			granted[right] = true
		}
	}
	for _, right := range inventory.Rights() {
		if !granted[right] {
			t.Errorf("no role to view has: %s", right)
		}
	}
}
