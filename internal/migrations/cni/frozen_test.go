//go:build apiserver && long

package cni

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

func freezes(m *v1alpha1.Migration) {
	migrationtest.Freezes(m)
	// What replumb suspends, and what it deletes.
	m.Spec.DeploymentFreeze.Kinds = []string{"applications.argoproj.io", "rolebindings.rbac.authorization.k8s.io"}
}

// bound is an object of a kind that the freeze names itself. It comes with the new network, and
// goes with it.
const bound = `
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: calico-node, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: calico-node, namespace: kube-system}]
`

// frozen is a run that freezes deployments.
func frozen(t *testing.T) (*fixture, *migrationtest.FrozenRun) {
	t.Helper()
	f := setup(t, freezes)
	f.Must(os.WriteFile(filepath.Join(f.dir, "calico.yaml"), []byte(calicoObjects+bound), 0o600))
	t.Cleanup(func() {
		binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "calico-node"}}
		if err := client.IgnoreNotFound(server.Delete(context.Background(), binding)); err != nil {
			t.Error(err)
		}
	})
	lift, err := migration.Lift(server.Cluster)
	f.Must(err)
	r := &migrationtest.FrozenRun{
		Others: f.Others(server), Requests: f.requests, Lift: lift, Moves: "delete pods", MovesBack: "delete pods",
		Apply: func(until string) error {
			m := sample(f.dir)
			freezes(m)
			f.with(m)
			f.job.Until = until
			return f.forward()
		},
		Rollback: func() error { f.again(); return f.job.Rollback(f.Context(), f.runner) },
		Finish:   func() error { f.again(); return f.job.Finish(f.Context(), f.runner) },
	}
	f.deployment("web", 2)
	f.bare("tool")
	return f, r
}

// again is what a new process with the same command begins with: the Migration as the cluster has
// it.
func (f *fixture) again() {
	f.Helper()
	m, err := migration.Get(f.Context(), server, "m")
	f.Must(err)
	f.with(m)
}

// runs fails the test unless the network of a DaemonSet is there, and that of the other is not.
func (f *fixture) runs(there, gone [2]string) {
	f.Helper()
	if f.have("DaemonSet", there[0], there[1], apps) == nil || f.have("DaemonSet", gone[0], gone[1], apps) != nil {
		f.Errorf("%v is not there, or %v is", there, gone)
	}
	if len(f.pods("shop", "web")) != 2 || len(f.pods("shop", "tool")) != 1 {
		f.Error("pods are missing")
	}
}

// TestFrozenThereAndFinished: others deploy until apply has secured the cluster, and again when
// finish is through. The networks themselves, which are DaemonSets that others must not delete,
// change nonetheless.
func TestFrozenThereAndFinished(t *testing.T) {
	f, r := frozen(t)
	r.ThereAndFinished()
	f.runs([2]string{"kube-system", "calico-node"}, [2]string{"kube-flannel", "kube-flannel-ds"})
}

// TestFrozenThereAndBack: the same on the way back. The old network comes back as it was.
func TestFrozenThereAndBack(t *testing.T) {
	f, r := frozen(t)
	r.ThereAndBack()
	f.runs([2]string{"kube-flannel", "kube-flannel-ds"}, [2]string{"kube-system", "calico-node"})
	if f.have("RoleBinding", "kube-system", "calico-node", "rbac.authorization.k8s.io/v1") != nil {
		t.Error("what came with the new network is left")
	}
	if set := f.have("DaemonSet", "kube-flannel", "kube-flannel-ds", apps); set.GetLabels()[v1alpha1.LabelBreakGlass] != "" {
		t.Errorf("it is left out of freezes: %v", set.GetLabels())
	}
}

// TestNotFrozen is the control: a migration that is not asked to leaves others alone.
func TestNotFrozen(t *testing.T) {
	f := setup(t)
	others := f.Others(server)
	f.deployment("web", 2)
	f.Must(f.forward())
	others.Free()
	others.AsBefore()
}
