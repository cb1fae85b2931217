//go:build apiserver

package cli

import "testing"

// TestTogether runs scripts in which Services and pods of one cluster move as one set: see TestPods.
func TestTogether(t *testing.T) {
	played(t, "testdata/together", map[string]string{"node1": "192.0.2.1", "node2": "192.0.2.2"})
}
