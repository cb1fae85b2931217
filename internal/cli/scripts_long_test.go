//go:build apiserver && long

package cli

import "testing"

// Each runs the scripts of a folder that takes long, as the test of the same name without Long runs the first that its subject has.

func TestClusterLong(t *testing.T)  { inCluster(t, "testdata/cluster-long") }
func TestOperatorLong(t *testing.T) { inCluster(t, "testdata/operator-long") }
func TestFleetLong(t *testing.T)    { inFleet(t, "testdata/fleet-long") }
func TestPodsLong(t *testing.T)     { played(t, "testdata/pods-long", twoNodes()) }
func TestTogetherLong(t *testing.T) { played(t, "testdata/together-long", twoNodes()) }
func TestNodesLong(t *testing.T)    { played(t, "testdata/nodes-long", twoNetworks()) }
func TestNetworksLong(t *testing.T) { played(t, "testdata/cni-long", oneNode()) }
