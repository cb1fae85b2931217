//go:build apiserver

package cli

import "testing"

// TestTogether runs scripts in which Services and pods of one cluster move as one set: see
// TestPods.
func TestTogether(t *testing.T) {
	played(t, "testdata/together", twoNodes())
}
