package kubeadmgate

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/migration"
)

// Role is what passing gates takes beyond the migration itself.
func Role(name, file string) access.Role {
	return access.Role{
		Name: name, File: file, Purpose: access.KubeadmGates,
		Rules: []access.Rule{
			migration.PrivilegeRule(),
			{
				Why: "Pods that change files of one node, and whether what runs there is ready again.",
				Rights: slices.Concat(
					access.In(v1alpha1.SystemNamespace, access.Grant("", "pods", "", "create delete")...),
					access.Grant("", "pods", "", "list"),
					access.Grant("", "nodes", "", "get"),
				),
			},
			{
				Why: "What kubeadm makes joining nodes of, and upgrades control planes by.",
				Rights: access.In(metav1.NamespaceSystem,
					access.Named(access.Grant("", "configmaps", "", "get update"), controlplane.KubeadmConfig, controlplane.KubeletConfig)...),
			},
		},
		Danger: []string{
			"Its holder is root on every node, control planes among them: it makes privileged pods with the files of their node. On a control plane",
			"these are the keys of the whole cluster. Bind it for as long as the gates last.",
		},
	}
}
