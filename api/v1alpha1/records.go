package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RecordSpec is one name in DNS whose values are replaced by others while clients keep asking for it. At every moment the
// record has what is in from, in from and to, or in to. A record that has anything else is left alone.
//
// A value is an address, the name of a CNAME or, in Route 53, an alias of what AWS runs: "ALIAS", the hosted zone that this is in
// (of a load balancer its CanonicalHostedZoneId), its name and, if its health counts, "health". An alias has no time to live of
// its own, but the 60 seconds of what it leads to; it stands alone, so that the record goes from it and to it in one change.
//
// +kubebuilder:validation:XValidation:rule="self.type != 'CNAME' || size(self.to) == 1",message="has more than one value; a CNAME has one",fieldPath=".to"
// +kubebuilder:validation:XValidation:rule="(has(self.fromType) ? self.fromType : self.type) != 'CNAME' || !has(self.from) || size(self.from) <= 1",message="has more than one value; a CNAME has one",fieldPath=".from"
// +kubebuilder:validation:XValidation:rule="!has(self.fromType) || self.fromType == self.type || (self.fromType == 'CNAME') != (self.type == 'CNAME')",message="is of another family than type; A and AAAA can stand side by side, so write two records",fieldPath=".fromType"
// +kubebuilder:validation:XValidation:rule="!has(self.fromType) || self.fromType == self.type || !has(self.from) || size(self.from) > 0",message="is empty, and the record changes its type; write what it has, or leave it out",fieldPath=".from"
// +kubebuilder:validation:XValidation:rule="self.type != 'CNAME' || self.to.all(v, !isIP(v) && v.matches('^([a-zA-Z0-9_-]{1,63}[.])+[a-zA-Z0-9_-]{1,63}[.]?$'))",message="has something else than a name; a record of type CNAME has a name in full",fieldPath=".to"
// +kubebuilder:validation:XValidation:rule="self.type == 'CNAME' || self.to.all(v, v.startsWith('ALIAS ') || (isIP(v) && ip(v).family() == (self.type == 'A' ? 4 : 6)))",message="has something else than addresses of the type; a record of type A has IPv4 addresses, one of type AAAA IPv6 addresses",fieldPath=".to"
// +kubebuilder:validation:XValidation:rule="(has(self.fromType) ? self.fromType : self.type) == 'CNAME' || !has(self.from) || self.from.all(v, v.startsWith('ALIAS ') || (isIP(v) && ip(v).family() == ((has(self.fromType) ? self.fromType : self.type) == 'A' ? 4 : 6)))",message="has something else than addresses of the type; a record of type A has IPv4 addresses, one of type AAAA IPv6 addresses",fieldPath=".from"
// +kubebuilder:validation:XValidation:rule="!self.to.exists(v, v.startsWith('ALIAS ')) || (size(self.to) == 1 && has(self.provider.route53))",message="has an alias; only Route 53 has such, and each is the one value of its record",fieldPath=".to"
// +kubebuilder:validation:XValidation:rule="!has(self.from) || !self.from.exists(v, v.startsWith('ALIAS ')) || (size(self.from) == 1 && has(self.provider.route53))",message="has an alias; only Route 53 has such, and each is the one value of its record",fieldPath=".from"
// +kubebuilder:validation:XValidation:rule="!has(self.then) || self.then.type == 'CNAME' || ((self.type == 'CNAME' || self.type == self.then.type) && (!has(self.fromType) || self.fromType == 'CNAME' || self.fromType == self.then.type))",message="has addresses of another family than the record had; A and AAAA can stand side by side, so write two records",fieldPath=".then.type"
// +kubebuilder:validation:XValidation:rule="!has(self.then) || self.then.type != self.type || self.then.to != self.to",message="is what the record has already by to; leave it out",fieldPath=".then"
// +kubebuilder:validation:XValidation:rule="!has(self.then) || !has(self.from) || (size(self.from) > 0 && self.then.to != self.from)",message="is empty, or is what then leads to; with then the record has to look different at its end than at its beginning",fieldPath=".from"
// +kubebuilder:validation:XValidation:rule="!has(self.then) || !self.then.to.exists(v, v.startsWith('ALIAS ')) || has(self.provider.route53)",message="has an alias; only Route 53 has such",fieldPath=".then.to"
type RecordSpec struct {
	// name in full, such as api.example.com.
	// +kubebuilder:validation:MaxLength=254
	// +kubebuilder:validation:Pattern=`^([a-zA-Z0-9_]([-a-zA-Z0-9_]{0,61}[a-zA-Z0-9_])?\.)+[a-zA-Z0-9_]([-a-zA-Z0-9_]{0,61}[a-zA-Z0-9_])?\.?$`
	Name string `json:"name"`

	// type of the record. Default: A.
	// +optional
	// +kubebuilder:default=A
	Type RecordType `json:"type,omitempty"`

	// fromType is the type that the record has before, if it is to change it: from CNAME to A or AAAA, or from one of these to CNAME.
	// A name cannot have both (RFC 1034, section 3.6.2), so the one goes and the other comes in one change. Default: type.
	// +optional
	FromType RecordType `json:"fromType,omitempty"`

	// from is what the record has before. Default: what is there when the migration begins. An empty list says that there
	// is no such record yet, and that it may be created.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=320
	From []string `json:"from,omitzero"`

	// to is what the record has afterwards: addresses, the one name of a CNAME, or the one alias.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=320
	To []string `json:"to"`

	// then is what the record has at last, if to is for the time between: the address of the first new API server, say, until there is
	// a new load balancer. It is for names of the API only. The record goes there in one change once all control planes have moved, both
	// ends answer and the new one is good for the name. It may be written, and corrected, while the migration runs: a load balancer may
	// get its name late.
	// +optional
	Then *RecordEnd `json:"then,omitempty"`

	// ttl is the time to live, in seconds, for as long as the record moves. One that is shorter already stays, and an alias has none.
	// Default: 30.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	// +kubebuilder:default=30
	TTL *int32 `json:"ttl,omitempty"`

	// provider is how the record is changed.
	Provider RecordProvider `json:"provider"`

	// resolvers are host:port of recursive servers, such as those of the clients, which must answer with the new values as
	// well before anything goes on.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=320
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^([[][^]/ ]+[]]|[^]:/ []+):([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$')",message="is not host:port; write it such as 192.0.2.10:6443"
	Resolvers []string `json:"resolvers,omitempty"`

	// drain is how long to wait, beyond the time to live, until values that were taken out count as forgotten. It covers
	// clients and caches that keep answers for longer than they may. Default: 60s.
	// +optional
	// +kubebuilder:default="1m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="is negative; write a duration such as 60s"
	Drain *metav1.Duration `json:"drain,omitempty"`
}

// RecordEnd is what a record has, and its type.
//
// +kubebuilder:validation:XValidation:rule="self.type != 'CNAME' || (size(self.to) == 1 && self.to.all(v, !isIP(v) && v.matches('^([a-zA-Z0-9_-]{1,63}[.])+[a-zA-Z0-9_-]{1,63}[.]?$')))",message="has something else than one name; a record of type CNAME has one name in full",fieldPath=".to"
// +kubebuilder:validation:XValidation:rule="self.type == 'CNAME' || self.to.all(v, v.startsWith('ALIAS ') || (isIP(v) && ip(v).family() == (self.type == 'A' ? 4 : 6)))",message="has something else than addresses of the type; a record of type A has IPv4 addresses, one of type AAAA IPv6 addresses",fieldPath=".to"
// +kubebuilder:validation:XValidation:rule="!self.to.exists(v, v.startsWith('ALIAS ')) || size(self.to) == 1",message="has an alias and more; an alias is the one value of its record",fieldPath=".to"
type RecordEnd struct {
	// type of the record.
	Type RecordType `json:"type"`

	// to is what it has: addresses, the one name of a CNAME, or the one alias.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=320
	To []string `json:"to"`
}

// RecordType is a type of records.
//
// +kubebuilder:validation:Enum=A;AAAA;CNAME
type RecordType string

// The types of records.
const (
	RecordA     RecordType = "A"
	RecordAAAA  RecordType = "AAAA"
	RecordCNAME RecordType = "CNAME"
)

// RecordProvider is how a record is changed. Exactly one of rfc2136, route53 and manual.
//
// +kubebuilder:validation:ExactlyOneOf=rfc2136;route53;manual
type RecordProvider struct {
	// rfc2136 sends dynamic updates to the zone's primary server.
	// +optional
	RFC2136 *RFC2136Provider `json:"rfc2136,omitempty"`

	// route53 calls the API of Amazon Route 53, with the credentials of the environment that replumb runs in.
	// +optional
	Route53 *Route53Provider `json:"route53,omitempty"`

	// manual says what to change and waits until the zone's servers say so.
	// +optional
	Manual *ManualProvider `json:"manual,omitempty"`
}

// RFC2136Provider is a server that takes dynamic updates. Without a key updates are not signed.
//
// +kubebuilder:validation:AtMostOneOf=tsigSecret;tsigKeyFile
type RFC2136Provider struct {
	// server is host:port of the zone's primary. It is spoken to over TCP.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=320
	// +kubebuilder:validation:XValidation:rule="self.matches('^([[][^]/ ]+[]]|[^]:/ []+):([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$')",message="is not host:port; write it such as 10.0.0.53:53"
	Server string `json:"server"`

	// zone that the name is in, such as example.com.
	// +kubebuilder:validation:MinLength=1
	Zone string `json:"zone"`

	// tsigSecret is a Secret with the keys name, algorithm (hmac-sha256, for instance) and secret (in base64, as
	// tsig-keygen writes it).
	// +optional
	TSIGSecret *SecretReference `json:"tsigSecret,omitempty"`

	// tsigKeyFile is a file where replumb runs, as tsig-keygen writes it.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.startsWith('/')",message="depends on where replumb is started; write the whole path, such as /etc/replumb/tsig.key"
	TSIGKeyFile string `json:"tsigKeyFile,omitempty"`
}

// SecretReference names a Secret.
type SecretReference struct {
	// +kubebuilder:validation:MinLength=1
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
}

// Route53Provider is a hosted zone.
type Route53Provider struct {
	// hostedZoneID such as Z1D633PJN98FT9.
	// +kubebuilder:validation:Pattern=`^[A-Z0-9]{1,32}$`
	HostedZoneID string `json:"hostedZoneID"`

	// region of the API. Default: that of the environment, else us-east-1. Only partitions other than the usual one need it.
	// +optional
	Region string `json:"region,omitempty"`
}

// ManualProvider is people.
type ManualProvider struct{}

// RecordStatus is a record as it was before it was first changed, and what was seen of it since. It is written before the
// record is, so that a later run, or a rollback, knows.
type RecordStatus struct {
	Name string     `json:"name"`
	Type RecordType `json:"type"`

	// ttl in seconds, as it was. Zero, if there was no record.
	// +optional
	TTL int32 `json:"ttl,omitempty"`

	// values as they were, which say of which type. Empty, if there was no record.
	// +optional
	Values []string `json:"values,omitempty"`

	// loweredAt is when every server of the zone was first seen with the time to live of the move. What was asked
	// earlier may be remembered for as long as TTL from then.
	// +optional
	LoweredAt *metav1.Time `json:"loweredAt,omitempty"`

	// publishedAt is when values other than these were first written. Unset as long as they were not.
	// +optional
	PublishedAt *metav1.Time `json:"publishedAt,omitempty"`

	// seen is the last set of values that every server was seen to answer with.
	// +optional
	Seen *RecordSeen `json:"seen,omitempty"`
}

// RecordSeen is when every server was first seen to answer with the same values.
type RecordSeen struct {
	// +optional
	Values []string `json:"values,omitempty"`

	At metav1.Time `json:"at"`

	// longest is the longest time to live, in seconds, that a server answered with. Resolvers may stretch it.
	// +optional
	Longest int32 `json:"longest,omitempty"`
}
