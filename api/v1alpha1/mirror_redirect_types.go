package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RedirectSpec leads names in DNS to the target, and back.
//
// +kubebuilder:validation:XValidation:rule="!has(self.names) || size(self.names) == 0 || has(self.provider)",message="is empty, and there are names; set rfc2136, route53 or manual",fieldPath=".provider"
type RedirectSpec struct {
	// names to lead there. Default: those found in Ingresses, routes and gateways of the Gateway API, and external-dns's
	// annotations of Services.
	// +optional
	// +kubebuilder:validation:MaxItems=512
	// +listType=map
	// +listMapKey=name
	Names []RedirectName `json:"names,omitempty"`

	// from and to are the addresses, or the one name, of the load balancers of source and target. Default: those in the status
	// of the object that the name was found in.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	From []string `json:"from,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=64
	To []string `json:"to,omitempty"`

	// provider is how records are changed. Required if there are names.
	// +optional
	Provider *RecordProvider `json:"provider,omitempty"`

	// ttl, resolvers and drain as for records of migrations of nodes.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	// +kubebuilder:default=30
	TTL *int32 `json:"ttl,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=320
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([[][^]/ ]+[]]|[^]:/ []+):([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$')",message="is not host:port; write it such as 192.0.2.10:6443"
	Resolvers []string `json:"resolvers,omitempty"`
	// +optional
	// +kubebuilder:default="1m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="is negative; write a duration such as 60s"
	Drain *metav1.Duration `json:"drain,omitempty"`

	// owners are the IDs (--txt-owner-id) of instances of external-dns whose records may be changed. Records that say that
	// someone else owns them are left alone, and block.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	Owners []string `json:"owners,omitempty"`
	// txtPrefix, txtSuffix and txtWildcard are external-dns's --txt-prefix, --txt-suffix and --txt-wildcard-replacement, if it
	// has any.
	// +optional
	TXTPrefix string `json:"txtPrefix,omitempty"`
	// +optional
	TXTSuffix string `json:"txtSuffix,omitempty"`
	// +optional
	TXTWildcard string `json:"txtWildcard,omitempty"`

	// probe is what has to hold at the target before a name leads there.
	// +optional
	// +kubebuilder:default={}
	Probe RedirectProbe `json:"probe,omitempty"`

	// parallel is how many names move together. Default: all.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Parallel int32 `json:"parallel,omitempty"`

	// quiet is called after names have moved, over and over, until it says that the load balancer they led to has no new
	// connections: its answer is {"newConnections": 0}. Without it the time that records take to be forgotten has to do.
	// +optional
	Quiet *Action `json:"quiet,omitempty"`
}

// RedirectName is one name.
type RedirectName struct {
	// name in full.
	// +kubebuilder:validation:MaxLength=254
	// +kubebuilder:validation:XValidation:rule="(self.startsWith('*.') ? self.substring(2) : self).matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*[.]?$')",message="is no host name; write a name in full"
	Name string `json:"name"`
	// type of its record. Default: that of what it leads to at the source: A and AAAA for addresses, CNAME for a name.
	// +optional
	Type RecordType `json:"type,omitempty"`
	// from and to, if they are others than those of all.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	From []string `json:"from,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=64
	To []string `json:"to,omitempty"`
	// probe, if it is another than that of all.
	// +optional
	Probe *RedirectProbe `json:"probe,omitempty"`
}

// RedirectProbe asks a load balancer for a name that does not lead there yet.
type RedirectProbe struct {
	// mode says whether to ask at all, and how. Default: HTTPS for names that an Ingress or a gateway has a certificate for, TCP at
	// its first port for those that only a Service asks for, and otherwise HTTP.
	// +optional
	Mode ProbeMode `json:"mode,omitempty"`
	// path that is asked for. Default: /.
	// +optional
	Path string `json:"path,omitempty"`
	// port of the load balancer. Default: that of the mode.
	// +optional
	Port int32 `json:"port,omitempty"`
	// status that answers must have. Default: the one that the source answers with.
	// +optional
	Status int32 `json:"status,omitempty"`
	// caSecret is a Secret of this cluster whose ca.crt certificates are verified with. Default: what the machine trusts.
	// +optional
	CASecret *SecretReference `json:"caSecret,omitempty"`
}

// ProbeMode is how a name is asked for.
//
// +kubebuilder:validation:Enum=HTTP;HTTPS;TCP;Off
type ProbeMode string

// The modes.
const (
	ProbeHTTP  ProbeMode = "HTTP"
	ProbeHTTPS ProbeMode = "HTTPS"
	ProbeTCP   ProbeMode = "TCP"
	ProbeOff   ProbeMode = "Off"
)
