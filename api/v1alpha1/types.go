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
// +kubebuilder:validation:ExactlyOneOf=serviceCIDR;podCIDR;nodes;mirror;cni
type MigrationSpec struct {
	// ServiceCIDR moves the Services of the cluster to another range. It cannot be changed: a different move is a
	// different Migration.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="serviceCIDR cannot be changed; create another Migration"
	ServiceCIDR *ServiceCIDRSpec `json:"serviceCIDR,omitempty"`

	// PodCIDR moves the pods of the cluster to another range. It cannot be changed either.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="podCIDR cannot be changed; create another Migration"
	PodCIDR *PodCIDRSpec `json:"podCIDR,omitempty"`

	// Nodes moves the cluster's nodes to another network. It cannot be changed either.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="nodes cannot be changed; create another Migration"
	Nodes *NodesSpec `json:"nodes,omitempty"`

	// Mirror has a second cluster serve what this one does, and takes it back. It cannot be changed either.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="mirror cannot be changed; create another Migration"
	Mirror *MirrorSpec `json:"mirror,omitempty"`

	// CNI replaces what gives pods their network. It cannot be changed either.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cni cannot be changed; create another Migration"
	CNI *CNISpec `json:"cni,omitempty"`

	// Batch is how many objects move together.
	// +optional
	Batch BatchSpec `json:"batch,omitempty"`

	// Tiers are classes of Services by how critical they are, the least critical first. They move in this order; the
	// cluster's own Services (kube-dns, kubernetes) come last unless a tier names them under services.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	Tiers []TierSpec `json:"tiers,omitempty"`

	// DefaultTier is the tier of Services that no rule names. Default: the last of tiers.
	// +optional
	DefaultTier string `json:"defaultTier,omitempty"`

	// TierLookup asks somebody else for the tier of those Services that no rule names.
	// +optional
	TierLookup *TierLookup `json:"tierLookup,omitempty"`

	// Windows are the times in which batches may begin. Outside of them a run waits. Default: any time.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Windows []Window `json:"windows,omitempty"`

	// Hooks are called before and after phases, tiers and batches.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	Hooks []Hook `json:"hooks,omitempty"`

	// Notify tells others how the migration goes.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	Notify []Notifier `json:"notify,omitempty"`

	// Proof is how it is proven that nothing is lost.
	// +optional
	Proof ProofSpec `json:"proof,omitempty,omitzero"`

	// Freeze keeps others from changing Services that are in flight. Default: Enforce.
	// +optional
	Freeze FreezeMode `json:"freeze,omitempty"`

	// Backups says what becomes of the backups when the migration is over. Default: Remove.
	// +optional
	Backups BackupPolicy `json:"backups,omitempty"`

	// Paused keeps runs from going on. A running one ends before its next group of steps.
	// +optional
	Paused bool `json:"paused,omitempty"`

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

// TierSpec is one class of Services. A Service belongs to the first tier that names it under services, else to the first
// whose namespaces or selector match. Its annotation replumb.dev/tier comes before both.
type TierSpec struct {
	// Name of the tier.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	Name string `json:"name"`

	// Selector matches labels of Services. With namespaces as well, both must match.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// Namespaces whose Services belong to the tier.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	Namespaces []string `json:"namespaces,omitempty"`

	// Services by namespace/name.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	Services []string `json:"services,omitempty"`

	// Pause is how long to wait after the tier.
	// +optional
	Pause *metav1.Duration `json:"pause,omitempty"`
}

// TierLookup asks for tiers: one JSON request with all Services in question, one JSON answer.
type TierLookup struct {
	Action `json:",inline"`
}

// Action is a call of something outside. Exactly one of exec and http.
//
// +kubebuilder:validation:ExactlyOneOf=exec;http
type Action struct {
	// Exec runs a program: the request on its stdin, the answer on its stdout.
	// +optional
	Exec *ExecAction `json:"exec,omitempty"`

	// HTTP posts the request; the answer is the response.
	// +optional
	HTTP *HTTPAction `json:"http,omitempty"`

	// Timeout of the call. Default: 30s.
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
}

// ExecAction is a program on the machine where replumb runs.
type ExecAction struct {
	// Command with its arguments. No shell is involved.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Command []string `json:"command"`
}

// HTTPAction is a URL that JSON is posted to. Exactly one of url and urlFromEnv.
//
// +kubebuilder:validation:ExactlyOneOf=url;urlFromEnv
type HTTPAction struct {
	// URL, with scheme http or https.
	// +optional
	URL string `json:"url,omitempty"`

	// URLFromEnv names the environment variable of replumb that holds the URL: one with a secret in it does not belong
	// into a Migration.
	// +optional
	URLFromEnv string `json:"urlFromEnv,omitempty"`
}

// Hook is called at certain moments of a run.
type Hook struct {
	// Name of the hook.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	Name string `json:"name"`

	// When it is called.
	When HookMoment `json:"when"`

	// Of names the phases or tiers it is called for, or the tiers of the batches. Default: all.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Of []string `json:"of,omitempty"`

	Action `json:",inline"`

	// OnFailure Stop ends the run; Continue only tells. Default: Stop.
	// +optional
	OnFailure FailurePolicy `json:"onFailure,omitempty"`
}

// HookMoment is when a hook is called.
//
// +kubebuilder:validation:Enum=BeforePhase;AfterPhase;BeforeTier;AfterTier;BeforeBatch;AfterBatch
type HookMoment string

// The moments of hooks.
const (
	BeforePhase HookMoment = "BeforePhase"
	AfterPhase  HookMoment = "AfterPhase"
	BeforeTier  HookMoment = "BeforeTier"
	AfterTier   HookMoment = "AfterTier"
	BeforeBatch HookMoment = "BeforeBatch"
	AfterBatch  HookMoment = "AfterBatch"
)

// FailurePolicy is what follows from a call that failed.
//
// +kubebuilder:validation:Enum=Stop;Continue
type FailurePolicy string

// The failure policies.
const (
	FailureStop     FailurePolicy = "Stop"
	FailureContinue FailurePolicy = "Continue"
)

// Notifier posts what happens: phases that begin and end, and what stops a run.
type Notifier struct {
	HTTPAction `json:",inline"`

	// Format JSON posts the event; Slack posts {"text": ...}, which Slack and its like take. Default: JSON.
	// +optional
	Format NotifyFormat `json:"format,omitempty"`

	// Timeout of one call. Default: 10s.
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// OnFailure Stop ends the run when nobody can be told. Default: Continue.
	// +optional
	OnFailure FailurePolicy `json:"onFailure,omitempty"`
}

// NotifyFormat is the body of a notification.
//
// +kubebuilder:validation:Enum=JSON;Slack
type NotifyFormat string

// The formats of notifications.
const (
	NotifyJSON  NotifyFormat = "JSON"
	NotifySlack NotifyFormat = "Slack"
)

// Window is a stretch of time on some days of the week.
type Window struct {
	// Days it begins on: Mon, Tue, Wed, Thu, Fri, Sat, Sun. Default: every day.
	// +optional
	// +kubebuilder:validation:items:Enum=Mon;Tue;Wed;Thu;Fri;Sat;Sun
	// +kubebuilder:validation:MaxItems=7
	Days []string `json:"days,omitempty"`

	// Start and End as HH:MM. An end that is not after the start is on the next day.
	// +kubebuilder:validation:Pattern=`^([01][0-9]|2[0-3]):[0-5][0-9]$`
	Start string `json:"start"`
	// +kubebuilder:validation:Pattern=`^([01][0-9]|2[0-3]):[0-5][0-9]$`
	End string `json:"end"`

	// TimeZone by its name in the IANA database, such as Europe/Berlin. Default: UTC.
	// +optional
	TimeZone string `json:"timeZone,omitempty"`
}

// FreezeMode is whether Services in flight are frozen. Enforce needs a ValidatingAdmissionPolicy; IfPossible goes on
// without one.
//
// +kubebuilder:validation:Enum=Enforce;IfPossible;Disabled
type FreezeMode string

// The freeze modes.
const (
	FreezeEnforce    FreezeMode = "Enforce"
	FreezeIfPossible FreezeMode = "IfPossible"
	FreezeDisabled   FreezeMode = "Disabled"
)

// BackupPolicy is what becomes of backups when the migration is over.
//
// +kubebuilder:validation:Enum=Remove;Keep
type BackupPolicy string

// The backup policies.
const (
	BackupsRemove BackupPolicy = "Remove"
	BackupsKeep   BackupPolicy = "Keep"
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
