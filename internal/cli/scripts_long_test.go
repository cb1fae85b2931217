//go:build apiserver && long

package cli

import "testing"

// The tests with Long in their names run further scripts of their subjects, each in the way of the
// test without it.

func TestClusterLong(t *testing.T)  { inCluster(t, "testdata/cluster-long") }
func TestOperatorLong(t *testing.T) { inCluster(t, "testdata/operator-long") }
func TestFleetLong(t *testing.T)    { inFleet(t, "testdata/fleet-long") }
func TestPodsLong(t *testing.T)     { played(t, "testdata/pods-long", twoNodes()) }
func TestTogetherLong(t *testing.T) { played(t, "testdata/together-long", twoNodes()) }
func TestNodesLong(t *testing.T)    { played(t, "testdata/nodes-long", twoNetworks()) }

// TestNetworks runs scripts about the network of pods on a cluster whose nodes are played.
func TestNetworks(t *testing.T) { played(t, "testdata/cni", oneNode()) }
