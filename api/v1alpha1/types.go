package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Migration is one job on one cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Desired",type=string,JSONPath=`.spec.desired`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Moved",type=integer,JSONPath=`.status.counts.moved`
// +kubebuilder:printcolumn:name="Total",type=integer,JSONPath=`.status.counts.total`
// +kubebuilder:printcolumn:name="Final",type=boolean,JSONPath=`.status.pointOfNoReturnPassed`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Migration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   MigrationSpec   `json:"spec"`
	Status MigrationStatus `json:"status,omitempty"`
}

// MigrationList is a list of Migrations.
//
// +kubebuilder:object:root=true
type MigrationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Migration `json:"items"`
}

// MigrationSpec says what to move and how far to go.
//
// +kubebuilder:validation:ExactlyOneOf=serviceCIDR
type MigrationSpec struct {
	// ServiceCIDR moves the Services of the cluster to another range. It cannot be changed: a different move is a
	// different Migration.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="serviceCIDR cannot be changed; create another Migration"
	ServiceCIDR *ServiceCIDRSpec `json:"serviceCIDR,omitempty"`

	// Batch is how many objects move together.
	// +optional
	Batch BatchSpec `json:"batch,omitempty"`

	// Desired is how far the migration shall go.
	// +optional
	Desired DesiredState `json:"desired,omitempty"`
}

// DesiredState is level-triggered: whatever the state of the cluster, a run brings it to this one.
//
// +kubebuilder:validation:Enum=Planned;Applied;RolledBack;Finished
type DesiredState string

// The desired states.
const (
	DesiredPlanned    DesiredState = "Planned"
	DesiredApplied    DesiredState = "Applied"
	DesiredRolledBack DesiredState = "RolledBack"
	DesiredFinished   DesiredState = "Finished"
)

// ServiceCIDRSpec is the job of moving the Service range.
type ServiceCIDRSpec struct {
	// To is the target range.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	To []string `json:"to"`

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
}

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
	// Mode HealthCheck asks every node's kube-proxy. Wait only lets time pass, and proves nothing.
	// +optional
	Mode BarrierMode `json:"mode,omitempty"`

	// Wait is the time that mode Wait lets pass. Mode HealthCheck gives up after it, but not before a minute.
	// +optional
	Wait *metav1.Duration `json:"wait,omitempty"`
}

// BarrierMode is a way of passing a barrier.
//
// +kubebuilder:validation:Enum=HealthCheck;Wait
type BarrierMode string

// The barrier modes.
const (
	BarrierHealthCheck BarrierMode = "HealthCheck"
	BarrierWait        BarrierMode = "Wait"
)

// BatchSpec is how many objects move together and how long to look at the result.
type BatchSpec struct {
	// Size of a batch. Default: 10.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=500
	Size int `json:"size,omitempty"`

	// Settle is how long to wait after a batch. Default: 2s.
	// +optional
	Settle *metav1.Duration `json:"settle,omitempty"`
}

// MigrationStatus is what was last observed. What it says can always be found again on the objects themselves.
type MigrationStatus struct {
	// Phase is where the migration stands.
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// Conditions: Ready is true when the cluster is as spec.desired says.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Counts of Services.
	// +optional
	Counts Counts `json:"counts,omitempty"`

	// PlanHash is the hash of the plan last applied.
	// +optional
	PlanHash string `json:"planHash,omitempty"`

	// PointOfNoReturnPassed is true once finish has begun to take old addresses away.
	// +optional
	PointOfNoReturnPassed bool `json:"pointOfNoReturnPassed,omitempty"`

	// LastError is why the last run stopped.
	// +optional
	LastError string `json:"lastError,omitempty"`
}

// Phase is where a migration stands.
type Phase string

// The phases.
const (
	PhaseApplying    Phase = "Applying"
	PhaseMoved       Phase = "Moved"
	PhaseRollingBack Phase = "RollingBack"
	PhaseRolledBack  Phase = "RolledBack"
	PhaseFinishing   Phase = "Finishing"
	PhaseFinished    Phase = "Finished"
)

// ConditionReady is true when the cluster is as spec.desired says.
const ConditionReady = "Ready"

// Reasons of the Ready condition.
const (
	ReasonAsDesired  = "AsDesired"
	ReasonInProgress = "InProgress"
	ReasonFailed     = "Failed"
)

// Counts of Services.
type Counts struct {
	// Total is how many Services move.
	Total int `json:"total"`
	// Moved is how many are at their new address.
	Moved int `json:"moved"`
	// Bridged is how many bridges exist.
	Bridged int `json:"bridged"`
	// Stays is how many Services are left alone.
	Stays int `json:"stays"`
}
