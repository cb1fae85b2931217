package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ServiceCIDRSpec is the job of moving the Service range.
//
// +kubebuilder:validation:XValidation:rule="(has(self.mode) && self.mode == 'Retire') || (has(self.to) && size(self.to) > 0)",message="to is required unless mode is Retire"
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode != 'Retire' || (has(self.from) && size(self.from) == 1)",message="mode Retire needs exactly one range in from"
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode != 'Extend' || !has(self.from) || size(self.from) == 0",message="mode Extend takes no from"
type ServiceCIDRSpec struct {
	// Mode Move empties and retires ranges. Extend only adds the target. Retire empties and deletes one range whose
	// Services go to the other ranges. Default: Move.
	// +optional
	Mode ServiceCIDRMode `json:"mode,omitempty"`

	// To is the target range. Mode Retire defaults it to every other ready ServiceCIDR.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	To []string `json:"to,omitempty"`

	// From is what to empty. Default: every ready ServiceCIDR that is not the target.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	From []string `json:"from,omitempty"`

	// Bridge is how old addresses are kept answering.
	// +optional
	Bridge BridgeForm `json:"bridge,omitempty"`

	// ClusterDomain is the DNS domain of the cluster. Default: cluster.local.
	// +optional
	ClusterDomain string `json:"clusterDomain,omitempty"`

	// Drain is how long old addresses answer after the last move before finish or rollback may take them away. It
	// covers what clients and DNS caches remember.
	// +optional
	Drain *metav1.Duration `json:"drain,omitempty"`

	// Barrier is how it is proven that every node knows a batch's bridges.
	// +optional
	Barrier BarrierSpec `json:"barrier,omitempty"`

	// ClusterServices says whether the cluster's own Services (kube-dns and whatever the kubelets' clusterDNS names, and
	// kubernetes) move too. As long as they stay, the default range cannot be retired. Default: Move.
	// +optional
	ClusterServices ClusterServicesPolicy `json:"clusterServices,omitempty"`

	// Networks are ranges outside the cluster that its pods and nodes reach, such as VPNs and offices. The target must
	// not overlap them.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	Networks []string `json:"networks,omitempty"`

	// Refresh is how pods are dealt with that carry old addresses in their environment or resolv.conf.
	// +optional
	Refresh RefreshSpec `json:"refresh,omitempty"`

	// APIServers are host:port of every API server, as reached from where replumb runs. Default: the endpoints of the
	// kubernetes Service.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	APIServers []string `json:"apiServers,omitempty"`

	// GateWait is how long a run waits for what only the operator can do before it ends, to be run again. Default: 1h.
	// +optional
	GateWait *metav1.Duration `json:"gateWait,omitempty"`
}

// ServiceCIDRMode is what a migration does to ranges.
//
// +kubebuilder:validation:Enum=Move;Extend;Retire
type ServiceCIDRMode string

// The modes.
const (
	ModeMove   ServiceCIDRMode = "Move"
	ModeExtend ServiceCIDRMode = "Extend"
	ModeRetire ServiceCIDRMode = "Retire"
)

// ClusterServicesPolicy says whether the cluster's own Services move.
//
// +kubebuilder:validation:Enum=Move;Stay
type ClusterServicesPolicy string

// The policies for the cluster's own Services.
const (
	ClusterServicesMove ClusterServicesPolicy = "Move"
	ClusterServicesStay ClusterServicesPolicy = "Stay"
)

// RefreshSpec is how pods get rid of old addresses.
type RefreshSpec struct {
	// Mode Restart restarts the owners of such pods; Report only names them. Default: Restart.
	// +optional
	Mode RefreshMode `json:"mode,omitempty"`

	// Parallel is how many workloads restart at once. Default: 2.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Parallel int `json:"parallel,omitempty"`

	// Timeout is how long one workload may take to be ready again. Default: 10m.
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// BarePods says what to do with pods that no rollout restarts: those without an owner, of Jobs, and of owners
	// replumb does not know. Default: Report.
	// +optional
	BarePods BarePodsPolicy `json:"barePods,omitempty"`
}

// RefreshMode is what refresh does.
//
// +kubebuilder:validation:Enum=Restart;Report
type RefreshMode string

// The refresh modes.
const (
	RefreshRestart RefreshMode = "Restart"
	RefreshReport  RefreshMode = "Report"
)

// BarePodsPolicy is what refresh does with pods that no rollout restarts.
//
// +kubebuilder:validation:Enum=Report;Evict
type BarePodsPolicy string

// The policies for such pods.
const (
	BarePodsReport BarePodsPolicy = "Report"
	BarePodsEvict  BarePodsPolicy = "Evict"
)

// BridgeForm is a way of keeping an address answering.
//
// +kubebuilder:validation:Enum=Auto;ExternalIPs;LoadBalancer
type BridgeForm string

// The bridge forms.
const (
	BridgeAuto         BridgeForm = "Auto"
	BridgeExternalIPs  BridgeForm = "ExternalIPs"
	BridgeLoadBalancer BridgeForm = "LoadBalancer"
)

// BarrierSpec is how a barrier is passed.
type BarrierSpec struct {
	// Mode Agent has the agent of every node ask its kube-proxy, HealthCheck asks through the API server. Wait only lets time pass, and
	// proves nothing. Default: Agent where agents run, else HealthCheck.
	// +optional
	Mode BarrierMode `json:"mode,omitempty"`

	// Wait is the time that mode Wait lets pass. Mode HealthCheck gives up after it, but not before a minute.
	// +optional
	Wait *metav1.Duration `json:"wait,omitempty"`
}

// BarrierMode is a way of passing a barrier.
//
// +kubebuilder:validation:Enum=HealthCheck;Agent;Wait
type BarrierMode string

// The barrier modes.
const (
	BarrierHealthCheck BarrierMode = "HealthCheck"
	BarrierAgent       BarrierMode = "Agent"
	BarrierWait        BarrierMode = "Wait"
)
