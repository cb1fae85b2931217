package labcli

import "testing"

func TestFirstModes(t *testing.T) {
	for nodes, want := range map[int]string{0: "iptables", 1: "iptables", 2: "iptables,nftables", 5: "iptables,nftables"} {
		if got := firstModes("iptables,nftables", nodes); got != want {
			t.Errorf("for %d nodes: %s, want %s", nodes, got, want)
		}
	}
}
