package lab

import (
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/lab/machine"
)

// TestProxyPods: kube-proxy is in pods or a program of nodes, and not both, and its configuration names no single node.
func TestProxyPods(t *testing.T) {
	l := &Lab{Topology: Default()}
	l.Topology.Nodes, l.Topology.ProxyPods = []ProxyMode{NFTables, NFTables}, true
	if err := l.Topology.Validate(); err != nil {
		t.Fatal(err)
	}
	isProxy := func(p machine.Program) bool { return p.Name == proxyProgram }
	m := &Member{Name: "node1", Proxy: NFTables}
	if slices.ContainsFunc(nodePrograms(l.Topology, l.Binaries, m), isProxy) {
		t.Error("kube-proxy is a program of a node as well")
	}
	l.Topology.ProxyPods = false
	if !slices.ContainsFunc(nodePrograms(l.Topology, l.Binaries, m), isProxy) {
		t.Error("kube-proxy is no program of a node")
	}
	config := proxyConfig(l.Topology, "", NFTables)
	if config.HostnameOverride != "" || string(config.Mode) != "nftables" ||
		!strings.Contains(kubeProxyTemplate, "--hostname-override=$(NODE_NAME)") {
		t.Errorf("%+v", config)
	}
}
