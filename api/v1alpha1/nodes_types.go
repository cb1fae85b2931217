package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NodesSpec is the job of moving a cluster's nodes to another network. Machines are made and ended by whoever owns the
// infrastructure, through actions or by hand; replumb does what happens in Kubernetes and etcd, and waits for the rest.
type NodesSpec struct {
	// Old are the nodes that leave.
	Old NodeSet `json:"old"`

	// New are the nodes that take over from them.
	New NodeSet `json:"new"`

	// Join is how new nodes come.
	// +optional
	Join JoinSpec `json:"join,omitempty"`

	// Canary tries the new nodes out before pods move there.
	// +optional
	Canary PodCanarySpec `json:"canary,omitempty"`

	// Ingress is how Services that only nodes with a pod of theirs answer for are kept reachable.
	// +optional
	Ingress IngressSpec `json:"ingress,omitempty"`

	// Drain is how old nodes are emptied.
	// +optional
	Drain NodeDrainSpec `json:"drain,omitempty"`

	// Terminate is how empty nodes end.
	// +optional
	Terminate TerminateSpec `json:"terminate,omitempty"`

	// Records are names in DNS that lead to load balancers of the old network, and are to lead to those of the new one before old
	// nodes are emptied. Those of the API belong to controlPlane.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Records []RecordSpec `json:"records,omitempty"`

	// ControlPlane moves the control plane as well, one node at a time, after the workers. Without it, it stays.
	// +optional
	ControlPlane *ControlPlaneSpec `json:"controlPlane,omitempty"`

	// GateWait is how long a run waits for what only the operator can do before it ends, to be run again. Default: 1h.
	// +optional
	GateWait *metav1.Duration `json:"gateWait,omitempty"`
}

// NodeSet says which nodes are meant: those that the selector and the provider IDs choose, of which both have to hold if both
// are there, or else those with an address in one of the ranges. A node that is chosen by selector or provider ID and has no
// address in the ranges is a mistake, and is told.
//
// +kubebuilder:validation:XValidation:rule="has(self.selector) || has(self.providerIDs) || has(self.cidrs)",message="set selector, providerIDs or cidrs"
type NodeSet struct {
	// Selector chooses by labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// ProviderIDs choose by spec.providerID.
	// +optional
	// +kubebuilder:validation:MaxItems=5000
	ProviderIDs []string `json:"providerIDs,omitempty"`

	// CIDRs are the ranges of the network that the nodes' internal addresses are in.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	CIDRs []string `json:"cidrs,omitempty"`
}

// JoinSpec is how new nodes come.
type JoinSpec struct {
	// Count is how many new nodes have to be ready before anything moves. Default: as many as leave.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Count int `json:"count,omitempty"`

	// Provision makes them, such as by terraform apply. Without it the run waits until they are there.
	// +optional
	Provision *Action `json:"provision,omitempty"`

	// Room Required refuses to go on unless everything that leaves has a place on the new nodes. With Partial old nodes are emptied
	// into as much as there is, for those whose new nodes come as the old ones end; until a node's turn comes, pods are only
	// kept off it where there is a choice. Default: Required.
	// +optional
	Room RoomPolicy `json:"room,omitempty"`
}

// RoomPolicy says how much room there has to be.
//
// +kubebuilder:validation:Enum=Required;Partial
type RoomPolicy string

// The policies for room.
const (
	RoomRequired RoomPolicy = "Required"
	RoomPartial  RoomPolicy = "Partial"
)

// IngressSpec is how Services with externalTrafficPolicy Local are kept reachable while their pods change nodes. Load
// balancers in the new network find nobody there as long as all pods are in the old one.
type IngressSpec struct {
	// Mode Switch makes them Cluster for as long as their pods move, so that nodes of both networks answer; Leave leaves
	// them alone. Default: Switch.
	// +optional
	Mode IngressMode `json:"mode,omitempty"`

	// Services, as namespace/name. Default: every one with externalTrafficPolicy Local that has pods on old nodes.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	Services []string `json:"services,omitempty"`

	// Settle is how long load balancers are given to notice: longer than what their health checks take, and than what a cloud's
	// controller does to follow. Default: 30s.
	// +optional
	Settle *metav1.Duration `json:"settle,omitempty"`

	// Targets are load balancers, as host:port over TCP, that must answer where replumb runs before the run goes on.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Targets []string `json:"targets,omitempty"`
}

// IngressMode says whether Services are switched.
//
// +kubebuilder:validation:Enum=Switch;Leave
type IngressMode string

// The modes of ingress.
const (
	IngressSwitch IngressMode = "Switch"
	IngressLeave  IngressMode = "Leave"
)

// NodeDrainSpec is how old nodes are emptied.
type NodeDrainSpec struct {
	// Parallel is how many nodes are emptied at once, as a number or as a percentage of all that leave. Default: 1.
	// +optional
	// +kubebuilder:validation:XIntOrString
	Parallel *intstr.IntOrString `json:"parallel,omitempty"`

	// Timeout is how long a node may stand still with pods left before the run stops. Default: 10m.
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// JobWait is how long the pods of Jobs are waited for when all others have left. Default: 1h.
	// +optional
	JobWait *metav1.Duration `json:"jobWait,omitempty"`

	// BarePods says what becomes of pods that nothing replaces, and of those of Jobs. Report waits for their end; Evict ends
	// them. Default: Report.
	// +optional
	BarePods BarePodsPolicy `json:"barePods,omitempty"`

	// Force names pods, as namespace/name, that are deleted whatever a PodDisruptionBudget or their owner says.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	Force []string `json:"force,omitempty"`

	// First names Deployments and StatefulSets, as namespace/name, whose nodes are emptied first. Default: those behind the
	// Services of ingress.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	First []string `json:"first,omitempty"`
}

// TerminateSpec is how empty nodes end.
type TerminateSpec struct {
	// When Each ends a node's machine as soon as it is empty. AtFinish keeps all of them until finish, so that the migration
	// can be taken back until then. Default: Each.
	// +optional
	When TerminateTime `json:"when,omitempty"`

	// Action ends a machine. Without it the run waits until the Node is gone, or no longer ready.
	// +optional
	Action *Action `json:"action,omitempty"`
}

// TerminateTime is when machines end.
//
// +kubebuilder:validation:Enum=Each;AtFinish
type TerminateTime string

// The times at which machines end.
const (
	TerminateEach     TerminateTime = "Each"
	TerminateAtFinish TerminateTime = "AtFinish"
)

// ControlPlaneSpec is how a control plane with an etcd member on each of its nodes moves, one node at a time. old.cidrs and
// new.cidrs say which members are meant.
type ControlPlaneSpec struct {
	// Mode AddFirst has another control plane join for each that leaves, and gives its etcd a vote when it has caught up, before
	// the old one goes. With Replace a control plane is stopped and comes back in the new network with the same name and data:
	// etcd has one member less meanwhile, and no loss of another is survived. Default: AddFirst.
	// +optional
	Mode ControlPlaneMode `json:"mode,omitempty"`

	// Etcd is how its members are reached from where replumb runs.
	Etcd EtcdSpec `json:"etcd"`

	// Provision makes a control plane in the new network; with mode Replace the one that was stopped, with its data. It may answer with the name and peer URL that its etcd is to have, as
	// {"name": ..., "peerURL": ...}, and replumb makes it a member; or add it by itself, as kubeadm join does. Without it
	// the run waits until there is one more member.
	// +optional
	Provision *Action `json:"provision,omitempty"`

	// Retire ends the API server of a control plane that leaves, in good order, before its etcd goes. Without it the run waits
	// until it is no endpoint of the Service kubernetes any more.
	// +optional
	Retire *Action `json:"retire,omitempty"`

	// Terminate ends the machine of a control plane whose etcd is no member any more. Without it the run waits until its Node is
	// gone and nothing answers there.
	// +optional
	Terminate *Action `json:"terminate,omitempty"`

	// Records are names in DNS that clients of the API use. They change once the first new API server serves.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	Records []RecordSpec `json:"records,omitempty"`

	// Settle is how long load balancers are given to notice an API server that has come. Default: 30s.
	// +optional
	Settle *metav1.Duration `json:"settle,omitempty"`
}

// ControlPlaneMode is how a control plane moves.
//
// +kubebuilder:validation:Enum=AddFirst;Replace
type ControlPlaneMode string

// The modes of control planes.
const (
	ControlPlaneAddFirst ControlPlaneMode = "AddFirst"
	ControlPlaneReplace  ControlPlaneMode = "Replace"
)

// EtcdSpec is how the members of an etcd are reached.
type EtcdSpec struct {
	// Endpoints are client URLs. One that answers is enough: the others are learned from it.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Endpoints []string `json:"endpoints"`

	// CAFile, CertFile and KeyFile are of a client of etcd, on the machine where replumb runs; with kubeadm etcd/ca.crt and
	// apiserver-etcd-client.crt and .key in /etc/kubernetes/pki.
	CAFile   string `json:"caFile"`
	CertFile string `json:"certFile"`
	KeyFile  string `json:"keyFile"`

	// SnapshotFile is where a snapshot is saved before the first change. Default: NAME.etcd.db, with the name of the Migration.
	// +optional
	SnapshotFile string `json:"snapshotFile,omitempty"`
}

// NodeStatus is what a migration remembers of a node that leaves: its Node does not outlive it.
type NodeStatus struct {
	// Name of the Node, or of the etcd member where there is no Node.
	Name string `json:"name"`
	// Role is worker or control-plane.
	Role NodeRole `json:"role"`
	// Addresses it had.
	// +optional
	Addresses []string `json:"addresses,omitempty"`
	// ProviderID it had.
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// Successor is the etcd member that joins in the stead of a control plane.
	// +optional
	Successor *MemberStatus `json:"successor,omitempty"`
	// Ended says that its end has been asked for: from then on it cannot come back.
	// +optional
	Ended bool `json:"ended,omitempty"`
	// Gone says that its machine has ended, of a control plane: it may have had no Node to tell by.
	// +optional
	Gone bool `json:"gone,omitempty"`
}

// NodeRole is what a node is for.
//
// +kubebuilder:validation:Enum=worker;control-plane
type NodeRole string

// The roles.
const (
	RoleWorker       NodeRole = "worker"
	RoleControlPlane NodeRole = "control-plane"
)

// MemberStatus is a member of etcd.
type MemberStatus struct {
	Name    string `json:"name"`
	PeerURL string `json:"peerURL"`
}
