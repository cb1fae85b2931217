package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MigrationStatus is what was last observed. What it says can always be found again on the objects themselves.
type MigrationStatus struct {
	// ObservedGeneration is the metadata.generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Type is the job that spec names, such as serviceCIDR.
	// +optional
	Type string `json:"type,omitempty"`

	// Phase is where the migration stands.
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// Stage is the phase of the plan that a run was last in, such as move or refresh.
	// +optional
	Stage string `json:"stage,omitempty"`

	// NodesRepointedAt is when every kubelet was first seen to give pods the cluster DNS address that belongs to the
	// present direction of the migration.
	// +optional
	NodesRepointedAt *metav1.Time `json:"nodesRepointedAt,omitempty"`

	// Tiers counts the Services of each tier.
	// +optional
	// +listType=map
	// +listMapKey=name
	Tiers []TierStatus `json:"tiers,omitempty"`

	// Nodes are those that leave, in a migration of nodes: it remembers them when they are gone.
	// +optional
	// +listType=map
	// +listMapKey=name
	Nodes []NodeStatus `json:"nodes,omitempty"`

	// Backups are the SHA-256 digests, in hex, of what its backups hold. What has another was not stored by replumb.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=4096
	// +kubebuilder:validation:items:MaxLength=64
	Backups []string `json:"backups,omitempty"`

	// Records are what names in DNS were before they were changed.
	// +optional
	// +kubebuilder:validation:MaxItems=128
	Records []RecordStatus `json:"records,omitempty"`

	// Mirror is where a mirror stands.
	// +optional
	Mirror *MirrorStatus `json:"mirror,omitempty"`

	// CNI is where the switch of a network stands.
	// +optional
	CNI *CNIStatus `json:"cni,omitempty"`

	// Proof is what the agents have seen.
	// +optional
	Proof *ProofStatus `json:"proof,omitempty"`

	// Conditions: Ready is true when the cluster is as spec.desired says, Paused while a pause is asked for.
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

// TierStatus counts the Services of one tier.
type TierStatus struct {
	Name  string `json:"name"`
	Total int    `json:"total"`
	Moved int    `json:"moved"`
}

// The conditions.
const (
	// ConditionReady is true when the cluster is as spec.desired says.
	ConditionReady = "Ready"
	// ConditionPaused is true while a pause is asked for.
	ConditionPaused = "Paused"
)

// Reasons of the Ready condition.
const (
	ReasonAsDesired  = "AsDesired"
	ReasonInProgress = "InProgress"
	ReasonFailed     = "Failed"
	ReasonPaused     = "Paused"
	ReasonResumed    = "Resumed"
)

// Counts of Services.
type Counts struct {
	// Total is how many Services move.
	Total int `json:"total"`
	// Moved is how many are at their new address.
	Moved int `json:"moved"`
	// Bridged is how many bridges exist.
	Bridged int `json:"bridged"`
	// Pinned is how many Services keep their address in the old range.
	// +optional
	Pinned int `json:"pinned,omitempty"`
	// Stays is how many Services are left alone.
	Stays int `json:"stays"`
}
