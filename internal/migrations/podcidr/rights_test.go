package podcidr

import (
	"testing"

	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/network/ranges/used"
)

// TestViewersReadRanges: replumb ranges needs nothing that is not in the role to view of who moves
// pods.
func TestViewersReadRanges(t *testing.T) {
	granted := map[access.Right]bool{}
	for _, r := range Roles().Of(access.View) {
		for _, right := range r.Rights() {
			granted[right] = true
		}
	}
	for _, right := range used.Rights() {
		if !granted[right] {
			t.Errorf("no role to view has: %s", right)
		}
	}
}
