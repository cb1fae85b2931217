package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CNISpec is the job of replacing what gives pods their network by something else.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.mode) && self.mode == 'InPlace' && has(self.nodes) && has(self.nodes.mode) && self.nodes.mode == 'Replace')",message="is Replace, and spec.cni.mode InPlace keeps nodes; leave it out",fieldPath=".nodes"
// +kubebuilder:validation:XValidation:rule="!(has(self.kubeProxy) && self.kubeProxy == 'Replace') || (self.to == 'cilium' && has(self.mode) && self.mode == 'InPlace')",message="is Replace, which takes spec.cni.to: cilium and spec.cni.mode: InPlace; leave it out",fieldPath=".kubeProxy"
// +kubebuilder:validation:XValidation:rule="!has(self.from) || self.from != self.to",message="is what spec.cni.from has; name another network",fieldPath=".to"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.from) || (has(self.from) && self.from == oldSelf.from)",message="cannot be changed once the migration is recorded; roll it back and give the new one another name",fieldPath=".from"
// +kubebuilder:validation:XValidation:rule="has(self.podCIDR) == has(oldSelf.podCIDR) && (!has(self.podCIDR) || self.podCIDR == oldSelf.podCIDR)",message="cannot be changed once the migration is recorded; roll it back and give the new one another name",fieldPath=".podCIDR"
type CNISpec struct {
	// from is what the cluster has. Default: what is found. host-local has to be said, as nothing in the cluster tells of it: the plugins bridge or
	// ptp, with host-local over the podCIDR of each Node.
	// +optional
	// +kubebuilder:validation:Enum=flannel;calico;weave;host-local
	From CNIName `json:"from,omitempty"`

	// to is what it is to have.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	// +kubebuilder:validation:Enum=flannel;calico;cilium
	To CNIName `json:"to"`

	// mode is how. Drained is for a cluster without traffic: pods have no network for a while. InPlace keeps both networks side by side,
	// and switches one node after the other under traffic. Default: Drained.
	// +optional
	// +kubebuilder:default=Drained
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	Mode CNIMode `json:"mode,omitempty"`

	// manifests are files and folders, on the machine where replumb runs and relative to the Migration's file, with all objects of the new
	// network, as its vendor or your chart renders them. They are read when the migration begins.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	Manifests []string `json:"manifests"`

	// podCIDR is the range that pods have with the new network. Default: what the manifests say.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="is not a range in CIDR form; write a range such as 10.245.0.0/16"
	// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || self == string(cidr(self).masked())",message="is not in canonical form; write the first address of the range and its length, such as 10.245.0.0/16 or fd00:24::/48"
	PodCIDR string `json:"podCIDR,omitempty"`

	// traffic is how it is made sure that no one is served.
	// +optional
	// +kubebuilder:default={}
	Traffic TrafficSpec `json:"traffic,omitempty"`

	// nodes is how nodes get the new network.
	// +optional
	// +kubebuilder:default={}
	Nodes CNINodesSpec `json:"nodes,omitempty"`

	// inPlace is how nodes are switched with mode InPlace.
	// +optional
	// +kubebuilder:default={}
	InPlace CNIInPlaceSpec `json:"inPlace,omitempty,omitzero"`

	// kubeProxy says what becomes of kube-proxy. Replace, for Cilium in mode InPlace, has Cilium do its work, one node after the other, once
	// every pod has Cilium's network; finish removes kube-proxy and its rules. Default: Keep.
	// +optional
	// +kubebuilder:default=Keep
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	KubeProxy KubeProxyFate `json:"kubeProxy,omitempty"`

	// policies says what to do about policies of the old network's own kinds that do not translate. Default: Refuse.
	// +optional
	// +kubebuilder:default=Refuse
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	Policies PolicyLoss `json:"policies,omitempty"`

	// canary tries the network out before and after, with the same questions.
	// +optional
	// +kubebuilder:default={}
	Canary PodCanarySpec `json:"canary,omitempty"`

	// prepare is what is scaled up before any node is emptied, with mode InPlace.
	// +optional
	// +kubebuilder:default={}
	Prepare PrepareSpec `json:"prepare,omitempty"`

	// again is how often all pods are recreated once more after the switch, for a network that is not stable yet. Raise it by one, and apply
	// again: every pod that is older than that is recreated within PodDisruptionBudgets, with nodes.mode Replace on nodes that replace all
	// others, and everything is verified as after the switch. What has been done up to that number is not done again. Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Again int32 `json:"again,omitempty"`

	// vouch is the operator's word for what cannot be seen.
	// +optional
	Vouch CNIVouchSpec `json:"vouch,omitempty"`

	// gateWait is how long a run waits for what only the operator can do before it ends, to be run again. Default: 1h.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('168h')",message="is not within 1s and 168h; write a duration such as 168h"
	GateWait *metav1.Duration `json:"gateWait,omitempty"`
}

// CNIInPlaceSpec is how nodes are switched while their cluster serves. The first node is always switched alone.
type CNIInPlaceSpec struct {
	// first are nodes that go first, in this order. Default: the first by name.
	// +optional
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	First []string `json:"first,omitempty"`
	// parallel is how many nodes are switched at once. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=1
	Parallel int `json:"parallel,omitempty"`
	// workloads is how many workloads of a node replace a pod at once: the nodes that serve meanwhile start all of these pods. Default: 5.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=5
	Workloads int `json:"workloads,omitempty"`
	// timeout is how long one workload may take to be ready elsewhere. Default: 10m.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="is not positive; write a duration such as 60s"
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// jobWait is how long to wait for the running pods of Jobs to end on a node. Default: 1h.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="is not positive; write a duration such as 60s"
	JobWait *metav1.Duration `json:"jobWait,omitempty"`
	// barePods says what to do with pods without an owner: Report waits until they have ended, Evict evicts them, and they do not come
	// back. Default: Report.
	// +optional
	// +kubebuilder:default=Report
	BarePods BarePodsPolicy `json:"barePods,omitempty"`
}

// CNIVouchSpec is the operator's word for what cannot be seen. Each counts for the one finding that it names.
type CNIVouchSpec struct {
	// kubeProxy says that kube-proxy takes the new range of pods for the cluster's own, on every node whose configuration the API does
	// not show (RP5203).
	// +optional
	KubeProxy bool `json:"kubeProxy,omitempty"`
	// webhooks are the names of admission webhooks that let through, by then, what is written while pods have no network (RP5004): a
	// hook sees to them, or their pods need none.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Webhooks []string `json:"webhooks,omitempty"`
	// quiet are the ranges of traffic.ignore from which nothing comes but health checks (RP5008): no client is behind a balancer there.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="is not a range in CIDR form; write a range such as 10.245.0.0/16"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || self == string(cidr(self).masked())",message="is not in canonical form; write the first address of the range and its length, such as 10.245.0.0/16 or fd00:24::/48"
	Quiet []string `json:"quiet,omitempty"`
}

// CNIName is a network for pods.
type CNIName string

// The networks that replumb can tell apart. Which it can switch between is another question; its checks say.
const (
	Flannel CNIName = "flannel"
	Calico  CNIName = "calico"
	Canal   CNIName = "canal"
	Cilium  CNIName = "cilium"
	Weave   CNIName = "weave"
	// HostLocal is a file on each node and nothing in the cluster.
	HostLocal CNIName = "host-local"
)

// CNIMode is how a network is replaced.
//
// +kubebuilder:validation:Enum=Drained;InPlace
type CNIMode string

// The modes. Drained replaces the network of a cluster that serves no one, InPlace that of one that serves.
const (
	CNIDrained CNIMode = "Drained"
	CNIInPlace CNIMode = "InPlace"
)

// KubeProxyFate is what becomes of kube-proxy.
//
// +kubebuilder:validation:Enum=Keep;Replace
type KubeProxyFate string

// What becomes of it.
const (
	KubeProxyKeep    KubeProxyFate = "Keep"
	KubeProxyReplace KubeProxyFate = "Replace"
)

// TrafficSpec is how it is made sure that a cluster serves no one.
type TrafficSpec struct {
	// proof is how. Default: Counters, which watches connections on every node.
	// +optional
	// +kubebuilder:default=Counters
	Proof TrafficProof `json:"proof,omitempty"`
	// window is how long no connection from outside must have come. Default: 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('4s') && duration(self) <= duration('1h')",message="is not within 4s and 1h; write a duration such as 1h"
	Window *metav1.Duration `json:"window,omitempty"`
	// ignore are ranges of addresses that are no clients, such as those that load balancers check health from.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="is not a range in CIDR form; write a range such as 10.245.0.0/16"
	// +kubebuilder:validation:items:XValidation:rule="!isCIDR(self) || self == string(cidr(self).masked())",message="is not in canonical form; write the first address of the range and its length, such as 10.245.0.0/16 or fd00:24::/48"
	Ignore []string `json:"ignore,omitempty"`
}

// TrafficProof is how it is made sure that a cluster serves no one.
//
// +kubebuilder:validation:Enum=Counters;AcceptDowntime
type TrafficProof string

// The ways. AcceptDowntime says that clients may be cut off.
const (
	TrafficCounters       TrafficProof = "Counters"
	TrafficAcceptDowntime TrafficProof = "AcceptDowntime"
)

// CNINodesSpec is how nodes get the new network.
//
// +kubebuilder:validation:XValidation:rule="!has(self.replace) || self.mode == 'Replace'",message="is set, and spec.cni.nodes.mode is not Replace; set mode: Replace",fieldPath=".replace"
type CNINodesSpec struct {
	// mode is InPlace or Replace. Default: InPlace.
	// +optional
	// +kubebuilder:default=InPlace
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	Mode CNINodesMode `json:"mode,omitempty"`
	// replace is called with mode Replace: it brings as many new nodes and ends the old ones. The run waits until no node is
	// left that was there before.
	// +optional
	Replace *Action `json:"replace,omitempty"`
	// parallel is how many nodes are changed at once. Default: 10.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:default=10
	Parallel int32 `json:"parallel,omitempty"`
}

// CNINodesMode is how nodes get the new network.
//
// +kubebuilder:validation:Enum=InPlace;Replace
type CNINodesMode string

// The modes. InPlace removes on every node what the old network left there.
const (
	CNINodesInPlace CNINodesMode = "InPlace"
	CNINodesReplace CNINodesMode = "Replace"
)

// PolicyLoss is what to do about policies that do not translate.
//
// +kubebuilder:validation:Enum=Refuse;Drop
type PolicyLoss string

// The choices.
const (
	PolicyRefuse PolicyLoss = "Refuse"
	PolicyDrop   PolicyLoss = "Drop"
)

// CNIStatus is where the switch of a network stands.
type CNIStatus struct {
	// from is what the cluster had when the migration began.
	// +optional
	// +kubebuilder:validation:Enum=flannel;calico;canal;cilium;weave;host-local
	From CNIName `json:"from,omitempty"`
	// baseline is what the canary found before: every question with its answer, in a form of its own.
	// +optional
	Baseline string `json:"baseline,omitempty"`
	// nodes that there were when the migration began, by name.
	// +optional
	// +kubebuilder:validation:MaxItems=5000
	Nodes []string `json:"nodes,omitempty"`
	// manifestsHash is that of what the manifests held when the migration began.
	// +optional
	ManifestsHash string `json:"manifestsHash,omitempty"`
	// ranges that pods had addresses of when the migration began.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Ranges []string `json:"ranges,omitempty"`
	// unready are the workloads, as kind and namespace/name, that were not complete when the migration began: no one waits for them.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	Unready []string `json:"unready,omitempty"`
	// begun is when the network of the cluster began to change: with mode Drained, when the old one began to be removed, and from then on
	// pods may have none; with mode InPlace, when the new one began to be installed beside it.
	// +optional
	Begun *metav1.Time `json:"begun,omitempty"`
	// network is what pods have that were made after since.
	// +optional
	// +kubebuilder:validation:Enum=flannel;calico;canal;cilium;weave;host-local
	Network CNIName `json:"network,omitempty"`
	// since is when network was there on every node.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// again is the last time that all pods have been or are being recreated once more.
	// +optional
	Again *CNIAgainStatus `json:"again,omitempty"`
}

// CNIAgainStatus is one time that all pods are recreated once more.
type CNIAgainStatus struct {
	// number is that of spec.cni.again.
	Number int32 `json:"number"`
	// since is when it began: pods made before are recreated.
	Since metav1.Time `json:"since"`
	// nodes that are replaced, by name, with nodes.mode Replace.
	// +optional
	// +kubebuilder:validation:MaxItems=5000
	Nodes []string `json:"nodes,omitempty"`
}
