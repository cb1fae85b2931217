package rights

import (
	"os"
	"strings"
	"testing"
)

const switchMove = `apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: in-place}
spec:
  image: replumb
  cni:
    to: calico
    mode: InPlace
    again: 0
    manifests: [calico.yaml]
    inPlace: {barePods: Evict}
    vouch: {kubeProxy: true}
  batch: {settle: 0s}
  proof: {agents: Enabled}
`

// ownPool is one that the new network alone gives addresses of.
const ownPool = `apiVersion: crd.projectcalico.org/v1
kind: IPPool
metadata: {name: fresh}
spec: {cidr: 10.245.0.0/24, blockSize: 28, vxlanMode: CrossSubnet, natOutgoing: true}
---
`

// budgeted is what says how many pods there are to be, and a Job whose pod is evicted.
const budgeted = `---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: bare, namespace: shop}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: bare}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: shop}
spec: {minReplicas: 1, maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: batch, namespace: shop}
spec:
  template:
    metadata: {labels: {app: batch}}
    spec: {restartPolicy: OnFailure, terminationGracePeriodSeconds: 1, containers: [{name: c, image: batch}]}
`

// switchInPlace switches nodes one after the other while agents watch, and recreates all pods once more.
func switchInPlace(t *testing.T) {
	s := empty(t, shared)
	beginWithTwo(s, switchMove)
	s.beside("calico.yaml", calicoNode+ownPool+named("fresh")+named("kept"))
	s.Namespace(t, "kube-flannel")
	s.manifests(named("kept") + flannel + flannelAgent("kube-flannel") + "---\n" + beyond + budgeted)
	s.workloads("web")
	s.running("batch")
	s.expect(
		3,
		viewer,
		[]string{"check", "-f", s.file, "-o", "json"},
		"missing permission: create pods/eviction (role replumb-networks-in-place)",
		"missing permission: create,patch,delete daemonsets.apps in replumb-system (role replumb-networks-agents)",
	)
	s.moves("in-place")
	s.expect(0, operator, []string{"rollback", "in-place", "--yes"})
	s.expect(0, operator, []string{"apply", "-f", s.file})
	s.must(os.WriteFile(s.file, []byte(strings.Replace(switchMove, "again: 0", "again: 1", 1)), 0o600))
	s.expect(0, operator, []string{"apply", "-f", s.file})
	s.expect(0, operator, []string{"finish", "in-place", "--yes"})
	s.seen("in-place")
}

const proxyMove = `apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: proxy}
spec:
  image: replumb
  cni:
    to: cilium
    mode: InPlace
    kubeProxy: Replace
    manifests: [cilium.yaml]
  batch: {settle: 0s}
  proof: {agents: Disabled}
`

const cilium = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: cilium, namespace: kube-system, labels: {k8s-app: cilium}}
spec:
  selector: {matchLabels: {app: cilium}}
  template:
    metadata: {labels: {app: cilium, k8s-app: cilium}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers: [{name: cilium-agent, image: cilium, env: [{name: KUBERNETES_SERVICE_HOST, value: 192.0.2.9}]}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cilium-config, namespace: kube-system}
data:
  write-cni-conf-when-ready: /host/etc/cni/net.d/05-cilium.conflist
  cluster-pool-ipv4-cidr: 10.245.0.0/16
  tunnel-port: "8473"
  kube-proxy-replacement: "true"
  bpf-lb-sock-hostns-only: "true"
`

// nodeConfigs is the definition that Cilium's operator makes.
const nodeConfigs = `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ciliumnodeconfigs.cilium.io}
spec:
  group: cilium.io
  scope: Namespaced
  names: {kind: CiliumNodeConfig, plural: ciliumnodeconfigs, singular: ciliumnodeconfig, listKind: CiliumNodeConfigList}
  versions:
  - name: v2
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
`

const kubeProxy = `---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system}
spec:
  selector: {matchLabels: {app: kube-proxy}}
  template:
    metadata: {labels: {app: kube-proxy}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers: [{name: kube-proxy, image: proxy, command: [kube-proxy, --cluster-cidr=10.244.0.0/15]}]
`

// replaceProxy has Cilium take the place of kube-proxy as well.
func replaceProxy(t *testing.T) {
	s := empty(t, shared)
	beginWithTwo(s, proxyMove)
	s.beside("cilium.yaml", cilium)
	s.Namespace(t, "kube-flannel")
	s.manifests(flannel + flannelAgent("kube-flannel") + kubeProxy + nodeConfigs + ownPool)
	s.manifests(workload("Deployment", "web", ""))
	s.running("web")
	s.expect(3, viewer, []string{"check", "-f", s.file, "-o", "json"},
		"ciliumnodeconfigs.cilium.io in kube-system (role replumb-networks-kube-proxy)")
	s.moves("proxy")
	s.movesForGood("proxy")
}
