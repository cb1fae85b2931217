package checks

import (
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/apiserver"
)

// DualWriteOff is the answer of users, the value of v1alpha1.AnnotationDualWrite.
const DualWriteOff = "Off"

// dualWriteChecks are about the bitmap that API servers up to 1.33 go on writing. An API server
// with another flag gives up on each write, and refuses Services that name an address in its range
// (AllocateService in k8s.io/kubernetes pkg/registry/core/service/ipallocator/cidrallocator.go,
// Restore in ../allocator/bitmap.go).
func dualWriteChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1730", Severity: findings.Blocking, Run: checkDualWrite,
			Claim: "DisableAllocatorDualWrite is on in every API server (Kubernetes 1.31 to 1.33)",
			Why: "up to Kubernetes 1.33 they also write addresses into the older bitmap, which stays that of the old " +
				"range. Once they have the new range, they refuse every Service that names its address in it: those " +
				"that still have to hop, and manifests that set clusterIP",
			Fix: "restart every API server with --feature-gates=DisableAllocatorDualWrite=true before (all of them have IPAddresses by then), or upgrade to " +
				"1.34; where their flags cannot be seen, say so by the annotation replumb.dev/dual-write: \"Off\" of the Migration, in its file or by kubectl annotate",
		},
	}
}

func checkDualWrite(in Input) []findings.Result {
	switch {
	case in.DualWrite == "":
		return findings.Skip("no API server is to get another range")
	case in.DualWrite == apiserver.DualWriteOff, in.Vouched && in.DualWrite == apiserver.DualWriteUnknown:
		return nil
	case in.DualWrite == apiserver.DualWriteUnknown:
		return []findings.Result{
			findings.NotKnown("", "the feature gates of the API servers, %s, cannot be seen", in.Snapshot.Version.GitVersion),
		}
	}
	return []findings.Result{
		findings.Failed("", "the API servers are %s, and DisableAllocatorDualWrite is off", in.Snapshot.Version.GitVersion),
	}
}
