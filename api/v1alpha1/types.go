package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Migration is one job on one cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=mig,categories=replumb
// +kubebuilder:metadata:annotations="replumb.dev/schema-revision=33"
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.status.type`
// +kubebuilder:printcolumn:name="Desired",type=string,JSONPath=`.spec.desired`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Moved",type=integer,JSONPath=`.status.counts.moved`
// +kubebuilder:printcolumn:name="Total",type=integer,JSONPath=`.status.counts.total`
// +kubebuilder:printcolumn:name="Lost",type=integer,JSONPath=`.status.proof.failed`
// +kubebuilder:printcolumn:name="Final",type=boolean,JSONPath=`.status.pointOfNoReturnPassed`,priority=1
// +kubebuilder:printcolumn:name="Stage",type=string,JSONPath=`.status.stage`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",message="metadata.name cannot be used; name the Migration with lower-case letters, digits and dashes, at most 63"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.mirror) || !has(oldSelf.spec.mirror) || !has(oldSelf.status) || !has(oldSelf.status.mirror) || !has(oldSelf.status.mirror.serving) || oldSelf.status.mirror.serving == 'Source' || self.spec.mirror.copy.namespaces == oldSelf.spec.mirror.copy.namespaces",message="cannot be changed while names lead to the mirror; lead them back first, by replumb rollback",fieldPath=".spec.mirror.copy.namespaces"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.mirror) || !has(oldSelf.spec.mirror) || !has(oldSelf.status) || !has(oldSelf.status.mirror) || !has(oldSelf.status.mirror.serving) || oldSelf.status.mirror.serving == 'Source' || self.spec.mirror.copy.kinds == oldSelf.spec.mirror.copy.kinds",message="cannot be changed while names lead to the mirror; lead them back first, by replumb rollback",fieldPath=".spec.mirror.copy.kinds"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.mirror) || !has(oldSelf.spec.mirror) || !has(oldSelf.status) || !has(oldSelf.status.mirror) || !has(oldSelf.status.mirror.serving) || oldSelf.status.mirror.serving == 'Source' || (has(self.spec.mirror.copy.selector) == has(oldSelf.spec.mirror.copy.selector) && (!has(self.spec.mirror.copy.selector) || self.spec.mirror.copy.selector == oldSelf.spec.mirror.copy.selector))",message="cannot be changed while names lead to the mirror; lead them back first, by replumb rollback",fieldPath=".spec.mirror.copy.selector"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.mirror) || !has(oldSelf.spec.mirror) || !has(oldSelf.status) || !has(oldSelf.status.mirror) || !has(oldSelf.status.mirror.serving) || oldSelf.status.mirror.serving == 'Source' || (has(self.spec.mirror.copy.registries) == has(oldSelf.spec.mirror.copy.registries) && (!has(self.spec.mirror.copy.registries) || self.spec.mirror.copy.registries == oldSelf.spec.mirror.copy.registries))",message="cannot be changed while names lead to the mirror; lead them back first, by replumb rollback",fieldPath=".spec.mirror.copy.registries"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.mirror) || !has(oldSelf.spec.mirror) || !has(oldSelf.status) || !has(oldSelf.status.mirror) || !has(oldSelf.status.mirror.serving) || oldSelf.status.mirror.serving == 'Source' || (has(self.spec.mirror.copy.transforms) == has(oldSelf.spec.mirror.copy.transforms) && (!has(self.spec.mirror.copy.transforms) || self.spec.mirror.copy.transforms == oldSelf.spec.mirror.copy.transforms))",message="cannot be changed while names lead to the mirror; lead them back first, by replumb rollback",fieldPath=".spec.mirror.copy.transforms"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.mirror) || !has(oldSelf.spec.mirror) || !has(oldSelf.status) || !has(oldSelf.status.mirror) || !has(oldSelf.status.mirror.serving) || oldSelf.status.mirror.serving == 'Source' || self.spec.mirror.copy.existing == oldSelf.spec.mirror.copy.existing",message="cannot be changed while names lead to the mirror; lead them back first, by replumb rollback",fieldPath=".spec.mirror.copy.existing"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.mirror) || !has(oldSelf.spec.mirror) || !has(oldSelf.status) || !has(oldSelf.status.mirror) || !has(oldSelf.status.mirror.serving) || oldSelf.status.mirror.serving == 'Source' || self.spec.mirror.copy.nodePorts == oldSelf.spec.mirror.copy.nodePorts",message="cannot be changed while names lead to the mirror; lead them back first, by replumb rollback",fieldPath=".spec.mirror.copy.nodePorts"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.mirror) || !has(oldSelf.spec.mirror) || !has(oldSelf.status) || !has(oldSelf.status.mirror) || !has(oldSelf.status.mirror.serving) || oldSelf.status.mirror.serving == 'Source' || self.spec.mirror.copy.volumes == oldSelf.spec.mirror.copy.volumes",message="cannot be changed while names lead to the mirror; lead them back first, by replumb rollback",fieldPath=".spec.mirror.copy.volumes"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.mirror) || !has(oldSelf.spec.mirror) || !has(oldSelf.status) || !has(oldSelf.status.mirror) || !has(oldSelf.status.mirror.serving) || oldSelf.status.mirror.serving == 'Source' || (has(self.spec.mirror.hosts) == has(oldSelf.spec.mirror.hosts) && (!has(self.spec.mirror.hosts) || self.spec.mirror.hosts == oldSelf.spec.mirror.hosts))",message="cannot be changed while names lead to the mirror; lead them back first, by replumb rollback",fieldPath=".spec.mirror.hosts"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.mirror) || !has(oldSelf.spec.mirror) || !has(oldSelf.status) || !has(oldSelf.status.mirror) || !has(oldSelf.status.mirror.serving) || oldSelf.status.mirror.serving == 'Source' || self.spec.mirror.certificates == oldSelf.spec.mirror.certificates",message="cannot be changed while names lead to the mirror; lead them back first, by replumb rollback",fieldPath=".spec.mirror.certificates"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.mirror) || !has(oldSelf.spec.mirror) || !has(oldSelf.status) || !has(oldSelf.status.mirror) || !has(oldSelf.status.mirror.serving) || oldSelf.status.mirror.serving == 'Source' || self.spec.mirror.singletons == oldSelf.spec.mirror.singletons",message="cannot be changed while names lead to the mirror; lead them back first, by replumb rollback",fieldPath=".spec.mirror.singletons"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.mirror) || !has(oldSelf.spec.mirror) || !has(oldSelf.status) || !has(oldSelf.status.mirror) || !has(oldSelf.status.mirror.serving) || oldSelf.status.mirror.serving == 'Source' || (has(self.spec.mirror.redirect.names) == has(oldSelf.spec.mirror.redirect.names) && (!has(self.spec.mirror.redirect.names) || self.spec.mirror.redirect.names == oldSelf.spec.mirror.redirect.names))",message="cannot be changed while names lead to the mirror; lead them back first, by replumb rollback",fieldPath=".spec.mirror.redirect.names"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.mirror) || !has(oldSelf.spec.mirror) || !has(oldSelf.status) || !has(oldSelf.status.mirror) || !has(oldSelf.status.mirror.serving) || oldSelf.status.mirror.serving == 'Source' || (has(self.spec.mirror.redirect.from) == has(oldSelf.spec.mirror.redirect.from) && (!has(self.spec.mirror.redirect.from) || self.spec.mirror.redirect.from == oldSelf.spec.mirror.redirect.from))",message="cannot be changed while names lead to the mirror; lead them back first, by replumb rollback",fieldPath=".spec.mirror.redirect.from"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.mirror) || !has(oldSelf.spec.mirror) || !has(oldSelf.status) || !has(oldSelf.status.mirror) || !has(oldSelf.status.mirror.serving) || oldSelf.status.mirror.serving == 'Source' || (has(self.spec.mirror.redirect.to) == has(oldSelf.spec.mirror.redirect.to) && (!has(self.spec.mirror.redirect.to) || self.spec.mirror.redirect.to == oldSelf.spec.mirror.redirect.to))",message="cannot be changed while names lead to the mirror; lead them back first, by replumb rollback",fieldPath=".spec.mirror.redirect.to"
type Migration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec MigrationSpec `json:"spec"`

	// +kubebuilder:default:={"observedGeneration":-1}
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
// +kubebuilder:validation:ExactlyOneOf=serviceCIDR;podCIDR;nodes;mirror;cni;kubeProxy
// +kubebuilder:validation:XValidation:rule="has(self.serviceCIDR) == has(oldSelf.serviceCIDR) && has(self.podCIDR) == has(oldSelf.podCIDR) && has(self.nodes) == has(oldSelf.nodes) && has(self.mirror) == has(oldSelf.mirror) && has(self.cni) == has(oldSelf.cni) && has(self.kubeProxy) == has(oldSelf.kubeProxy)",message="the job cannot be exchanged for another; create another Migration"
// +kubebuilder:validation:XValidation:rule="!has(self.defaultTier) || size(self.defaultTier) == 0 || (has(self.tiers) && size(self.tiers) > 0 ? self.tiers.exists(t, t.name == self.defaultTier) : self.defaultTier == 'default')",messageExpression="'there is no tier \"' + self.defaultTier + '\"; use the name of one in spec.tiers'",fieldPath=".defaultTier"
type MigrationSpec struct {
	// serviceCIDR moves the Services of the cluster to another range. What moves, and where, cannot be changed once the migration
	// has begun: a different move is a different Migration. Pace, patience and reach can.
	// +optional
	ServiceCIDR *ServiceCIDRSpec `json:"serviceCIDR,omitempty"`

	// podCIDR moves the pods of the cluster to another range.
	// +optional
	PodCIDR *PodCIDRSpec `json:"podCIDR,omitempty"`

	// nodes moves the cluster's nodes to another network.
	// +optional
	Nodes *NodesSpec `json:"nodes,omitempty"`

	// mirror has a second cluster serve what this one does, and takes it back.
	// +optional
	Mirror *MirrorSpec `json:"mirror,omitempty"`

	// cni replaces what gives pods their network.
	// +optional
	CNI *CNISpec `json:"cni,omitempty"`

	// kubeProxy has kube-proxy write its rules another way.
	// +optional
	KubeProxy *KubeProxySpec `json:"kubeProxy,omitempty"`

	// batch is how many objects move together.
	// +optional
	// +kubebuilder:default={}
	Batch BatchSpec `json:"batch,omitempty"`

	// tiers are classes of Services by how critical they are, the least critical first. They move in this order; the
	// cluster's own Services (kube-dns, kubernetes) come last unless a tier names them under services.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	Tiers []TierSpec `json:"tiers,omitempty"`

	// defaultTier is the tier of Services that no rule names. Default: the last of tiers.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	DefaultTier string `json:"defaultTier,omitempty"`

	// tierLookup asks someone else for the tier of those Services that no rule names.
	// +optional
	TierLookup *TierLookup `json:"tierLookup,omitempty"`

	// windows are the times in which batches may begin. Outside of them a run waits. Default: any time.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Windows []Window `json:"windows,omitempty"`

	// hooks are called before and after phases, tiers and batches.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	Hooks []Hook `json:"hooks,omitempty"`

	// notify tells others how the migration goes.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	Notify []Notifier `json:"notify,omitempty"`

	// image of replumb for all pods that it runs in the cluster, and of a mirror in the target as well. Default: the one of this version.
	// +optional
	Image string `json:"image,omitempty"`

	// imagePullSecrets are Secrets of namespace replumb-system, of type kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg, that
	// nodes pull the image with.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="is not the name of a Secret; write it such as registry-credentials"
	// +listType=set
	ImagePullSecrets []string `json:"imagePullSecrets,omitempty"`

	// proof is how it is proven that nothing is lost.
	// +optional
	// +kubebuilder:default={}
	Proof ProofSpec `json:"proof,omitempty,omitzero"`

	// freeze keeps others from changing Services that are in flight. Default: Enforce.
	// +optional
	// +kubebuilder:default=Enforce
	Freeze FreezeMode `json:"freeze,omitempty"`

	// deploymentFreeze keeps others from deploying for as long as the migration is in flight: from the first change to the end of finish or of
	// rollback. Default: they may deploy. A mirror freezes deployments by spec.freeze, in the namespaces that it copies; of this it takes
	// kinds, selector, allow and gitOps.
	// +optional
	DeploymentFreeze *DeploymentFreezeSpec `json:"deploymentFreeze,omitempty"`

	// backups says what becomes of the backups when the migration is over. Default: Remove.
	// +optional
	// +kubebuilder:default=Remove
	Backups BackupPolicy `json:"backups,omitempty"`

	// paused keeps runs from going on. A running one ends where it waits, or after the steps in hand.
	// +optional
	Paused bool `json:"paused,omitempty"`

	// desired is how far the migration shall go.
	// +optional
	// +kubebuilder:default=Planned
	Desired DesiredState `json:"desired,omitempty"`
}

// Type is the job that the spec names, by its field; empty if it names none.
func (s *MigrationSpec) Type() string {
	switch {
	case s.ServiceCIDR != nil:
		return "serviceCIDR"
	case s.PodCIDR != nil:
		return "podCIDR"
	case s.Nodes != nil:
		return "nodes"
	case s.Mirror != nil:
		return "mirror"
	case s.CNI != nil:
		return "cni"
	case s.KubeProxy != nil:
		return "kubeProxy"
	}
	return ""
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

// DeploymentFreezeSpec says which deployments are frozen, and for whom. What programs write while they run goes on: status, ConfigMaps,
// Secrets, Jobs, pods, and replicas by the subresource scale.
type DeploymentFreezeSpec struct {
	// mode says what happens where nothing can be frozen: Enforce refuses to begin, IfPossible goes on. Disabled freezes nothing, for gitOps
	// alone. Default: Enforce.
	// +optional
	// +kubebuilder:default=Enforce
	Mode FreezeMode `json:"mode,omitempty"`

	// namespaces that are frozen. Default: all but replumb's own.
	// +optional
	Namespaces NameFilter `json:"namespaces,omitempty,omitzero"`

	// selector, if set, chooses the objects that are frozen by their labels. An expression with NotIn or DoesNotExist leaves some out.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// kinds are further kinds of objects in namespaces that are frozen, as resource.group such as kafkas.kafka.strimzi.io. Workloads, Services,
	// Ingresses, NetworkPolicies, Rollouts of Argo and routes of the Gateway API are frozen as it is.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=317
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)+$')",message="is not resource.group; write it such as kafkas.kafka.strimzi.io"
	// +kubebuilder:validation:items:XValidation:rule="!(self in ['leases.coordination.k8s.io', 'events.events.k8s.io', 'endpointslices.discovery.k8s.io'])",message="is what the cluster itself writes all the time, and would stand still without; take it out"
	// +listType=set
	Kinds []string `json:"kinds,omitempty"`

	// allow are users that may deploy all the same, such as system:serviceaccount:NAMESPACE:NAME.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=317
	// +listType=set
	Allow []string `json:"allow,omitempty"`

	// gitOps says what becomes of Argo CD and Flux meanwhile. Default: Keep.
	// +optional
	// +kubebuilder:default=Keep
	GitOps GitOpsMode `json:"gitOps,omitempty"`
}

// GitOpsMode is what becomes of what Argo CD and Flux reconcile by themselves while deployments are frozen. Suspend turns automated syncs of
// Applications off and suspends Kustomizations and HelmReleases, and puts them back as they were; Keep leaves them alone.
//
// +kubebuilder:validation:Enum=Suspend;Keep
type GitOpsMode string

// The modes.
const (
	GitOpsSuspend GitOpsMode = "Suspend"
	GitOpsKeep    GitOpsMode = "Keep"
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

// BatchSpec is how many objects move together and how long to look at the result.
type BatchSpec struct {
	// size of a batch. Default: 10.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=500
	// +kubebuilder:default=10
	Size int `json:"size,omitempty"`

	// settle is how long to wait after a batch. Default: 2s.
	// +optional
	// +kubebuilder:default="2s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="is negative; write a duration such as 60s"
	Settle *metav1.Duration `json:"settle,omitempty"`
}
