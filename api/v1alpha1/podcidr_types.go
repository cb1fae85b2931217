package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PodCIDRSpec is the job of moving all pods to another range.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.from) || (has(self.from) && self.from == oldSelf.from)",message="cannot be changed once the migration is recorded; roll it back and give the new one another name",fieldPath=".from"
// +kubebuilder:validation:XValidation:rule="has(self.blockSize) == has(oldSelf.blockSize) && (!has(self.blockSize) || self.blockSize == oldSelf.blockSize)",message="cannot be changed once the migration is recorded; roll it back and give the new one another name",fieldPath=".blockSize"
// +kubebuilder:validation:XValidation:rule="!has(self.from) || size(self.from) == 0 || size(self.from) == size(self.to)",messageExpression="'has %d ranges for %d in from; name one target for each range in from, in the same order'.format([size(self.to), size(self.from)])",fieldPath=".to"
// +kubebuilder:validation:XValidation:rule="(has(self.to) && !self.to.all(c, isCIDR(c))) || self.to.all(a, cidr(a).ip().family() == 4)",message="has a range that is not IPv4; IPv6 pods cannot be moved yet",fieldPath=".to"
// +kubebuilder:validation:XValidation:rule="(has(self.to) && !self.to.all(c, isCIDR(c))) || self.to.all(a, self.to.exists_one(b, (cidr(a).containsCIDR(cidr(b)) || cidr(b).containsCIDR(cidr(a)))))",message="has ranges that overlap each other; choose targets that have no address in common",fieldPath=".to"
// +kubebuilder:validation:XValidation:rule="(has(self.to) && !self.to.all(c, isCIDR(c))) || (has(self.from) && !self.from.all(c, isCIDR(c))) || !has(self.from) || self.to.all(a, self.from.all(b, !(cidr(a).containsCIDR(cidr(b)) || cidr(b).containsCIDR(cidr(a)))))",message="overlaps a range in spec.podCIDR.from; choose a target outside the ranges that are to be emptied",fieldPath=".to"
// +kubebuilder:validation:XValidation:rule="!has(self.blockSize) || (has(self.to) && !self.to.all(c, isCIDR(c))) || self.to.all(a, cidr(a).prefixLength() <= self.blockSize)",message="is larger than the target; choose smaller blocks or a wider target",fieldPath=".blockSize"
type PodCIDRSpec struct {
	// from are the ranges of the pools to be emptied. Default: every enabled pool for pods but the targets.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="is not a range in CIDR form; write a range such as 10.245.0.0/16"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || self == string(cidr(self).masked())",message="is not in canonical form; write the first address of the range and its length, such as 10.245.0.0/16 or fd00:24::/48"
	From []string `json:"from,omitempty"`

	// to are the target ranges: one for each range in from, in the same order. Each becomes a pool with the
	// encapsulation, NAT and node selector of the one it takes over from.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="is not a range in CIDR form; write a range such as 10.245.0.0/16"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || self == string(cidr(self).masked())",message="is not in canonical form; write the first address of the range and its length, such as 10.245.0.0/16 or fd00:24::/48"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	To []string `json:"to"`

	// blockSize is the prefix length of the blocks that nodes take from the targets. Default: as before.
	// +optional
	// +kubebuilder:validation:Minimum=20
	// +kubebuilder:validation:Maximum=32
	BlockSize int `json:"blockSize,omitempty"`

	// networks are ranges outside the cluster that the targets must not overlap.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="is not a range in CIDR form; write a range such as 10.245.0.0/16"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || self == string(cidr(self).masked())",message="is not in canonical form; write the first address of the range and its length, such as 10.245.0.0/16 or fd00:24::/48"
	Networks []string `json:"networks,omitempty"`

	// prepare is what is scaled up before any pod is restarted.
	// +optional
	// +kubebuilder:default={}
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	Prepare PrepareSpec `json:"prepare,omitempty"`

	// canary tries the targets out first.
	// +optional
	// +kubebuilder:default={}
	Canary PodCanarySpec `json:"canary,omitempty"`

	// tunnels is what becomes of the old addresses of the nodes' tunnels, which Calico and Cilium change.
	// +optional
	// +kubebuilder:default={}
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	Tunnels TunnelsSpec `json:"tunnels,omitempty"`

	// roll is how pods are restarted.
	// +optional
	// +kubebuilder:default={}
	Roll RollSpec `json:"roll,omitempty"`

	// nodes is how nodes are moved that have ranges of their own: in spec.podCIDR of their Node, or in their CiliumNode.
	// +optional
	// +kubebuilder:default={}
	Nodes NodeRangesSpec `json:"nodes,omitempty"`
}

// NodeRangesSpec is how nodes are moved that have ranges of their own: each is emptied, gets a range of the target, and is
// filled again.
type NodeRangesSpec struct {
	// parallel is how many nodes are moved at once. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=1
	Parallel int `json:"parallel,omitempty"`

	// agents are DaemonSets, as namespace/name, that have to be restarted on a node to learn its range. Those of flannel,
	// kindnet, kube-router and Cilium are found.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=317
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[^/]+/[^/]+$')",message="is not namespace/name; write namespace/name, such as kube-system/coredns"
	Agents []string `json:"agents,omitempty"`

	// gates says who does what gates about controller managers wait for. Manual leaves it to people. With Kubeadm, pods of replumb's own
	// change what kubeadm has written on control planes, one after the other, and its ConfigMap: they are root there. Default: Manual.
	// +optional
	Gates GatesMode `json:"gates,omitempty"`

	// gateWait is how long a run waits for what only the operator can do before it ends, to be run again. Default: 1h.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="is not positive; write a duration such as 60s"
	GateWait *metav1.Duration `json:"gateWait,omitempty"`
}

// PrepareSpec is what gets one more pod before the first one is disturbed.
type PrepareSpec struct {
	// deployments, as namespace/name, get one more pod than they have. Those of cluster DNS and of admission webhooks
	// with fewer than three pods are found.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=317
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[^/]+/[^/]+$')",message="is not namespace/name; write namespace/name, such as kube-system/coredns"
	Deployments []string `json:"deployments,omitempty"`

	// mode Scale scales them; Disabled leaves everything as it is. Default: Scale.
	// +optional
	// +kubebuilder:default=Scale
	Mode PrepareMode `json:"mode,omitempty"`
}

// PrepareMode is what prepare does.
//
// +kubebuilder:validation:Enum=Scale;Disabled
type PrepareMode string

// The modes of prepare.
const (
	PrepareScale    PrepareMode = "Scale"
	PrepareDisabled PrepareMode = "Disabled"
)

// RollSpec is how pods are restarted.
type RollSpec struct {
	// parallel is how many workloads of a batch restart at once. Default: 2.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=2
	Parallel int `json:"parallel,omitempty"`

	// timeout is how long one workload may take to be ready again. Default: 10m.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="is not positive; write a duration such as 60s"
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// jobWait is how long to wait for the running pods of Jobs to end: they are never restarted. Default: 1h.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="is not positive; write a duration such as 60s"
	JobWait *metav1.Duration `json:"jobWait,omitempty"`

	// barePods says what to do with pods that no rollout restarts: those without an owner, of updateStrategy OnDelete, and
	// of owners replumb does not know. What is only reported has to be dealt with before finish. Default: Report.
	// +optional
	// +kubebuilder:default=Report
	BarePods BarePodsPolicy `json:"barePods,omitempty"`
}

// PodCanarySpec is how throw-away pods try the targets out before other pods get addresses of them: on every node one that
// answers and one that calls those of all other nodes, Services, the nodes and whatever else is named.
type PodCanarySpec struct {
	// mode Run runs them; Disabled leaves the trial out. Default: Run.
	// +optional
	// +kubebuilder:default=Run
	Mode PodCanaryMode `json:"mode,omitempty"`

	// targets are further addresses, as host:port over TCP, that pods must reach from their new address.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=320
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([[][^]/ ]+[]]|[^]:/ []+):([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$')",message="is not host:port; write it such as 192.0.2.10:6443"
	Targets []string `json:"targets,omitempty"`
}

// TunnelsSpec is what becomes of connections that nodes themselves have open to pods of other nodes: those of ingress
// controllers on the hosts' network, for instance.
type TunnelsSpec struct {
	// mode Hold keeps the address of a tunnel on its node, by pods of replumb's with NET_ADMIN on the hosts' network:
	// Calico's until finish or the end of rollback, Cilium's until the node has moved. Connections go on. With Leave they hang
	// when the tunnel gets another address. Default: Hold.
	// +optional
	// +kubebuilder:default=Hold
	Mode TunnelsMode `json:"mode,omitempty"`
}

// TunnelsMode says whether old addresses of tunnels are kept.
//
// +kubebuilder:validation:Enum=Hold;Leave
type TunnelsMode string

// The modes of tunnels.
const (
	TunnelsHold  TunnelsMode = "Hold"
	TunnelsLeave TunnelsMode = "Leave"
)

// PodCanaryMode says whether the targets are tried out.
//
// +kubebuilder:validation:Enum=Run;Disabled
type PodCanaryMode string

// The canary modes.
const (
	PodCanaryRun      PodCanaryMode = "Run"
	PodCanaryDisabled PodCanaryMode = "Disabled"
)
