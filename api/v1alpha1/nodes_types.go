package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NodesSpec is the job of moving a cluster's nodes to another network. Machines are made and ended by those who own the
// infrastructure, through actions or by hand; replumb does what happens in Kubernetes and etcd, and waits for the rest.
//
// +kubebuilder:validation:XValidation:rule="has(self.controlPlane) == has(oldSelf.controlPlane)",message="cannot be added or removed once the migration is recorded; roll it back and give the new one another name",fieldPath=".controlPlane"
// +kubebuilder:validation:XValidation:rule="!has(self.old.cidrs) || !has(self.new.cidrs) || !self.old.cidrs.all(c, isCIDR(c)) || !self.new.cidrs.all(c, isCIDR(c)) || self.new.cidrs.all(a, self.old.cidrs.all(b, !(cidr(a).containsCIDR(cidr(b)) || cidr(b).containsCIDR(cidr(a)))))",message="overlaps a range in spec.nodes.old.cidrs; name ranges that have no address in common, or choose the nodes by selector or providerIDs",fieldPath=".new.cidrs"
// +kubebuilder:validation:XValidation:rule="!has(self.controlPlane) || (has(self.old.cidrs) && size(self.old.cidrs) > 0)",message="is empty; the control plane moves only with it",fieldPath=".old.cidrs"
// +kubebuilder:validation:XValidation:rule="!has(self.controlPlane) || (has(self.new.cidrs) && size(self.new.cidrs) > 0)",message="is empty; the control plane moves only with it",fieldPath=".new.cidrs"
// +kubebuilder:validation:XValidation:rule="has(self.records) == has(oldSelf.records) && (!has(self.records) || self.records.map(r, r.name + ' ' + r.type + ' ' + r.to.join(' ')) == oldSelf.records.map(r, r.name + ' ' + r.type + ' ' + r.to.join(' ')))",message="cannot lead other names, or elsewhere, once the migration is recorded; roll it back and give the new one another name",fieldPath=".records"
// +kubebuilder:validation:XValidation:rule="!has(self.records) || self.records.all(r, !has(r.then))",message="has a name with then, which only names of the API have; write it in spec.nodes.controlPlane.records, or leave then out",fieldPath=".records"
type NodesSpec struct {
	// old are the nodes that leave.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	Old NodeSet `json:"old"`

	// new are the nodes that take over from them.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	New NodeSet `json:"new"`

	// join is how new nodes come.
	// +optional
	// +kubebuilder:default={}
	Join JoinSpec `json:"join,omitempty"`

	// canary tries the new nodes out before pods move there.
	// +optional
	// +kubebuilder:default={}
	Canary PodCanarySpec `json:"canary,omitempty"`

	// ingress is how Services that only nodes with a pod of theirs answer for are kept reachable.
	// +optional
	// +kubebuilder:default={}
	Ingress IngressSpec `json:"ingress,omitempty"`

	// prepare is what is scaled up before any node is emptied.
	// +optional
	// +kubebuilder:default={}
	Prepare PrepareSpec `json:"prepare,omitempty"`

	// drain is how old nodes are emptied.
	// +optional
	// +kubebuilder:default={}
	Drain NodeDrainSpec `json:"drain,omitempty"`

	// terminate is how empty nodes end.
	// +optional
	// +kubebuilder:default={}
	Terminate TerminateSpec `json:"terminate,omitempty"`

	// records are names in DNS that lead to load balancers of the old network, and are to lead to those of the new one before old
	// nodes are emptied. Those of the API belong to controlPlane.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Records []RecordSpec `json:"records,omitempty"`

	// controlPlane moves the control plane as well, one node at a time, after the workers. Without it, it stays.
	// +optional
	ControlPlane *ControlPlaneSpec `json:"controlPlane,omitempty"`

	// gateWait is how long a run waits for what only the operator can do before it ends, to be run again. Default: 1h.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="is not positive; write a duration such as 60s"
	GateWait *metav1.Duration `json:"gateWait,omitempty"`
}

// NodeSet says which nodes are meant: those that the selector and the provider IDs choose, of which both have to hold if both
// are there, or else those with an address in one of the ranges. A node that is chosen by selector or provider ID and has no
// address in the ranges is a mistake, and is reported.
//
// +kubebuilder:validation:XValidation:rule="has(self.selector) || (has(self.providerIDs) && size(self.providerIDs) > 0) || (has(self.cidrs) && size(self.cidrs) > 0)",message="chooses no node; set selector, providerIDs or cidrs"
type NodeSet struct {
	// selector chooses by labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// providerIDs choose by spec.providerID.
	// +optional
	// +kubebuilder:validation:MaxItems=5000
	// +kubebuilder:validation:items:MaxLength=512
	ProviderIDs []string `json:"providerIDs,omitempty"`

	// cidrs are the ranges of the network that the nodes' internal addresses are in.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="is not a range in CIDR form; write a range such as 10.245.0.0/16"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || self == string(cidr(self).masked())",message="is not in canonical form; write the first address of the range and its length, such as 10.245.0.0/16 or fd00:24::/48"
	CIDRs []string `json:"cidrs,omitempty"`
}

// JoinSpec is how new nodes come.
type JoinSpec struct {
	// count is how many new nodes have to be ready before anything moves. Default: as many as leave.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Count int `json:"count,omitempty"`

	// provision makes them, such as by terraform apply. Without it the run waits until they are there.
	// +optional
	Provision *Action `json:"provision,omitempty"`

	// room Required refuses to go on unless everything that leaves has a place on the new nodes. With Partial old nodes are emptied
	// into as much as there is, for those whose new nodes come as the old ones end; until a node's turn comes, pods are only
	// kept off it where there is a choice. Default: Required.
	// +optional
	// +kubebuilder:default=Required
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
// balancers in the new network find no one there as long as all pods are in the old one.
//
// +kubebuilder:validation:XValidation:rule="has(self.services) == has(oldSelf.services) && (!has(self.services) || self.services == oldSelf.services)",message="cannot be changed once the migration is recorded; roll it back and give the new one another name",fieldPath=".services"
type IngressSpec struct {
	// mode Switch makes them Cluster for as long as their pods move, so that nodes of both networks answer; Leave leaves
	// them alone. Default: Switch.
	// +optional
	// +kubebuilder:default=Switch
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	Mode IngressMode `json:"mode,omitempty"`

	// services, as namespace/name. Default: every one with externalTrafficPolicy Local that has pods on old nodes.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=317
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[^/]+/[^/]+$')",message="is not namespace/name; write namespace/name, such as kube-system/coredns"
	Services []string `json:"services,omitempty"`

	// settle is how long load balancers are given to notice: longer than what their health checks take, and than what a cloud's
	// controller does to follow. Default: 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="is negative; write a duration such as 60s"
	Settle *metav1.Duration `json:"settle,omitempty"`

	// targets are load balancers, as host:port over TCP, that must answer where replumb runs before the run goes on.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=320
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([[][^]/ ]+[]]|[^]:/ []+):([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$')",message="is not host:port; write it such as 192.0.2.10:6443"
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
//
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode != 'Wait' || !has(self.force) || size(self.force) == 0",message="names pods, and mode Wait deletes none; leave it out, or set mode: Evict",fieldPath=".force"
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode != 'Wait' || !has(self.barePods) || self.barePods != 'Evict'",message="is Evict, and mode Wait evicts nothing; leave it out, or set mode: Evict",fieldPath=".barePods"
type NodeDrainSpec struct {
	// mode Evict evicts the pods of old nodes, node by node. Wait evicts nothing: old nodes take no new pods, and releases, or whatever
	// else replaces pods, empty them in their own time and order. Each is ended as soon as it is empty. A rollback evicts in both modes.
	// Default: Evict.
	// +optional
	// +kubebuilder:default=Evict
	Mode NodeDrainMode `json:"mode,omitempty"`

	// parallel is how many nodes are emptied at once, as a number or as a percentage of all that leave. Default: 1.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:default=1
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? int(self) >= 1 && int(self) <= 100 : string(self).matches('^([1-9][0-9]?|100)%$')",message="is neither a number from 1 to 100 nor 1% to 100%; use a number from 1 to 100, or 1% to 100%"
	Parallel *intstr.IntOrString `json:"parallel,omitempty"`

	// timeout is how long a node may stand still with pods left before the run stops. Default: 10m.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="is not positive; write a duration such as 60s"
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// jobWait is how long the pods of Jobs are waited for when all others have left. Default: 1h.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="is not positive; write a duration such as 60s"
	JobWait *metav1.Duration `json:"jobWait,omitempty"`

	// barePods says what becomes of pods that nothing replaces, and of those of Jobs. Report waits for their end; Evict ends
	// them. Default: Report.
	// +optional
	// +kubebuilder:default=Report
	BarePods BarePodsPolicy `json:"barePods,omitempty"`

	// force names pods, as namespace/name, that are deleted whatever a PodDisruptionBudget or their owner says.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=317
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[^/]+/[^/]+$')",message="is not namespace/name; write namespace/name, such as kube-system/coredns"
	Force []string `json:"force,omitempty"`

	// first names Deployments and StatefulSets, as namespace/name, whose nodes are emptied first. Default: those behind the
	// Services of ingress.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=317
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[^/]+/[^/]+$')",message="is not namespace/name; write namespace/name, such as kube-system/coredns"
	First []string `json:"first,omitempty"`
}

// NodeDrainMode says who empties old nodes.
//
// +kubebuilder:validation:Enum=Evict;Wait
type NodeDrainMode string

// The modes of draining nodes.
const (
	DrainEvict NodeDrainMode = "Evict"
	DrainWait  NodeDrainMode = "Wait"
)

// TerminateSpec is how empty nodes end.
type TerminateSpec struct {
	// when Each ends a node's machine as soon as it is empty. AtFinish keeps all of them until finish, so that the migration
	// can be taken back until then. Default: Each.
	// +optional
	// +kubebuilder:default=Each
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	When TerminateTime `json:"when,omitempty"`

	// action ends a machine. Without it the run waits until the Node is gone, or no longer ready.
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
// new.cidrs say which members are meant. With etcd.external only the API servers move.
//
// +kubebuilder:validation:XValidation:rule="!has(self.etcd.external) || !self.etcd.external || (self.mode != 'Replace' && !has(self.etcdEvents))",message="is true, and mode is Replace or there is etcdEvents; both are for an etcd that moves",fieldPath=".etcd.external"
// +kubebuilder:validation:XValidation:rule="!has(self.etcdEvents) || !has(self.etcdEvents.external) || !self.etcdEvents.external",message="is true; leave etcdEvents out: what is elsewhere stays",fieldPath=".etcdEvents.external"
// +kubebuilder:validation:XValidation:rule="self.mode != 'Replace' || has(self.provision)",message="is empty, and mode is Replace; name an action that answers where the control plane comes back: the others have to know before it does",fieldPath=".provision"
// +kubebuilder:validation:XValidation:rule="has(self.records) == has(oldSelf.records) && (!has(self.records) || self.records.map(r, r.name + ' ' + r.type + ' ' + r.to.join(' ')) == oldSelf.records.map(r, r.name + ' ' + r.type + ' ' + r.to.join(' ')))",message="cannot lead other names, or elsewhere, once the migration is recorded; roll it back and give the new one another name",fieldPath=".records"
type ControlPlaneSpec struct {
	// mode AddFirst has another control plane join for each that leaves, and gives its etcd a vote when it has caught up, before
	// the old one goes. With Replace a control plane is stopped and comes back in the new network with the same name and data:
	// etcd has one member less meanwhile, and no loss of another is survived. Default: AddFirst.
	// +optional
	// +kubebuilder:default=AddFirst
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	Mode ControlPlaneMode `json:"mode,omitempty"`

	// etcd is how its members are reached from where replumb runs.
	Etcd EtcdSpec `json:"etcd"`

	// etcdEvents is how the members of a second etcd are reached, in which API servers keep events (--etcd-servers-overrides with
	// /events), as kOps has them beside those of the first one. They move with their machines, by the same rules.
	// +optional
	EtcdEvents *EtcdSpec `json:"etcdEvents,omitempty"`

	// provision makes a control plane in the new network; with mode Replace the one that was stopped, with its data. It may answer with the name and peer URL that its etcd is to have, as
	// {"name": ..., "peerURL": ...}, and replumb makes it a member; or add it by itself, as kubeadm join does. That of a second etcd
	// is answered under events, as another one. Without it the run waits until there is one more member, or one more API server
	// if etcd is elsewhere.
	// +optional
	Provision *Action `json:"provision,omitempty"`

	// retire ends the API server of a control plane that leaves, in good order, before its etcd goes. Without it the run waits
	// until it is no endpoint of the Service kubernetes any more.
	// +optional
	Retire *Action `json:"retire,omitempty"`

	// terminate ends the machine of a control plane whose etcd is no member any more. Without it the run waits until its Node is
	// gone and nothing answers there.
	// +optional
	Terminate *Action `json:"terminate,omitempty"`

	// records are names in DNS that clients of the API use. They change once the first new API server serves, and those with then once
	// more when all have moved.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	Records []RecordSpec `json:"records,omitempty"`

	// settle is how long load balancers are given to notice an API server that has come. Default: 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="is negative; write a duration such as 60s"
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
//
// +kubebuilder:validation:XValidation:rule="(has(self.snapshotUnencrypted) && self.snapshotUnencrypted) || (has(self.external) && self.external)",fieldPath=".snapshotUnencrypted",message="is not set: a snapshot holds all Secrets, and is not encrypted; name a snapshotFile in a safe folder, and set it to true"
type EtcdSpec struct {
	// external says that etcd has machines of its own, which stay as they are: its members are only asked how they are, and control
	// planes are known by their Nodes instead. The new network has to reach it.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	External bool `json:"external,omitempty"`

	// endpoints are client URLs. One that answers is enough: the others are learned from it.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:XValidation:rule="isURL(self) && url(self).getScheme() == 'https' && size(url(self).getHost()) > 0",message="is no client URL; write https://10.0.0.1:2379"
	Endpoints []string `json:"endpoints"`

	// caFile, certFile and keyFile are of a client of etcd, on the machine where replumb runs; with kubeadm etcd/ca.crt and
	// apiserver-etcd-client.crt and .key in /etc/kubernetes/pki.
	// +kubebuilder:validation:MinLength=1
	CAFile string `json:"caFile"`
	// +kubebuilder:validation:MinLength=1
	CertFile string `json:"certFile"`
	// +kubebuilder:validation:MinLength=1
	KeyFile string `json:"keyFile"`

	// snapshotFile is where a snapshot is saved before the first change. Default: NAME.etcd.db, with the name of the Migration.
	// +optional
	SnapshotFile string `json:"snapshotFile,omitempty"`

	// snapshotUnencrypted agrees to a file on this machine, with mode 0600, that holds all Secrets of the cluster unencrypted. It stays there
	// after finish, until someone deletes it.
	// +optional
	SnapshotUnencrypted bool `json:"snapshotUnencrypted,omitempty"`
}

// NodeStatus is what a migration remembers of a node that leaves: its Node does not outlive it.
type NodeStatus struct {
	// name of the Node, or of the etcd member where there is no Node.
	Name string `json:"name"`
	// role is worker or control-plane.
	Role NodeRole `json:"role"`
	// addresses it had.
	// +optional
	Addresses []string `json:"addresses,omitempty"`
	// providerID it had.
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// successor is the etcd member that joins in the stead of a control plane or, where etcd is elsewhere, its API server.
	// +optional
	Successor *MemberStatus `json:"successor,omitempty"`
	// eventsSuccessor is the member of the second etcd, if it was named.
	// +optional
	EventsSuccessor *MemberStatus `json:"eventsSuccessor,omitempty"`
	// ended says that its end has been asked for: from then on it cannot come back.
	// +optional
	Ended bool `json:"ended,omitempty"`
	// gone says that its machine has ended, of a control plane: it may have had no Node to tell by.
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
	Name string `json:"name"`
	// peerURL at which other members reach it; of an API server without etcd the URL that it is reached at.
	PeerURL string `json:"peerURL"`
}
