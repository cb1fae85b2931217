package rights

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/migrations/cni"
)

const networkMove = `apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: networks}
spec:
  image: replumb
  proof: {agents: Disabled}
  cni: {to: calico, manifests: [calico.yaml], vouch: {kubeProxy: true}}
`

// wayBack is another migration, of which users only look what it would do.
const wayBack = `apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: back}
spec:
  image: replumb
  proof: {agents: Disabled}
  cni: {to: flannel, manifests: [flannel.yaml], vouch: {kubeProxy: true}}
`

// flannel is the network before, but for its agent. What its roles grant, the operator has: no one gives roles more rights than they have.
const flannel = `apiVersion: v1
kind: ServiceAccount
metadata: {name: flannel, namespace: kube-flannel}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: flannel}
rules: [{apiGroups: [""], resources: [nodes], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: flannel}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: flannel}
subjects: [{kind: ServiceAccount, namespace: kube-flannel, name: flannel}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kube-flannel-cfg, namespace: kube-flannel}
data: {net-conf.json: '{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}'}
---
`

// calicoNode is the new network, which writes its configuration to each node.
const calicoNode = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: calico-node, namespace: kube-system, labels: {k8s-app: calico-node}}
spec:
  selector: {matchLabels: {k8s-app: calico-node}}
  template:
    metadata: {labels: {k8s-app: calico-node}}
    spec:
      hostNetwork: true
      tolerations: [{operator: Exists}]
      initContainers: [{name: install-cni, image: calico, env: [{name: CNI_CONF_NAME, value: 10-calico.conflist}]}]
      containers: [{name: calico-node, image: calico}]
---
`

// bothPools are pools that both networks give addresses of.
const bothPools = `apiVersion: crd.projectcalico.org/v1
kind: IPPool
metadata: {name: default}
spec: {cidr: 10.244.0.0/24, blockSize: 28, vxlanMode: CrossSubnet, natOutgoing: true}
---
apiVersion: crd.projectcalico.org/v1
kind: IPPool
metadata: {name: fresh}
spec: {cidr: 10.244.1.0/24, blockSize: 28, vxlanMode: CrossSubnet, natOutgoing: true}
---
`

// parts is an object of every kind that the roles know in manifests, and a Secret.
const parts = `apiVersion: v1
kind: Namespace
metadata: {name: NAME}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: NAME, namespace: kube-system}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: NAME, namespace: kube-system}
data: {a: b}
---
apiVersion: v1
kind: Secret
metadata: {name: NAME, namespace: kube-system}
stringData: {a: b}
---
apiVersion: v1
kind: Service
metadata: {name: NAME, namespace: kube-system}
spec: {clusterIP: None, selector: {app: NAME}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, namespace: kube-system}
spec:
  replicas: 0
  selector: {matchLabels: {app: NAME}}
  template: {metadata: {labels: {app: NAME}}, spec: {containers: [{name: c, image: c}]}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: NAME, namespace: kube-system}
spec:
  selector: {matchLabels: {app: NAME}}
  template: {metadata: {labels: {app: NAME}}, spec: {nodeSelector: {no: node}, containers: [{name: c, image: c}]}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: NAME, namespace: kube-system}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: NAME}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: NAME}
rules: [{apiGroups: [""], resources: [nodes, pods], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: NAME}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: NAME}
subjects: [{kind: ServiceAccount, namespace: kube-system, name: NAME}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: NAME, namespace: kube-system}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: NAME, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: NAME}
subjects: [{kind: ServiceAccount, namespace: kube-system, name: NAME}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: NAMEs.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {kind: NAME, plural: NAMEs, singular: NAME, listKind: NAMEList}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
---
`

// beyond is what the manifests take beyond the roles, which know no Secrets in them.
const beyond = `apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: beyond, namespace: kube-system}
rules: [{apiGroups: [""], resources: [secrets], verbs: [get, create, update, patch, delete]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: beyond, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: beyond}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: operator}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: beyond-view, namespace: kube-system}
rules: [{apiGroups: [""], resources: [secrets], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: beyond-view, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: beyond-view}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: viewer}]
---
apiVersion: v1
kind: Pod
metadata: {name: tool, namespace: shop, labels: {app: tool}}
spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: c}]}
`

// TestCNI: the roles are enough for whole switches of the network in every mode, and all of them is needed.
func TestCNI(t *testing.T) {
	since := shared.size(t)
	t.Run("Drained", switchDrained)
	t.Run("InPlace", switchInPlace)
	t.Run("KubeProxy", replaceProxy)
	shared.audited(t, since, cni.Roles(), unusedByNetworks())
}

// named are parts that have a name.
func named(name string) string { return strings.ReplaceAll(parts, "NAME", name) }

// switchDrained: of every kind the manifests have an object that is new, and one that was there before, which a way back restores.
func switchDrained(t *testing.T) {
	s := begin(t, "networks", networkMove)
	s.beside("calico.yaml", calicoNode+bothPools+named("fresh")+named("kept"))
	was := flannel + flannelAgent("kube-flannel")
	s.beside("flannel.yaml", was)
	back := s.beside("back.yaml", wayBack)
	s.Namespace(t, "kube-flannel")
	s.manifests(named("kept") + was + "---\n" + beyond)
	s.workloads("web")
	s.running("tool")
	s.expect(
		3,
		viewer,
		[]string{"check", "-f", s.file, "-o", "json"},
		"missing permission: create,update,patch,delete clusterroles.rbac.authorization.k8s.io (role replumb-networks-operate)",
		"missing permission: list,create,delete secrets in replumb-system (role",
	)
	s.moves("networks")
	s.movesForGood("networks")
	s.expect(3, viewer, []string{"check", "-f", back}, "RP5001")
}

// unusedByNetworks are the rights that no request takes here, with what would.
func unusedByNetworks() map[string]string {
	all := map[string]string{
		"deletecollection services in replumb-system": "a namespace that replumb has made itself, which it sweeps before it goes",
		"patch services in replumb-system":            "the Service that agents call moves, where Services do",
	}
	maps.Copy(all, unusedAround())
	maps.Copy(all, unusedAgents())
	return all
}

// beside writes a file beside that of the Migration, and returns its path.
func (s *scene) beside(name, body string) string {
	s.Helper()
	file := filepath.Join(filepath.Dir(s.file), name)
	s.must(os.WriteFile(file, []byte(body), 0o600))
	return file
}
