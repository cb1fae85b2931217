package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MigrationStatus is what was last observed. What it says can always be found again on the objects themselves.
type MigrationStatus struct {
	// observedGeneration is the metadata.generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// type is the job that spec names, such as serviceCIDR.
	// +optional
	Type string `json:"type,omitempty"`

	// phase is where the migration stands.
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// attempt counts how often apply has set out. An approval of finish is of one attempt.
	// +optional
	Attempt int64 `json:"attempt,omitempty"`

	// stage is the phase of the plan that a run was last in, such as move or refresh.
	// +optional
	Stage string `json:"stage,omitempty"`

	// nodesRepointedAt is when every kubelet was first seen to give pods the cluster DNS address that belongs to the
	// present direction of the migration.
	// +optional
	NodesRepointedAt *metav1.Time `json:"nodesRepointedAt,omitempty"`

	// tiers counts the Services of each tier.
	// +optional
	// +listType=map
	// +listMapKey=name
	Tiers []TierStatus `json:"tiers,omitempty"`

	// nodes are those that leave, in a migration of nodes: it remembers them when they are gone.
	// +optional
	// +listType=map
	// +listMapKey=name
	Nodes []NodeStatus `json:"nodes,omitempty"`

	// takenBack are the workloads whose restart by replumb another user undid. Their pods are replaced one by one.
	// +optional
	// +listType=map
	// +listMapKey=uid
	// +kubebuilder:validation:MaxItems=256
	TakenBack []TakenBackStatus `json:"takenBack,omitempty"`

	// backups are the SHA-256 digests, in hex, of what its backups hold. What has another was not stored by replumb.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=4096
	// +kubebuilder:validation:items:MaxLength=64
	Backups []string `json:"backups,omitempty"`

	// records are what names in DNS were before they were changed.
	// +optional
	// +kubebuilder:validation:MaxItems=128
	Records []RecordStatus `json:"records,omitempty"`

	// mirror is where a mirror stands.
	// +optional
	Mirror *MirrorStatus `json:"mirror,omitempty"`

	// cni is where the switch of a network stands.
	// +optional
	CNI *CNIStatus `json:"cni,omitempty"`

	// kubeProxy is where a change of kube-proxy's mode stands.
	// +optional
	KubeProxy *KubeProxyStatus `json:"kubeProxy,omitempty"`

	// proof is what the agents have seen.
	// +optional
	Proof *ProofStatus `json:"proof,omitempty"`

	// conditions: Ready is true when the cluster is as spec.desired says, Reconciling while something is done or waited for, Stalled and
	// GateWaiting while a person has to do something, which the message says, and Paused while a pause is asked for.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// counts of the Services, pods, nodes or DNS names that move.
	// +optional
	Counts Counts `json:"counts,omitempty"`

	// planHash is the hash of the plan last applied, or made where none is to be applied.
	// +optional
	PlanHash string `json:"planHash,omitempty"`

	// pointOfNoReturnPassed is true once finish has begun to take old addresses away.
	// +optional
	PointOfNoReturnPassed bool `json:"pointOfNoReturnPassed,omitempty"`

	// lastError is why the last run stopped.
	// +optional
	LastError string `json:"lastError,omitempty"`
}

// TakenBackStatus is a restart that somebody undid.
type TakenBackStatus struct {
	// uid is that of the workload.
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`
	// workload is its kind, namespace and name.
	// +kubebuilder:validation:MaxLength=512
	Workload string `json:"workload"`
	// by are those who write its pod template beside replumb, as its managedFields say.
	// +kubebuilder:validation:MaxLength=512
	By string `json:"by"`
	// at is when that was seen first.
	At metav1.Time `json:"at"`
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

// Over reports whether a Migration has ended: what it moved may be moved by a later one.
func (p Phase) Over() bool { return p == PhaseFinished || p == PhaseRolledBack }

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
	// ConditionReconciling is true while something is being done, or waited for, so that the cluster becomes as spec.desired says. Programs
	// that go by kstatus show the Migration as in progress.
	ConditionReconciling = "Reconciling"
	// ConditionStalled is true while nothing goes on before a person has done what its message says. kstatus: failed.
	ConditionStalled = "Stalled"
	// ConditionGateWaiting is true while a run, or the next one, waits for what only a person can do; its message says what.
	ConditionGateWaiting = "GateWaiting"
)

// Reasons of the conditions Ready, Reconciling and Paused.
const (
	ReasonAsDesired  = "AsDesired"
	ReasonInProgress = "InProgress"
	ReasonFailed     = "Failed"
	ReasonPaused     = "Paused"
	ReasonResumed    = "Resumed"
	// ReasonPlanned says that there is a plan, and that spec.desired asks for no more.
	ReasonPlanned = "Planned"
	// ReasonApplying, ReasonRollingBack and ReasonFinishing say what the operator runs, ReasonPlanning that it looks at the cluster.
	ReasonPlanning    = "Planning"
	ReasonApplying    = "Applying"
	ReasonRollingBack = "RollingBack"
	ReasonFinishing   = "Finishing"
	// ReasonRetrying says that a run failed, and that another begins after a pause.
	ReasonRetrying = "Retrying"
	// ReasonWaitingForMigration says that another Migration comes first; the message names it.
	ReasonWaitingForMigration = "WaitingForMigration"
	// ReasonWaitingForLock says that a command works on the cluster; the message says who started it.
	ReasonWaitingForLock = "WaitingForLock"
	// ReasonApprovalNeeded says that a person has to approve first, by the annotation replumb.dev/approve.
	ReasonApprovalNeeded = "ApprovalNeeded"
	// ReasonGateClosed says that a step waits for a person, ReasonNoGate that none does.
	ReasonGateClosed = "GateClosed"
	ReasonNoGate     = "NoGate"
	// ReasonNotStalled says that nothing keeps the Migration from going on, ReasonIdle that nothing goes on.
	ReasonNotStalled = "NotStalled"
	ReasonIdle       = "Idle"
)

// Reasons of the condition Stalled, which Ready has as well then.
const (
	// ReasonBlocked says that findings keep the migration from beginning; the message has their codes and what to do.
	ReasonBlocked = "Blocked"
	// ReasonInvalid says that something is wrong in spec, or in an annotation.
	ReasonInvalid = "Invalid"
	// ReasonNotPossible says that where the migration stands there is no way to what spec.desired says.
	ReasonNotPossible = "NotPossible"
	// ReasonCallsNotAllowed says that the Migration has calls that the operator was not started to make.
	ReasonCallsNotAllowed = "CallsNotAllowed"
	// ReasonKindLeftOut says that the operator was started without this kind of migration, and has no rights for it.
	ReasonKindLeftOut = "KindLeftOut"
	// ReasonVersionMismatch says that the definition in the cluster is not that of the operator.
	ReasonVersionMismatch = "VersionMismatch"
	// ReasonPlanChanged says that another plan was approved than the one that there is now.
	ReasonPlanChanged = "PlanChanged"
	// ReasonLossBudgetExceeded says that a run was stopped since requests were lost.
	ReasonLossBudgetExceeded = "LossBudgetExceeded"
	// ReasonLateBudgetExceeded says that a run was stopped since answers were late. None of them was lost.
	ReasonLateBudgetExceeded = "LateBudgetExceeded"
	// ReasonNodeReturned says that a run was stopped since a node could not move, and has its former range again.
	ReasonNodeReturned = "NodeReturned"
	// ReasonNotMeasured says that runs have ended since agents could not measure what is lost.
	ReasonNotMeasured = "NotMeasured"
	// ReasonForeignCluster says that the Migration was recorded in another cluster.
	ReasonForeignCluster = "ForeignCluster"
)

// Counts of what moves: Services (serviceCIDR), pods (podCIDR, cni), nodes (nodes, kubeProxy) or DNS names (mirror).
type Counts struct {
	// total is how many move.
	Total int `json:"total"`
	// moved is how many are at their new address.
	Moved int `json:"moved"`
	// bridged is how many bridges exist.
	Bridged int `json:"bridged"`
	// pinned is how many Services keep their address in the old range.
	// +optional
	Pinned int `json:"pinned,omitempty"`
	// stays is how many Services are left alone.
	Stays int `json:"stays"`
}
