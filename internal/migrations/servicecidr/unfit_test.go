package servicecidr

import (
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/version"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
)

func TestUnfit(t *testing.T) {
	snap := &cluster.Snapshot{Version: &version.Info{GitVersion: "v1.31.0"}}
	found := findings.Run(unfitChecks(), Input{Snapshot: snap})
	if codes := found.Codes(); len(found) != 2 || len(codes) != 1 || codes[0] != "RP1001" || found[0].Message != "the API server is v1.31.0 and has none" {
		t.Errorf("%+v", found)
	}
	snap.ServiceCIDRs = make([]networkingv1.ServiceCIDR, 1)
	if found := findings.Run(unfitChecks(), Input{Snapshot: snap}); len(found.Codes()) != 0 {
		t.Errorf("%+v", found)
	}
	snap.Ranges = cluster.RangesV1Beta1
	if found := findings.Run(unfitChecks(), Input{Snapshot: snap}); found[0].Message != "the API server is v1.31.0 and has those of v1beta1 alone" {
		t.Errorf("%+v", found)
	}
}
