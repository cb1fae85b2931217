package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// KubeProxySpec is the job of having kube-proxy write its rules another way.
//
// +kubebuilder:validation:XValidation:rule="!has(self.program) || !has(self.program.from) || self.program.from != self.mode",message="is what spec.kubeProxy.mode has; name the mode that kube-proxy has now",fieldPath=".program.from"
type KubeProxySpec struct {
	// mode is what kube-proxy is to have as the mode of its configuration. From ipvs it can be brought to iptables.
	// +kubebuilder:validation:Enum=iptables;nftables
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	Mode KubeProxyMode `json:"mode"`

	// nodes is how nodes are changed.
	// +optional
	// +kubebuilder:default={}
	Nodes KubeProxyNodesSpec `json:"nodes,omitempty,omitzero"`

	// program is for kube-proxy as a program of nodes: a unit of systemd, or part of k3s or RKE2. Its owner sets the mode and restarts it, on one
	// node after the other, while a copy of its rules leads there. Without it kube-proxy has to run in the pods of one DaemonSet.
	// +optional
	Program *KubeProxyProgramSpec `json:"program,omitempty"`
}

// KubeProxyProgramSpec is how kube-proxy is restarted where it is a program of nodes.
type KubeProxyProgramSpec struct {
	// from is the mode that kube-proxy has before, which no object of the cluster shows. Default: the other one of iptables and nftables.
	// +optional
	// +kubebuilder:validation:Enum=iptables;nftables;ipvs
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	From KubeProxyMode `json:"from,omitempty"`

	// restart sets the mode of kube-proxy on one node, and restarts it there: request.node and request.mode name them. Rollback calls it with the
	// former mode. A run that goes on calls it again. Without it the run waits on each node until a person has done it.
	// +optional
	Restart *Action `json:"restart,omitempty"`

	// gateWait is how long a run waits for what only the operator can do before it ends, to be run again. Default: 1h.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('168h')",message="is not within 1s and 168h; write a duration such as 168h"
	GateWait *metav1.Duration `json:"gateWait,omitempty"`
}

// KubeProxyMode is how kube-proxy writes its rules.
type KubeProxyMode string

// The modes of kube-proxy. From ipvs it can be brought to iptables.
const (
	KubeProxyIPTables KubeProxyMode = "iptables"
	KubeProxyNFTables KubeProxyMode = "nftables"
	KubeProxyIPVS     KubeProxyMode = "ipvs"
)

// KubeProxyNodesSpec is how nodes are changed. The first node is always changed alone.
type KubeProxyNodesSpec struct {
	// first are nodes that go first, in this order. Default: the first by name.
	// +optional
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	First []string `json:"first,omitempty"`
	// parallel is how many nodes are changed at once. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=1
	Parallel int `json:"parallel,omitempty"`
}

// KubeProxyStatus is where a change of kube-proxy's mode stands.
type KubeProxyStatus struct {
	// from is the mode that kube-proxy had when the migration began.
	// +optional
	// +kubebuilder:validation:Enum=iptables;nftables;ipvs
	From KubeProxyMode `json:"from,omitempty"`
	// configured is what its configuration named for that: empty where it named none.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Configured string `json:"configured,omitempty"`
}
