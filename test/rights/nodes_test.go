package rights

import (
	"maps"
	"testing"

	"github.com/replumb/replumb/internal/migrations/nodes"
)

const nodeMove = `apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: nodes}
spec:
  image: replumb
  nodes:
    old: {cidrs: [192.0.2.0/24]}
    new: {cidrs: [198.51.100.0/24]}
    drain: {barePods: Evict, force: [shop/stubborn]}
    ingress: {settle: 0s}
    terminate: {when: AtFinish, action: {exec: {command: ["true"]}}}
  proof: {agents: Enabled}
`

// carried is what old nodes carry beside workloads: what answers on them from outside, a pod that is forced, one of a Job, and one on each
// node that stays there with its volume.
const carried = `apiVersion: v1
kind: Service
metadata: {name: edge, namespace: shop}
spec:
  type: LoadBalancer
  loadBalancerClass: example.com/none
  externalTrafficPolicy: Local
  selector: {app: web}
  ports: [{port: 80}]
---
apiVersion: v1
kind: Pod
metadata: {name: stubborn, namespace: shop, labels: {app: stubborn}}
spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: c}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: batch, namespace: shop}
spec:
  template:
    metadata: {labels: {app: batch}}
    spec: {restartPolicy: OnFailure, terminationGracePeriodSeconds: 1, containers: [{name: c, image: batch}]}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: logs}
spec:
  storageClassName: ""
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  nfs: {server: 203.0.113.9, path: /logs}
  claimRef: {namespace: shop, name: logs}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: logs, namespace: shop, annotations: {pv.kubernetes.io/bind-completed: "yes"}}
spec:
  storageClassName: ""
  volumeName: logs
  accessModes: [ReadWriteMany]
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: Service
metadata: {name: keeper, namespace: shop}
spec: {selector: {app: keeper}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: keeper, namespace: shop}
spec:
  selector: {matchLabels: {app: keeper}}
  template:
    metadata: {labels: {app: keeper}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: c, image: keeper}]
      volumes: [{name: logs, persistentVolumeClaim: {claimName: logs}}]
`

// TestNodes: the roles are enough for whole migrations of workers, and all of them is needed.
func TestNodes(t *testing.T) {
	s := begin(t, "nodes", nodeMove)
	s.manifests(carried)
	s.workloads("web")
	for _, app := range []string{"stubborn", "batch", "keeper"} {
		s.running(app)
	}
	s.node("new1", "198.51.100.1")
	s.node("new2", "198.51.100.2")
	s.expect(3, viewer, []string{"check", "-f", s.file},
		"missing permission: patch,delete nodes (role replumb-nodes-operate)",
		"missing permission: create pods/eviction (role")
	s.moves("nodes")
	s.movesForGood("nodes")
	s.audited(nodes.Roles(), unusedByNodes())
}

// unusedByNodes are the rights that no request takes here, with what would.
func unusedByNodes() map[string]string {
	all := map[string]string{
		"get validatingadmissionpolicybindings.admissionregistration.k8s.io replumb-freeze-deploys": lifted,
		"list endpointslices.discovery.k8s.io in default":                                           "a control plane that moves",
		"list networkpolicies.crd.projectcalico.org":                                                "clusters that have policies of Calico",
		"list globalnetworkpolicies.crd.projectcalico.org":                                          "clusters that have policies of Calico",
	}
	all["patch services in replumb-system"] = "the Service of agents is there already"
	maps.Copy(all, unusedAround())
	maps.Copy(all, unusedAgents())
	return all
}
