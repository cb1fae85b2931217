package hostile

import (
	"testing"
)

// TestPeace is the scene without an attack: without it, a failing command would prove nothing.
func TestPeace(t *testing.T) {
	s := begin(t)
	s.apply(0)
	for _, key := range [][2]string{{tenantSpace, "mine"}, {otherSpace, "cart"}} {
		if ip := s.service(key[0], key[1]).Spec.ClusterIP; ip[:7] != "172.24." {
			t.Errorf("service %s/%s is at %s", key[0], key[1], ip)
		}
	}
	s.expect(s.replumb("rollback", migrationName, "--yes"), 0)
	if ip := s.service(otherSpace, "cart").Spec.ClusterIP; ip != "172.31.3.7" {
		t.Errorf("service cart is at %s", ip)
	}
}
