package etcdrelay

import (
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
)

// Rights are those to make the pod, and to begin processes in it. Whether a WebSocket takes get or
// create depends on the version of Kubernetes.
func Rights() []access.Right {
	exec := slices.Concat(access.Grant("", "pods", "exec", "create get"), access.Grant("", "pods", "", "delete"))
	for i := range exec {
		exec[i].Name = Name
	}
	return access.In(v1alpha1.SystemNamespace, append(exec, access.Grant("", "pods", "", "create")...)...)
}
