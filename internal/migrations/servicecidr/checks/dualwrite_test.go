package checks

import (
	"testing"

	"k8s.io/apimachinery/pkg/version"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/inventory"
)

func TestDualWrite(t *testing.T) {
	for name, tt := range map[string]struct {
		seen    apiserver.DualWrite
		vouched bool
		want    findings.Outcome
	}{
		"no range goes":       {want: findings.Skipped},
		"off":                 {seen: apiserver.DualWriteOff, want: findings.Pass},
		"on":                  {seen: apiserver.DualWriteOn, want: findings.Fail},
		"seen to be on":       {seen: apiserver.DualWriteOn, vouched: true, want: findings.Fail},
		"not seen":            {seen: apiserver.DualWriteUnknown, want: findings.Unknown},
		"not seen, and known": {seen: apiserver.DualWriteUnknown, vouched: true, want: findings.Pass},
	} {
		t.Run(name, func(t *testing.T) {
			in := Input{
				Snapshot:  &inventory.Snapshot{Version: &version.Info{Major: "1", Minor: "33", GitVersion: "v1.33.13"}},
				DualWrite: tt.seen, Vouched: tt.vouched,
			}
			if found := findings.Run(dualWriteChecks(), in); len(found) != 1 || found[0].Outcome != tt.want {
				t.Errorf("%v, want %s", found, tt.want)
			}
		})
	}
}
