package e2e

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
)

// TestCiliumServices moves Services on a cluster with Cilium beside kube-proxy, which RP1210 refuses unless they are annotated, there and back.
func TestCiliumServices(t *testing.T) {
	l := bringUp(t, withCilium("e2e-cilium-svc", lab.IPTables, lab.NFTables))
	s := shopUnderTraffic(t, l)(t)
	file := writeMigration(t, "beside-cilium", newRange, "", drain)

	const blocked = 3 // docs/exit-codes.md
	cmd := command(t, "replumb", "check", "-f", file, "--kubeconfig", l.Kubeconfig())
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != blocked || !strings.Contains(string(out), "RP1210") {
		t.Errorf("check ended with exit code %d:\n%s", cmd.ProcessState.ExitCode(), out)
	}
	for name := range shopServices(t, l) {
		patch := []byte(`{"metadata":{"annotations":{"replumb.dev/strategy":"hop"}}}`)
		if _, err := l.Client().CoreV1().Services(shopNamespace).Patch(
			t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{},
		); err != nil {
			t.Fatal(err)
		}
	}
	there := s.during(t, "the move beside Cilium", func() { shown(t, l, "apply", "-f", file) })
	there.requireNothingLost(t, traffic.All)
	requireAllIn(t, l, newRange)
	back := s.during(t, "the way back beside Cilium", func() { shown(t, l, "rollback", "beside-cilium", "--yes") })
	back.requireNothingLost(t, traffic.All)
	requireAllIn(t, l, oldRange)
	requireNoTrace(t, l)
}
