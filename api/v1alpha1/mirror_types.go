package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MirrorSpec is the job of having a second cluster, the target, serve what this one, the source, serves, for as long as the
// source's network is changed, and of taking it back. The source is the cluster that the Migration is in.
type MirrorSpec struct {
	// target is the cluster that takes over.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed once the migration is recorded; roll it back and give the new one another name"
	Target ClusterReference `json:"target"`

	// copy is what is copied to the target, and how it is changed on the way.
	// +optional
	// +kubebuilder:default={}
	Copy CopySpec `json:"copy,omitempty"`

	// hosts are further names by which the target can be reached before any name leads there. Certificates are extended by
	// them, and Ingresses in the target answer to them as well.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=name
	Hosts []HostAlias `json:"hosts,omitempty"`

	// certificates says whether the aliases in hosts are added to certificates. Default: Extend.
	// +optional
	// +kubebuilder:default=Extend
	Certificates CertificateMode `json:"certificates,omitempty"`

	// singletons must not run in both clusters at once. They run where the names lead.
	// +optional
	// +kubebuilder:default={}
	Singletons SingletonSpec `json:"singletons,omitempty"`

	// redirect leads names in DNS to the target.
	// +optional
	// +kubebuilder:default={}
	Redirect RedirectSpec `json:"redirect,omitempty"`

	// canary has throw-away pods of the target, on at most eight of its nodes, connect to its targets before names are switched, such as
	// to databases outside of both clusters. One that is not reached ends the run. Without targets there are no such pods.
	// +optional
	// +kubebuilder:default={}
	Canary PodCanarySpec `json:"canary,omitempty"`

	// freezeKinds are further kinds of objects in namespaces that others may not deploy to the source, as resource.group such as
	// kafkas.kafka.strimzi.io. Workloads, Services, Ingresses, NetworkPolicies, Rollouts of Argo and routes of the Gateway API are frozen as it is.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=317
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)+$')",message="is not resource.group; write it such as kafkas.kafka.strimzi.io"
	// +kubebuilder:validation:items:XValidation:rule="!(self in ['leases.coordination.k8s.io', 'events.events.k8s.io', 'endpointslices.discovery.k8s.io'])",message="is what the cluster itself writes all the time, and would stand still without; take it out"
	// +listType=set
	FreezeKinds []string `json:"freezeKinds,omitempty"`

	// gateWait is how long a run waits for what only the operator can do before it ends, to be run again. Default: 1h.
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="is not positive; write a duration such as 60s"
	GateWait *metav1.Duration `json:"gateWait,omitempty"`
}

// ClusterReference is another cluster. Exactly one of context and secret.
//
// +kubebuilder:validation:ExactlyOneOf=context;secret
type ClusterReference struct {
	// context of the kubeconfig that replumb runs with.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Context string `json:"context,omitempty"`

	// secret of this cluster with a kubeconfig in it, such as Cluster API makes.
	// +optional
	Secret *KubeconfigSecret `json:"secret,omitempty"`
}

// KubeconfigSecret is a key of a Secret.
type KubeconfigSecret struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// key of the Secret's data. Default: value if there is such a key, or else kubeconfig.
	// +optional
	Key string `json:"key,omitempty"`
}

// HostAlias is a name and what it is called in the mirror until it leads there itself.
//
// +kubebuilder:validation:XValidation:rule="self.name != self.alias",message="is the name itself; an alias leads to the mirror while the name does not yet",fieldPath=".alias"
type HostAlias struct {
	// name that clients know.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="(self.startsWith('*.') ? self.substring(2) : self).matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="is no host name; write a name in full, such as shop.example.com"
	Name string `json:"name"`
	// alias that leads to the mirror from the beginning.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="(self.startsWith('*.') ? self.substring(2) : self).matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="is no host name; write a name in full, such as shop.example.com"
	Alias string `json:"alias"`
}

// CertificateMode is what becomes of certificates.
//
// +kubebuilder:validation:Enum=Extend;Leave
type CertificateMode string

// The modes. Leave is for certificates that are good for all names already.
const (
	CertificatesExtend CertificateMode = "Extend"
	CertificatesLeave  CertificateMode = "Leave"
)

// CopySpec says what is copied. Whatever belongs to one cluster alone is never copied: nodes, leases, events, what controllers
// make from something that is copied, tokens, and what replumb keeps for itself.
//
// +kubebuilder:validation:XValidation:rule="!has(self.volumeAction) || self.volumes == 'Copy'",message="is for volumes: Copy; set spec.mirror.copy.volumes: Copy, or leave it out",fieldPath=".volumeAction"
type CopySpec struct {
	// namespaces that are copied. Default: all but kube-system, kube-public, kube-node-lease and replumb's own.
	// +optional
	// +kubebuilder:default={}
	Namespaces NameFilter `json:"namespaces,omitempty"`

	// kinds that are copied, as resource.group such as deployments.apps, or configmaps. Default: all that can be.
	// +optional
	// +kubebuilder:default={}
	Kinds NameFilter `json:"kinds,omitempty"`

	// selector, if set, chooses objects in namespaces by their labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// registries are taken for one another in the names of images.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Registries []RegistrySwap `json:"registries,omitempty"`

	// transforms change copies, in order.
	// +optional
	// +kubebuilder:validation:MaxItems=128
	Transforms []Transform `json:"transforms,omitempty"`

	// existing says what to do with objects of the same name that the target has and replumb did not make. Default: Refuse.
	// +optional
	// +kubebuilder:default=Refuse
	Existing ExistingPolicy `json:"existing,omitempty"`

	// nodePorts says whether Services keep the ports they have on nodes. Default: Keep, so that load balancers that were set up
	// for the one cluster fit the other.
	// +optional
	// +kubebuilder:default=Keep
	NodePorts NodePortPolicy `json:"nodePorts,omitempty"`

	// volumes says what to do about PersistentVolumeClaims. Default: Refuse.
	// +optional
	// +kubebuilder:default=Refuse
	Volumes VolumePolicy `json:"volumes,omitempty"`

	// volumeAction is called, with policy Copy, when claims have been copied and before workloads are: it fills the volumes.
	// +optional
	VolumeAction *Action `json:"volumeAction,omitempty"`

	// parallel is how many objects are written at once. Default: 16.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	// +kubebuilder:default=16
	Parallel int32 `json:"parallel,omitempty"`
}

// NameFilter chooses by name. In both lists * stands for any part of a name.
type NameFilter struct {
	// include, if not empty, are the only ones.
	// +optional
	// +kubebuilder:validation:MaxItems=512
	Include []string `json:"include,omitempty"`
	// exclude are left out.
	// +optional
	// +kubebuilder:validation:MaxItems=512
	Exclude []string `json:"exclude,omitempty"`
}

// RegistrySwap takes one registry for another in the names of images.
type RegistrySwap struct {
	// from is how names of images begin, such as registry.example.com or registry.example.com/shop.
	// +kubebuilder:validation:MinLength=1
	From string `json:"from"`
	// to is what takes its place.
	// +kubebuilder:validation:MinLength=1
	To string `json:"to"`
	// credentials is a Secret of this cluster, of type kubernetes.io/dockerconfigjson, that has some for the registry in to.
	// Each copied Secret of that type that has some for from gets them as well.
	// +optional
	Credentials *SecretReference `json:"credentials,omitempty"`
}

// Transform changes those copies that it is about.
type Transform struct {
	// kinds, namespaces and selector choose objects. Default: all.
	// +optional
	Kinds []string `json:"kinds,omitempty"`
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// names chooses by the objects' own names. * stands for any part of a name.
	// +optional
	Names []string `json:"names,omitempty"`

	// hosts are names taken for one another in Ingresses, routes and gateways of the Gateway API, Certificates, and
	// external-dns's annotations.
	// +optional
	Hosts []Swap `json:"hosts,omitempty"`
	// storageClasses are taken for one another in claims.
	// +optional
	StorageClasses []Swap `json:"storageClasses,omitempty"`
	// annotations and labels are set, and those in removeAnnotations and removeLabels taken away.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// +optional
	RemoveAnnotations []string `json:"removeAnnotations,omitempty"`
	// +optional
	RemoveLabels []string `json:"removeLabels,omitempty"`
	// replicas is how many pods a Deployment, StatefulSet or ReplicaSet gets.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Replicas *int32 `json:"replicas,omitempty"`
	// jsonPatch is a list of operations (RFC 6902), as JSON or YAML.
	// +optional
	JSONPatch string `json:"jsonPatch,omitempty"`
}

// Swap takes one value for another.
type Swap struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// ExistingPolicy is what to do with what the target has already.
//
// +kubebuilder:validation:Enum=Refuse;Keep;Overwrite
type ExistingPolicy string

// The policies. Keep leaves such objects as they are, and parity does not ask for them.
const (
	ExistingRefuse    ExistingPolicy = "Refuse"
	ExistingKeep      ExistingPolicy = "Keep"
	ExistingOverwrite ExistingPolicy = "Overwrite"
)

// NodePortPolicy is what becomes of ports on nodes.
//
// +kubebuilder:validation:Enum=Keep;Strip
type NodePortPolicy string

// The policies.
const (
	NodePortsKeep  NodePortPolicy = "Keep"
	NodePortsStrip NodePortPolicy = "Strip"
)

// VolumePolicy is what to do about PersistentVolumeClaims.
//
// +kubebuilder:validation:Enum=Refuse;Skip;Copy
type VolumePolicy string

// The policies: Refuse to go on as long as something is claimed, Skip claims and what uses them, or Copy claims without what is
// in the volumes, which volumeAction brings.
const (
	VolumesRefuse VolumePolicy = "Refuse"
	VolumesSkip   VolumePolicy = "Skip"
	VolumesCopy   VolumePolicy = "Copy"
)

// SingletonSpec says what must not run twice. Objects with the annotation replumb.dev/run-once are singletons too.
type SingletonSpec struct {
	// cronJobs are suspended where names do not lead. Default: Suspend.
	// +optional
	// +kubebuilder:default=Suspend
	CronJobs CronJobPolicy `json:"cronJobs,omitempty"`
	// workloads are Deployments and StatefulSets, as kind/namespace/name, that have pods in the cluster that names lead to, and none in the other.
	// +optional
	// +kubebuilder:validation:MaxItems=512
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^(?i)(deployment|statefulset)/[^/]+/.+$')",message="is not kind/namespace/name; write deployment/shop/mailer or statefulset/shop/queue"
	Workloads []string `json:"workloads,omitempty"`
}

// CronJobPolicy is what becomes of CronJobs.
//
// +kubebuilder:validation:Enum=Suspend;Leave
type CronJobPolicy string

// The policies.
const (
	CronJobsSuspend CronJobPolicy = "Suspend"
	CronJobsLeave   CronJobPolicy = "Leave"
)

// MirrorStatus is where a mirror stands.
type MirrorStatus struct {
	// serving is the cluster that names lead to.
	// +optional
	Serving ServingSide `json:"serving,omitempty"`
	// names that were found when the migration began, with what they lead to on either side.
	// +optional
	// +kubebuilder:validation:MaxItems=512
	Names []RedirectName `json:"names,omitempty"`
	// sourceUID and targetUID are the UIDs of the namespace kube-system, by which clusters are distinguished.
	// +optional
	SourceUID string `json:"sourceUID,omitempty"`
	// +optional
	TargetUID string `json:"targetUID,omitempty"`
	// copies are how many objects of the target are copies, as counted when all had been made.
	// +optional
	Copies int `json:"copies,omitempty"`
}

// ServingSide is one of the two clusters.
//
// +kubebuilder:validation:Enum=Source;Target;Both
type ServingSide string

// The sides. Both is while names move.
const (
	ServingSource ServingSide = "Source"
	ServingTarget ServingSide = "Target"
	ServingBoth   ServingSide = "Both"
)
