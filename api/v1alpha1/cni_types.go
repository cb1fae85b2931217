package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CNISpec is the job of replacing what gives pods their network by something else.
type CNISpec struct {
	// From is what the cluster has. Default: what is found.
	// +optional
	From CNIName `json:"from,omitempty"`

	// To is what it is to have.
	To CNIName `json:"to"`

	// Mode is how. Default: Drained, which is for a cluster without traffic: pods have no network for a while.
	// +optional
	Mode CNIMode `json:"mode,omitempty"`

	// Manifests are files and folders, on the machine where replumb runs, with all objects of the new network, as its vendor or
	// your chart renders them. They are read when the migration begins.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Manifests []string `json:"manifests"`

	// PodCIDR is the range that pods have with the new network. Default: what the manifests say.
	// +optional
	PodCIDR string `json:"podCIDR,omitempty"`

	// Traffic is how it is made sure that nobody is served.
	// +optional
	Traffic TrafficSpec `json:"traffic,omitempty"`

	// Nodes is how nodes get the new network.
	// +optional
	Nodes CNINodesSpec `json:"nodes,omitempty"`

	// Policies says what to do about policies of the old network's own kinds that do not translate. Default: Refuse.
	// +optional
	Policies PolicyLoss `json:"policies,omitempty"`

	// Canary tries the network out before and after, with the same questions.
	// +optional
	Canary PodCanarySpec `json:"canary,omitempty"`

	// GateWait is how long a run waits for what only the operator can do before it ends, to be run again. Default: 1h.
	// +optional
	GateWait *metav1.Duration `json:"gateWait,omitempty"`
}

// CNIName is a network for pods.
//
// +kubebuilder:validation:Enum=flannel;calico;canal;cilium
type CNIName string

// The networks that replumb can tell apart. Which it can switch between is another question; its checks say.
const (
	Flannel CNIName = "flannel"
	Calico  CNIName = "calico"
	Canal   CNIName = "canal"
	Cilium  CNIName = "cilium"
)

// CNIMode is how a network is replaced.
//
// +kubebuilder:validation:Enum=Drained
type CNIMode string

// CNIDrained replaces the network of a cluster that serves nobody.
const CNIDrained CNIMode = "Drained"

// TrafficSpec is how it is made sure that a cluster serves nobody.
type TrafficSpec struct {
	// Proof is how. Default: Counters, which watches connections on every node.
	// +optional
	Proof TrafficProof `json:"proof,omitempty"`
	// Window is how long no connection from outside must have come. Default: 30s.
	// +optional
	Window *metav1.Duration `json:"window,omitempty"`
	// Ignore are ranges of addresses that are no clients, such as those that load balancers check health from.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Ignore []string `json:"ignore,omitempty"`
}

// TrafficProof is how it is made sure that a cluster serves nobody.
//
// +kubebuilder:validation:Enum=Counters;AcceptDowntime
type TrafficProof string

// The ways. AcceptDowntime says that whoever is served may be cut off.
const (
	TrafficCounters       TrafficProof = "Counters"
	TrafficAcceptDowntime TrafficProof = "AcceptDowntime"
)

// CNINodesSpec is how nodes get the new network.
type CNINodesSpec struct {
	// Mode is InPlace or Replace. Default: InPlace.
	// +optional
	Mode CNINodesMode `json:"mode,omitempty"`
	// Replace is called with mode Replace: it brings as many new nodes and ends the old ones. The run waits until no node is
	// left that was there before.
	// +optional
	Replace *Action `json:"replace,omitempty"`
	// Parallel is how many nodes are changed at once. Default: 10.
	// +optional
	// +kubebuilder:validation:Minimum=1
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
	// From is what the cluster had when the migration began.
	// +optional
	From CNIName `json:"from,omitempty"`
	// Baseline is what the canary found before: every question with its answer, in a form of its own.
	// +optional
	Baseline string `json:"baseline,omitempty"`
	// Nodes that there were when the migration began, by name.
	// +optional
	// +kubebuilder:validation:MaxItems=5000
	Nodes []string `json:"nodes,omitempty"`
	// ManifestsHash is that of what the manifests held when the migration began.
	// +optional
	ManifestsHash string `json:"manifestsHash,omitempty"`
	// Ranges that pods had addresses of when the migration began.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Ranges []string `json:"ranges,omitempty"`
	// Unready are the workloads, as kind and namespace/name, that were not complete when the migration began: nobody waits for them.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	Unready []string `json:"unready,omitempty"`
	// Begun is when the old network began to be removed. From then on pods may have none.
	// +optional
	Begun *metav1.Time `json:"begun,omitempty"`
	// Network is what pods have that were made after Since.
	// +optional
	Network CNIName `json:"network,omitempty"`
	// Since is when Network was there on every node.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
}
