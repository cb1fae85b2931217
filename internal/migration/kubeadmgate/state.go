package kubeadmgate

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/kubeadm"
)

// KubeadmState is what kubeadm has left in a cluster whose gates replumb is to pass itself.
type KubeadmState struct {
	// ControlPlanes are the nodes whose kubelet runs an API server from a file.
	ControlPlanes []string
	// Configuration is the ClusterConfiguration, and Err why there is none.
	Configuration string
	Err           error
}

// Load looks at what gates stand on. It is no error if the user may not look at kubeadm's
// configuration, or there is none.
func Load(ctx context.Context, from client.Reader) (*KubeadmState, error) {
	f := &KubeadmState{}
	config := &corev1.ConfigMap{}
	f.Err = from.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: controlplane.KubeadmConfig}, config)
	if f.Err != nil && !apierrors.IsNotFound(f.Err) && !apierrors.IsForbidden(f.Err) {
		return nil, fmt.Errorf("configmap kube-system/%s: %w", controlplane.KubeadmConfig, f.Err)
	}
	f.Configuration = config.Data["ClusterConfiguration"]
	var err error
	f.ControlPlanes, err = controlPlanes(ctx, from)
	return f, err
}

// NotMade are findings of clusters that kubeadm did not make, or whose machines are made anew.
func (f *KubeadmState) NotMade(o inventory.Origin) []findings.Result {
	switch {
	case o.Distribution != inventory.Kubeadm && f.Err != nil:
		return []findings.Result{findings.Failed("", "the cluster is not seen to be made by kubeadm: %v", f.Err)}
	case o.Distribution != inventory.Kubeadm:
		return []findings.Result{findings.Failed("", "the cluster is %s", o.Distribution)}
	case o.ClusterAPI:
		return []findings.Result{findings.Failed("", "Cluster API makes the machines of the cluster")}
	case len(f.ControlPlanes) == 0:
		return []findings.Result{findings.Failed("", "no API server is seen that a kubelet runs from a file")}
	}
	return nil
}

// Unusual are findings of a configuration that is not as kubeadm writes it, or does not count for
// flags that are to be changed.
func (f *KubeadmState) Unusual(flags ...string) []findings.Result {
	if f.Err != nil {
		return nil // NotMade says so
	}
	c, err := kubeadm.ReadConfiguration(f.Configuration)
	if err == nil {
		err = c.Refuse(flags...)
	}
	if err != nil {
		return []findings.Result{findings.Failed("ConfigMap kube-system/"+controlplane.KubeadmConfig, "%v", err)}
	}
	return nil
}
